"""Runs whose `--workdir` is an address in object storage: they write to a local folder, which is copied there."""
