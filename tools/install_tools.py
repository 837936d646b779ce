"""Installs what tests and checks need into the environment that runs this."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

# In a folder of its own: accelerate and others do otherwise where it can be imported.
APART = [
    "bitsandbytes==0.50.2",
    "deepspeed==0.19.8",
    "einops==0.8.2",
    "hjson==3.1.0",
    "py-cpuinfo==9.0.0",
]

text = (Path(__file__).parent.parent / "pyproject.toml").read_text()
section = re.search(r"^dev = \[(.*?)^\]", text, re.M | re.S)
assert section is not None, "pyproject.toml has no dev requirements"
requirements = re.findall(r'"([^"]+)"', section.group(1))
requirements.append(f"torch=={version('torch')}")  # which no tool may exchange
folder = str(Path(sys.prefix) / "apart")
install = [sys.executable, "-m", "pip", "install", "--quiet"]
for more in (requirements, ["--no-deps", "--upgrade", "--target", folder, *APART]):
    code = subprocess.run([*install, *more], check=False).returncode
    if code != 0:
        raise SystemExit(code)
