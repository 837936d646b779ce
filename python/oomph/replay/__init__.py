"""Runs a step again in a forked child, on tensors without memory, and counts bytes."""
