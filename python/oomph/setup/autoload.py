"""Installs oomph at the end of ``import torch``, which calls :mod:`oomph_autoload`.

It raises only if ``OOMPH_CONF`` says ``required:yes``, since that breaks ``import
torch``.
"""

from __future__ import annotations

import os


def main() -> None:
    """Does what the environment asks for.

    Raises:
        Exception: Whatever stands in the way, if oomph is required.
    """
    from oomph import settings
    from oomph.base import log

    try:
        from oomph.setup import environment

        environment.apply()
    except Exception as error:
        if settings.is_required(os.environ.get(settings.VARIABLE, "")):
            raise
        log.not_in_use(str(error))
