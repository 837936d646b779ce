"""``python -m oomph``: the same as the command ``oomph``."""

from oomph.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
