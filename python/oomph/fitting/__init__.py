"""Will it fit? A script is run on simulated cards, before a real one is rented."""
