"""The tests that PyTorch has of its allocator use what all tests share."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
