"""Traces: what a program asked of its allocator, kept in files and asked again."""
