"""The command's process: flags, streams, signals, exit."""
