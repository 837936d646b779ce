"""Who holds the memory of a device, what a step will want, and what would help."""
