"""Has mkdocs understand our docstrings.

``Example:`` begins an example, and ``:func:`name``` names a function.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):`([^`]+)`")


class Docstrings(griffe.Extension):
    """Turns them before they are parsed."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Turns the docstring of one object."""
        if obj.docstring is not None:
            text = re.sub(
                r"^( *)Example:$", r"\1Examples:", obj.docstring.value, flags=re.M
            )
            obj.docstring.value = ROLE.sub(r"`\1`", text)
