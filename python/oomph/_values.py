"""Values and costs of the simulated GPU's operators, for the PyTorch that runs.

In the place of this module comes the extension module that fits.
"""

import sys

from oomph.base import glue

sys.modules[__name__] = glue.open_module("_values")
