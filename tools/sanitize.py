"""``tools/sanitize.py address|thread [PYTEST ARGUMENTS]``: PyTorch's tests, sanitized.

Builds all extension modules and the simulated GPU for a sanitizer, into a folder of
their own, and runs tests with the real PyTorch on them. PyTorch and Python are as they
come: what happens within them is not looked at, but their locks are known, since the
sanitizer's library stands before the C library. Ends with 1 if a test fails or any
process, children of tests included, had something reported; the reports are printed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
LIBRARIES = {"address": "libasan.so", "thread": "libtsan.so"}
TESTS = {
    "address": [
        *("activations", "contents", "graphs", "guard", "history", "plain", "pools"),
        *("residency", "saved", "saved_by_several", "sharing", "sites", "streams"),
    ],
    # Those that start threads, or whose subject threads share.
    "thread": ["saved_by_several", "streams", "turns", "devices"],
}


def build(sanitizer: str) -> Path:
    """Builds what has changed; gives the folder to import from."""
    base = ROOT / "build" / "sanitize" / sanitizer
    subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build", "--build-base", base],
        env={**os.environ, "OOMPH_SANITIZE": sanitizer},
        cwd=ROOT,
        check=True,
    )
    return next(base.glob("lib.*"))


def library(name: str) -> str:
    """Where the compiler has a library."""
    command = [os.environ.get("CC", "cc"), f"-print-file-name={name}"]
    return str(Path(subprocess.check_output(command, text=True).strip()).resolve())


def environment(sanitizer: str, folder: Path, reports: Path) -> dict[str, str]:
    """In which Python runs under the sanitizer."""
    # The C++ library too: who finds it only later does not see exceptions thrown.
    preload = f"{library(LIBRARIES[sanitizer])} {library('libstdc++.so')}"
    told = f"log_path={reports / 'report'}"
    return {
        **os.environ,
        "LD_PRELOAD": preload,
        "PYTHONPATH": str(folder),
        "PYTHONMALLOC": "malloc",  # each object by itself
        "OMP_NUM_THREADS": "1",
        # Python and PyTorch keep much to the end.
        "ASAN_OPTIONS": f"detect_leaks=0:{told}",
        "UBSAN_OPTIONS": f"print_stacktrace=1:{told}",
        "TSAN_OPTIONS": f"ignore_noninstrumented_modules=1:exitcode=0:{told}",
    }


def main() -> int:
    """Builds, runs, tells."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sanitizer", choices=LIBRARIES)
    chosen, tests = parser.parse_known_args()
    folder = build(chosen.sanitizer)
    reports = folder.parent / "reports"
    reports.mkdir(exist_ok=True)
    for old in reports.iterdir():
        old.unlink()
    named = [
        str(next((ROOT / "tests").rglob(f"test_{name}.py")))
        for name in TESTS[chosen.sanitizer]
    ]
    code = subprocess.run(
        [*(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q")]
        + (tests or named),
        env=environment(chosen.sanitizer, folder, reports),
        cwd=ROOT,
        check=False,
    ).returncode
    found = [report.read_text() for report in sorted(reports.iterdir())]
    print(*found, f"{chosen.sanitizer}: {len(found)} processes had reports", sep="\n")
    return 1 if code or found else 0


if __name__ == "__main__":
    sys.exit(main())
