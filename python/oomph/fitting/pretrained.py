"""Models of which only the configuration is on this machine.

Their weights decide nothing, and may be hundreds of gigabytes. So ``from_pretrained``
of transformers and of diffusers fetches none: if they are not here, it makes the model
from its configuration, with weights as of one that is to be trained.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from oomph.base import imports

_HUB = "cache_dir", "force_download", "token", "revision", "subfolder"
_PATH = "pretrained_model_name_or_path"  # the first argument of both
_made: list[str] = []


def arrange() -> None:
    """Has both libraries do so, once they are imported."""
    wait = imports.when_imported
    wait("transformers.modeling_utils", _wrapped("PreTrainedModel", _of_transformers))
    wait("diffusers.models.modeling_utils", _wrapped("ModelMixin", _of_diffusers))


def made() -> list[str]:
    """Of which names or folders the weights were not here."""
    return _made


def _wrapped(name: str, make: Callable[..., Any]) -> Callable[[ModuleType], None]:
    """What wraps ``from_pretrained`` of a class.

    Args:
        name: Of the class.
        make: Makes a model without weights, by the method as it was and its arguments.
    """

    def wrap(module: ModuleType) -> None:
        of = getattr(module, name)
        load = of.__dict__["from_pretrained"].__func__

        @functools.wraps(load)
        def from_pretrained(cls: type[Any], /, *args: Any, **kwargs: Any) -> Any:
            path, *others = args or (kwargs.pop(_PATH, None),)
            if path is None or kwargs.get("state_dict") is not None:
                return load(cls, path, *others, **kwargs)
            try:
                here = {**kwargs, "local_files_only": True}
                return load(cls, path, *others, **here)
            except OSError:
                model = make(load, cls, path, *others, **kwargs)
            _made.append(os.fspath(path))
            return model

        of.from_pretrained = classmethod(from_pretrained)

    return wrap


def _of_transformers(load: Any, cls: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
    config = kwargs.pop("config", None)
    config = path if config is None else config
    return load(cls, None, *args, config=config, state_dict={}, **kwargs)


def _of_diffusers(load: Any, cls: Any, path: Any, **kwargs: Any) -> Any:
    known = {name: kwargs[name] for name in _HUB if name in kwargs}
    model = cls.from_config(cls.load_config(path, **known))
    dtype = kwargs.get("torch_dtype")
    return (model if dtype is None else model.to(dtype)).eval()
