"""Does as ``oomph_simulate.pth`` where Python finds oomph by ``PYTHONPATH`` alone.

Python reads such files in its own folders of packages. :mod:`oomph.setup.places` puts
the folder of this module, and oomph's, into that variable.
"""

from __future__ import annotations

import importlib
import os
import sys

# The one that this hides comes next, and is the module of this name from then on.
_own = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _own]
del sys.modules["sitecustomize"]
try:
    importlib.import_module("sitecustomize")
except ModuleNotFoundError as error:
    if error.name != "sitecustomize":
        raise
    sys.modules["sitecustomize"] = type(sys)("sitecustomize")  # Python expects one

if any(name.startswith("OOMPH_") for name in os.environ):
    importlib.import_module("oomph_autoload").start()
