"""Models whose weights are not on this machine.

They decide nothing, and may be hundreds of gigabytes. So ``from_pretrained`` of
transformers and of diffusers fetches none: if they are not here, it makes the model
from its configuration, with weights as of one that is to be trained. Nor do timm, and
``torch.hub.load_state_dict_from_url``, by which torchvision loads: the model keeps the
weights that it was made with.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any
from urllib.parse import urlparse

import torch
from torch.nn.modules.module import _IncompatibleKeys

from oomph.base import imports

_HUB = "cache_dir", "force_download", "token", "revision", "subfolder"
_PATH = "pretrained_model_name_or_path"  # the first argument of both
_made: list[str] = []


def arrange(fetches: bool = False) -> None:
    """Has these libraries do so, once they are imported.

    Args:
        fetches: Whether timm and ``torch.hub`` fetch weights all the same: the script
            reads them itself.
    """
    wait = imports.when_imported
    wait("transformers.modeling_utils", _wrapped("PreTrainedModel", _of_transformers))
    wait("diffusers.models.modeling_utils", _wrapped("ModelMixin", _of_diffusers))
    if not fetches:
        wait("timm.models._hub", _fetch_no_weights)
        wait("timm.models._builder", _wrap_timm)
        _wrap_hub()


def made() -> list[str]:
    """Of which names, folders or addresses the weights were not here."""
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


# ---- Models that are made before their weights are loaded


class _NotHere(dict[str, Any]):
    """A state that is not on this machine; whoever loads it keeps its own."""


def _wrap_hub() -> None:
    fetch, load = torch.hub.load_state_dict_from_url, torch.nn.Module.load_state_dict

    @functools.wraps(fetch)
    def load_state_dict_from_url(
        url: str, model_dir: str | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        folder = model_dir or os.path.join(torch.hub.get_dir(), "checkpoints")
        name = kwargs.get("file_name") or os.path.basename(urlparse(url).path)
        if os.path.exists(os.path.join(folder, name)):
            return fetch(url, model_dir, *args, **kwargs)
        _made.append(url)
        return _NotHere()

    @functools.wraps(load)
    def load_state_dict(
        self: torch.nn.Module, state_dict: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if isinstance(state_dict, _NotHere):
            return _IncompatibleKeys([], [])
        return load(self, state_dict, *args, **kwargs)

    torch.hub.load_state_dict_from_url = load_state_dict_from_url
    torch.nn.Module.load_state_dict = load_state_dict  # type: ignore[method-assign]


def _fetch_no_weights(hub: Any) -> None:
    fetch = hub.hf_hub_download

    def hf_hub_download(repo_id: str, filename: str, **kwargs: Any) -> Any:
        is_weights = not filename.endswith(".json")
        return fetch(repo_id, filename, local_files_only=is_weights, **kwargs)

    hub.hf_hub_download = hf_hub_download


def _wrap_timm(builder: Any) -> None:
    load = builder.load_pretrained

    @functools.wraps(load)
    def load_pretrained(model: Any, *args: Any, **kwargs: Any) -> None:
        try:
            load(model, *args, **kwargs)
        except OSError:
            _made.append(model.pretrained_cfg["architecture"])

    builder.load_pretrained = load_pretrained
