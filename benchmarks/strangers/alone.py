"""Runs one program by its name, with nothing around it."""

from __future__ import annotations

import sys

from collection import programs

if __name__ == "__main__":
    for _ in programs()[sys.argv[1]]() or ():
        pass  # a program tells kinds of steps, if it has several
