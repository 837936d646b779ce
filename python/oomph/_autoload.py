"""PyTorch's plug-in entry point: installs oomph at the end of ``import torch``.

PyTorch calls :func:`main` in every process that imports it. It does nothing unless the
environment asks for something, and it never raises: that would break ``import torch``.
"""

from __future__ import annotations

import os


def main() -> None:
    """Does what the environment asks for."""
    if not any(name.startswith("OOMPH_") for name in os.environ):
        return
    import warnings

    try:
        from oomph import environment

        environment.apply()
    except Exception as error:
        warnings.warn(f"oomph is not in use: {error}", RuntimeWarning, stacklevel=2)
