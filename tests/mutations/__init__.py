"""Mistakes that a later editor could make, put into the code one at a time.

They were chosen from reading the code, not from the tests: each must be found by some
test. What was moved or made shorter in the tests has lost nothing that they see.
"""
