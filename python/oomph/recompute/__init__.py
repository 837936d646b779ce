"""Calls of modules that run again in backward: watched, tried, chosen, repeated."""
