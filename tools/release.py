"""Goes through the list of what a release needs, and ticks what is so.

    .venv/bin/python tools/release.py VERSION

It changes nothing. What takes long (the wheel, the tests of all versions, `.ci/run`)
has been run before, and left its results. Exit code 0: all is ticked; 1: it is not;
2: it was not called like that.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")
SECTION = re.compile(r"^## (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Check:
    """One line of the list.

    Attributes:
        says: What is so if it is ticked.
        missing: Says what is missing and what to do; "" if nothing is. It gets the root
            of the repository and the version.
    """

    says: str
    missing: Callable[[Path, str], str]


def git(root: Path, *words: str) -> str:
    """What a command of git's prints."""
    done = subprocess.run(
        ["git", *words], cwd=root, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def number(version: str) -> tuple[int, ...]:
    """A version as it is compared."""
    match = VERSION.fullmatch(version)
    return tuple(map(int, match.groups())) if match else ()


def is_committed(root: Path, version: str) -> str:
    """Nothing is left to be committed, and the version has no tag yet."""
    changed = git(root, "status", "--porcelain")
    if changed:
        return f"commit or remove:\n{changed}"
    if git(root, "tag", "--list", f"v{version}"):
        return f"there is a tag v{version} already: take the next version"
    return ""


def is_in_package(root: Path, version: str) -> str:
    """The package has the version, and it is the next one."""
    text = (root / "python" / "oomph" / "__init__.py").read_text()
    known = re.search(r'^__version__ = "(.*)"$', text, re.MULTILINE)
    if known is None or known[1] != version:
        had = known[1] if known else "none"
        return f"python/oomph/__init__.py has {had}: set __version__"
    tags = [tag.removeprefix("v") for tag in git(root, "tag", "--list", "v*").split()]
    later = [tag for tag in tags if number(tag) >= number(version)]
    return f"{later[-1]} was released already: take a later version" if later else ""


def is_in_changelog(root: Path, version: str) -> str:
    """The changelog has a section for it, which says something."""
    text = (root / "CHANGELOG.md").read_text()
    parts = SECTION.split(text)[1:]
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    dated = re.compile(rf"{re.escape(version)} - \d{{4}}-\d\d-\d\d")
    title = next(filter(dated.fullmatch, sections), None)
    if title is None:
        return f"rename `## Unreleased` in CHANGELOG.md to `## {version} - YYYY-MM-DD`"
    if "\n### " not in sections[title]:
        return f"CHANGELOG.md says nothing under {title}"
    left = sections.get("Unreleased", "").strip()
    return "CHANGELOG.md has an Unreleased section that is not empty" if left else ""


def are_old_names_gone(root: Path, version: str) -> str:
    """No old name is left of which its comment says that this release does without."""
    left = []
    for path in sorted((root / "python").rglob("*.py")):
        for line, text in enumerate(path.read_text().splitlines(), 1):
            until = re.search(r"its name up to (\d+\.\d+)", text)
            if until and number(f"{until[1]}.0")[:2] < number(version)[:2]:
                left.append(f"{path.relative_to(root)}:{line}: {text.strip()}")
    return "remove the old names:\n" + "\n".join(left) if left else ""


def are_pages_written(root: Path, version: str) -> str:
    """What is generated of the documentation is as the code says."""
    command = [sys.executable, str(root / "tools" / "readme.py"), "--check"]
    done = subprocess.run(
        command, cwd=root, check=False, capture_output=True, text=True
    )
    return f"{done.stdout}{done.stderr}run tools/readme.py" if done.returncode else ""


def is_built(root: Path, version: str) -> str:
    """The wheel and the source distribution of the version are there, and not older."""
    dist = root / "dist"
    wheels = [*dist.glob(f"oomph-{version}-*manylinux*.whl")]
    sources = [*dist.glob(f"oomph-{version}.tar.gz")]
    if not wheels or not sources:
        what = "wheel" if not wheels else "source distribution"
        return f"dist/ has no {what} of {version}: run make wheel"
    made = min(path.stat().st_mtime for path in (*wheels, *sources))
    committed = int(git(root, "log", "-1", "--format=%ct"))
    return (
        "dist/ is older than the last commit: run make wheel"
        if made < committed
        else ""
    )


def was_run_on_all_versions(root: Path, version: str) -> str:
    """What is in dist/ passed the checks and tests of all PyTorch versions."""
    results = root / "benchmarks" / "results" / "versions.json"
    if not results.exists():
        return f"{results.relative_to(root)} is missing: run make test-versions"
    wheels = [*(root / "dist").glob(f"oomph-{version}-*.whl")]
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in wheels]
    lacking = []
    for minor, found in json.loads(results.read_text()).items():
        if found.get("oomph") != version:
            lacking.append(f"PyTorch {minor}: of oomph {found.get('oomph', '?')}")
        elif digests and found.get("wheel_sha256") not in digests:
            lacking.append(f"PyTorch {minor}: of another wheel than that in dist/")
        for name, error in found["checks"].items():
            if error:
                lacking.append(f"PyTorch {minor}: {name}: {error}")
    return "\n".join([*lacking, "run make test-versions"]) if lacking else ""


def was_run_on_hardware(root: Path, version: str) -> str:
    """`make gpu` was run on a real card with this version."""
    results = root / "benchmarks" / "results"
    known = [json.loads(path.read_text()) for path in results.glob("gpu-*.json")]
    if any(f"oomph {version}" in found["versions"] for found in known):
        return ""
    return (
        "run make gpu on a machine with a GPU and commit the result; without one, the "
        "notes of the release say that nothing is proven on hardware"
    )


CHECKS = [
    Check("everything is committed, and there is no tag yet", is_committed),
    Check("`oomph.__version__` is the version, later than the last", is_in_package),
    Check("the changelog has a section for it, with the date", is_in_changelog),
    Check("old names whose release has passed are gone", are_old_names_gone),
    Check("the generated parts of the documentation are written", are_pages_written),
    Check("`dist/` has the wheel and the source distribution", is_built),
    Check("other versions of PyTorch were tested", was_run_on_all_versions),
    Check("a real card was tested", was_run_on_hardware),
]


def checklist() -> Iterable[str]:
    """The list, for the documentation."""
    for check in CHECKS:
        yield f"* {check.says}"


def main() -> int:
    """Ticks the list."""
    if len(sys.argv) != 2 or not number(sys.argv[1]):
        print(f"give the version, such as 0.1.0\n\n{__doc__}", file=sys.stderr)
        return 2
    lacking = 0
    for check in CHECKS:
        missing = check.missing(ROOT, sys.argv[1])
        lacking += bool(missing)
        print(f"[{' ' if missing else 'x'}] {check.says}")
        if missing:
            print(textwrap.indent(missing, "    "))
    return 1 if lacking else 0


if __name__ == "__main__":
    raise SystemExit(main())
