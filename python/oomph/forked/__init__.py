"""Children that run what the program has, and change nothing outside of them."""
