"""oomph: a CUDA memory allocator for PyTorch that goes on where memory ends.

Import it before the first use of CUDA and call :func:`install`, or run a script with
``oomph run``, or set ``OOMPH_CONF`` in the environment.

Importing the package imports neither PyTorch nor a driver.
"""

from oomph.installation import install, is_installed, step
from oomph.region import no_offload
from oomph.settings import SettingsError
from oomph.stats import stats

__version__ = "0.1.0"

__all__ = [
    "SettingsError",
    "install",
    "is_installed",
    "no_offload",
    "stats",
    "step",
]
