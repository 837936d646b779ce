"""Sends what a step needs last to the host ahead of need, and has it back in time."""
