"""What is done to the modules of other packages once they are imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

Then = Callable[[ModuleType], None]


class _Finder(MetaPathFinder):
    """Has the other finders find the modules that are waited for."""

    def __init__(self) -> None:
        self.waiting: dict[str, Then] = {}

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        then = self.waiting.get(name)
        if then is None:
            return None
        spec = self._found_by_others(name, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_then(module: ModuleType) -> None:
                load(module)
                if module.__name__ == name:  # some loaders serve several
                    then(module)

            spec.loader.exec_module = load_and_then  # type: ignore[method-assign]
        return spec

    def _found_by_others(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: ModuleSpec | None = find(name, path, target)
            if spec is not None:
                return spec
        return None


_finder = _Finder()


def when_imported(name: str, then: Then) -> None:
    """Calls a function with a module once it is imported; at once if it has been.

    Nothing is imported for that. What the function raises comes out of the import.

    Args:
        name: Of the module, in full; a later call with it replaces the function.
        then: The function.
    """
    _finder.waiting[name] = then
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    if name in sys.modules:
        then(sys.modules[name])
