"""The parts of the trainer: input, state, recovery, figures of speed, watchdog."""
