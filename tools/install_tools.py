"""Installs what tests and checks need into the environment that runs this."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

text = (Path(__file__).parent.parent / "pyproject.toml").read_text()
section = re.search(r"^dev = \[(.*?)^\]", text, re.M | re.S)
assert section is not None, "pyproject.toml has no dev requirements"
requirements = re.findall(r'"([^"]+)"', section.group(1))
requirements.append(f"torch=={version('torch')}")  # which no tool may exchange
command = [sys.executable, "-m", "pip", "install", "--quiet", *requirements]
raise SystemExit(subprocess.run(command, check=False).returncode)
