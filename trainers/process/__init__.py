"""The command as a process: its flags, its streams, its signals, its exit."""
