"""Operators that run on tensors without memory: what they give, and what they take."""
