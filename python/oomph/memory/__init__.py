"""What a program can ask about its memory: how much, where, and whose it is."""
