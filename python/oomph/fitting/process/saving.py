"""Files of tensors that a script writes, and reads again, are kept as sizes alone.

A file of the script's would be written anew with values that mean nothing. So none is
written; what the script loads again that it has saved has the same structure, and
tensors of the same sizes, which hold nothing but where they are small.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from oomph.base import imports

_SMALL_BYTES = 4096  # of a tensor that is kept as it is, such as a count of steps


@dataclass(frozen=True)
class _Sizes:
    """A tensor that was saved."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    values: torch.Tensor | None  # on the CPU
    is_parameter: bool
    requires_grad: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _Sizes:
        is_small = tensor.numel() * tensor.element_size() <= _SMALL_BYTES
        return cls(
            tensor.shape,
            tensor.dtype,
            tensor.device,
            tensor.detach().cpu().clone() if is_small else None,
            isinstance(tensor, torch.nn.Parameter),
            tensor.requires_grad,
        )

    def made(self, device: torch.device) -> torch.Tensor:
        """One like it."""
        if self.values is not None:
            found = self.values.to(device, copy=True)
        else:
            found = torch.empty(self.shape, dtype=self.dtype, device=device)
        if self.is_parameter:
            return torch.nn.Parameter(found, self.requires_grad)
        return found.requires_grad_(self.requires_grad)


class _Writer(pickle.Pickler):
    """Pickles all but plain tensors, of which it keeps the sizes."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.tensors: dict[int, tuple[torch.Tensor, _Sizes]] = {}

    def persistent_id(self, obj: Any) -> int | None:
        """The key of a tensor; None: it is none."""
        if type(obj) not in (torch.Tensor, torch.nn.Parameter):
            return None
        if obj.layout is not torch.strided:
            return None
        if id(obj) not in self.tensors:  # holds it, so that no other gets its id
            self.tensors[id(obj)] = obj, _Sizes.of(obj)
        return id(obj)


class _Saved:
    """What a script has saved under a path."""

    def __init__(self, value: Any) -> None:
        file = io.BytesIO()
        writer = _Writer(file)
        writer.dump(value)
        self._sizes = {key: sizes for key, (_, sizes) in writer.tensors.items()}
        self._pickled = file.getvalue()

    def load(self, place: Callable[[torch.device], torch.device]) -> Any:
        """The same anew, each tensor on the device that its own leads to."""
        made: dict[int, torch.Tensor] = {}

        def find(key: int) -> torch.Tensor:
            if key not in made:
                sizes = self._sizes[key]
                made[key] = sizes.made(place(sizes.device))
            return made[key]

        reader = pickle.Unpickler(io.BytesIO(self._pickled))
        reader.persistent_load = find
        return reader.load()


_saved: dict[str, _Saved] = {}
_save, _load = torch.save, torch.load


def write_nothing() -> None:
    """From now on the script writes no files of tensors."""
    torch.save = _keep
    torch.load = _load_again
    imports.when_imported("safetensors.torch", _write_no_file)


def _keep(obj: Any, f: Any, *rest: Any, **named: Any) -> None:
    """Instead of ``torch.save``."""
    if isinstance(f, str | os.PathLike):
        _saved[os.path.abspath(f)] = _Saved(obj)
    elif isinstance(f, io.BytesIO):
        _save(obj, f, *rest, **named)


def _load_again(f: Any, map_location: Any = None, *rest: Any, **named: Any) -> Any:
    """``torch.load``, also of what was not written."""
    is_path = isinstance(f, str | os.PathLike)
    found = _saved.get(os.path.abspath(f)) if is_path else None
    if found is None:
        return _load(f, map_location, *rest, **named)
    return found.load(lambda device: _place(device, map_location))


def _place(device: torch.device, map_location: Any) -> torch.device:
    """Where a tensor of a device is loaded to."""
    if map_location is None:
        return device
    if isinstance(map_location, dict):
        return torch.device(map_location.get(str(device), device))
    if callable(map_location):
        storage = torch.empty(0).untyped_storage()
        found = map_location(storage, str(device))
        return device if found is None else torch.device(found.device)
    return torch.device(map_location)


def _write_no_file(safetensors: Any) -> None:
    safetensors.serialize_file = _nothing


def _nothing(*_: Any, **__: Any) -> None:
    """Instead of what writes a file."""
