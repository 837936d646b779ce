"""The processes of a script on simulated cards, and how they begin."""
