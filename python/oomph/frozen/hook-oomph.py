"""Read by PyInstaller where a program imports oomph."""

from __future__ import annotations

from PyInstaller.utils.hooks import collect_all, collect_dynamic_libs

datas, binaries, hiddenimports = collect_all("oomph")
binaries += collect_dynamic_libs("oomph", search_patterns=["*.so", "*.so.*"])
hiddenimports += ["oomph_autoload"]
