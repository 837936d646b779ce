"""What PyInstaller learns of oomph, by its entry point ``hook-dirs``.

It finds what is imported by name alone, and libraries that are linked: not the glue and
the simulated GPU, which are chosen by PyTorch's version, nor :mod:`oomph_autoload`,
which PyTorch's plug-in entry point names.
"""

from __future__ import annotations

from pathlib import Path


def folders() -> list[str]:
    """The folders of the hooks."""
    return [str(Path(__file__).parent)]
