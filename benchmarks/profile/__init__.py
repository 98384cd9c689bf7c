"""Where the time of a step goes, by kind of operation: `python -m benchmarks.profile --work=conv`"""
