"""Writes the tables of README.md that the code knows; --check only compares."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
sys.path.insert(0, str(ROOT / "python"))

from oomph.settings import SETTINGS  # noqa: E402
from oomph.sizes import format_size  # noqa: E402
from oomph.stats import OWN_FIGURES  # noqa: E402


def row(*cells: str) -> str:
    """A row of a table."""
    return f"| {' | '.join(cells)} |"


def default_of(value: object) -> str:
    """A default as users write it."""
    if value is None:
        return "none"
    return f"`{format_size(value)}`" if isinstance(value, int) else f"`{value}`"


def settings() -> Iterable[str]:
    """The table of the settings."""
    yield row("key", "allowed", "default", "meaning")
    yield row("---", "---", "---", "---")
    for key, setting in SETTINGS.items():
        default = default_of(setting.default).replace(" ", "")
        yield row(f"`{key}`", setting.allowed, default, setting.meaning)


def statistics() -> Iterable[str]:
    """The table of oomph's own figures."""
    yield row("key", "meaning")
    yield row("---", "---")
    for key, meaning in OWN_FIGURES.items():
        yield row(f"`{key}`", meaning)


def filled(text: str) -> str:
    """The text with its tables as they should be."""
    for name, rows in (("settings", settings()), ("statistics", statistics())):
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        table = "\n".join(rows)
        text = f"{before}{begin}\n{table}\n\n{end}{after}"
    return text


def main() -> int:
    """Gives 1 if the tables are to be checked and differ."""
    before = README.read_text()
    after = filled(before)
    if "--check" in sys.argv:
        if before != after:
            print("README.md: the tables are out of date: python tools/readme.py")
        return int(before != after)
    README.write_text(after)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
