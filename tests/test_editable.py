"""``pip install --editable``: what is built lies in the checkout, by its own name."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from support import ROOT

# Builds the smallest of the libraries, and nothing else, as setup.py has it.
BUILD = """
import runpy
import setuptools
described = runpy.run_path("setup.py")
small = [e for e in described["extensions"]() if e.name.endswith("nvidia-ml_so_1")]
described["setup"](
    ext_modules=small,
    cmdclass={"build_ext": described["Build"], "build_py": described["BuildPy"]},
    script_args=["editable_wheel", "--dist-dir", "made"],
)
"""


def test_a_library_and_the_start_up_file_are_where_python_looks(tmp_path: Path):
    checkout = tmp_path / "checkout"
    ignored = shutil.ignore_patterns("*.so", "*.so.*", "__pycache__", "*.egg-info")
    for name in ("csrc", "python"):
        shutil.copytree(ROOT / name, checkout / name, ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    done = subprocess.run(
        [sys.executable, "-c", BUILD],
        cwd=checkout,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (checkout / "python/oomph/_sim/libnvidia-ml.so.1").exists()
    (wheel,) = (checkout / "made").glob("*.whl")
    with zipfile.ZipFile(wheel) as made:
        files = {Path(name).name: made.read(name).decode() for name in made.namelist()}
    started = (ROOT / "python/oomph_simulate.pth").read_text()
    assert files["oomph_simulate.pth"] == started
    assert f"{checkout}/python" in files[f"__editable__.{wheel.name[:11]}.pth"]
