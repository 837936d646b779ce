"""Sends what a step needs last to the host, and fetches it back in time."""
