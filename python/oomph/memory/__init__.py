"""What a program asks of its memory: how much there is, where, whose it is."""
