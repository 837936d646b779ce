"""Making oomph PyTorch's allocator."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from types import ModuleType
from typing import TYPE_CHECKING, Any

from oomph import _C, _extensions, guard
from oomph import settings as _settings
from oomph.base import collector, log, state
from oomph.diagnosis import oom_error
from oomph.memory import host, sites
from oomph.setup import (
    allocator_settings,
    batch_finders,
    known_streams,
    missing_card,
    neighbours,
    shared_tensors,
)
from oomph.steps import events

if TYPE_CHECKING:
    from typing_extensions import Unpack  # Python 3.11 has it in typing

_lock = threading.Lock()


def install(settings: str | None = None, **options: Unpack[_settings.Options]) -> None:
    """Makes oomph PyTorch's CUDA allocator in this process.

    Call it before CUDA is used. It imports PyTorch if need be. Calling it again with
    the same settings has no effect.

    Args:
        settings: A settings string, such as ``"offload:on-oom,device_limit:12GiB"``.
        **options: The same settings by name; they override the string.
            docs/settings.md has the table. Sizes are numbers of bytes or strings such
            as ``"12GiB"``; None is the default.

    Raises:
        SettingsError: A setting is unknown, or its value is not allowed.
        ModuleNotFoundError: PyTorch is not installed.
        RuntimeError: oomph is installed with other settings, or its modules were loaded
            anew. Or CUDA is in use already, PyTorch is not a CUDA build, or oomph was
            built for another version of PyTorch; with ``required="no"`` these, and a
            missing or old driver, are logged instead, and PyTorch keeps its own
            allocator.

    Example:
        >>> import oomph
        >>> oomph.install(device_limit="12GiB", host_limit="32GiB")
    """
    wanted = _settings.parse(settings) if settings else {}
    wanted.update(_settings.check(options))
    torch = _import_torch()
    with _lock:
        state.check_not_lost()
        if state.settings_are_fixed():
            _check_same(wanted)
            if state.is_replaced():
                raise RuntimeError(
                    "oomph was installed, but another allocator has replaced it "
                    "(torch.cuda.memory.change_current_allocator)"
                )
            return
        missing_card.report()
        complete = _settings.complete(wanted)
        try:
            _replace_allocator(torch, complete)
        except (RuntimeError, ImportError) as error:
            if complete["required"] != "no":
                raise
            log.not_in_use(str(error))
            return
        state.fix(complete)
        _attach(torch, complete)


def _import_torch() -> ModuleType:
    try:
        import torch  # may call back here, where OOMPH_CONF is set
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(
            "oomph needs PyTorch, which is not installed here: pip install "
            f"torch (this is {sys.executable})",
            name="torch",
        ) from None
    return torch


def _check_same(wanted: dict[str, Any]) -> None:
    fixed = state.settings()
    meant = _settings.complete({**fixed, **wanted})  # one may depend on another
    changed = [
        key
        for key in wanted
        if fixed[key] != meant[key] and key != "required"  # it is in use
    ]
    if changed:
        raise RuntimeError(
            "oomph is installed already, with other settings "
            f"({', '.join(f'{k} is {fixed[k]}, not {wanted[k]}' for k in changed)}"
            "); settings cannot change after that: change them where it is installed "
            "first, perhaps in OOMPH_CONF, or restart the notebook"
        )


def change(settings: str) -> None:
    """Changes how much memory may be taken, before CUDA is used.

    Args:
        settings: All settings, as :func:`install` had them but for ``host_limit``,
            ``device_limit``, and ``offload`` where its planner need not know.
    """
    complete = _settings.complete(_settings.parse(settings))
    with _lock:
        _C.configure(**_settings.for_core(complete))
        state.fix(complete)
        if complete["device_limit"] is not None:
            import torch

            _limit_memory_info(torch)


def rebuild_tensor(settings: dict[str, Any], /, *arguments: Any, **named: Any) -> Any:
    """A tensor that came from a process with oomph, which this one then needs, too.

    Args:
        settings: Of the other process.
        *arguments: Of PyTorch's ``rebuild_cuda_tensor``.
        **named: The same, by name.

    Raises:
        RuntimeError: oomph is not in use here, and cannot be any more.
    """
    if not state.is_installed():
        shared_tensors.check_not_late()
        install(**{**settings, "required": "yes"})
    return shared_tensors.rebuilt(*arguments, **named)


def withdraw() -> None:
    """Has PyTorch use the allocator that it had before, before CUDA is used.

    What oomph has attached to PyTorch stays, and finds that it is not installed.

    Raises:
        RuntimeError: CUDA is in use, or about to be.
    """
    from oomph import _torch

    with _lock:
        _torch.withdraw()
        state.fix(None)


def _load_torch_class(torch: ModuleType) -> ModuleType:
    """The extension module that holds PyTorch's class, if it fits this PyTorch."""
    if not hasattr(torch, "version"):
        raise RuntimeError(
            f"Python finds {', '.join(torch.__path__)} as torch, but there is no "
            "PyTorch in it: remove that folder, and install PyTorch"
        )
    if torch.version.cuda is None:
        raise RuntimeError(
            f"PyTorch {torch.__version__} is built for the CPU alone; oomph needs the "
            "CUDA build"
        )
    try:
        return _extensions.load("_torch", torch.__version__)
    except RuntimeError as error:
        from oomph.setup import versions  # what it needs is for errors alone

        others = versions.unused()
        if not others:
            raise
        raise RuntimeError("; ".join([str(error), *others])) from None


def _replace_allocator(torch: ModuleType, values: dict[str, Any]) -> None:
    """Makes oomph's class PyTorch's allocator, or raises and changes nothing."""
    torch_class = _load_torch_class(torch)
    if torch.cuda.is_initialized():
        raise RuntimeError(
            "CUDA is in use already, by PyTorch's own allocator. Install oomph before "
            "the first CUDA tensor, or run the script with 'oomph run', or set "
            "OOMPH_CONF"
        )
    _check_no_other()
    if values["required"] == "no":
        _C.find_driver()
    _C.configure(**_settings.for_core(values))
    torch_class.install()
    allocator_settings.follow(torch, torch_class)


def _check_no_other() -> None:
    """Raises if another allocator has taken the place of PyTorch's two."""
    name = state.allocator_name()
    if name not in ("native", "cudaMallocAsync"):
        raise RuntimeError(
            f"another allocator ({name}) has replaced PyTorch's, perhaps by "
            "torch.cuda.memory.change_current_allocator(), and a program can only "
            "have one: remove that call, or use that allocator in a "
            "torch.cuda.MemPool, which works beside oomph"
        )


def _attach(torch: ModuleType, values: dict[str, Any]) -> None:
    """Connects what else belongs to oomph: the log, steps, limits, the end."""
    from oomph.offload import idle

    _switch_registration_off()
    _C.set_rescue_hook(_note_rescue)
    _C.set_collector(collector.collect)
    _C.set_idle_hook(_idle_between_steps)
    sites.start()
    oom_error.start()
    _set_mode(values)
    if values["batch_finder"] == "auto":
        batch_finders.start()
    if _C.must_know_streams():
        known_streams.start()
    events.before_optimizer.append(idle.note)
    events.follow(torch)
    shared_tensors.follow(torch, values, rebuild_tensor)
    torch.cuda._lazy_call(
        state.is_replaced
    )  # once CUDA is in use, none can be replaced
    neighbours.report_calls_taken()
    if values["host_limit"] == "auto":
        torch.cuda._lazy_call(_share_host)
    if values["offload"] == "auto":
        torch.cuda._lazy_call(neighbours.report_one_memory)
    if values["leaks"] != "off":
        from oomph.leaks import current

        current.watch(values["leaks"])
    if values["device_limit"] is not None:
        _limit_memory_info(torch)
    if values["guard"] not in ("off", "fill"):
        guard.watch()
    atexit.register(log.finish)


def _share_host() -> None:
    """Divides the host's memory once more: launchers such as Ray say late by how many.

    Whoever calls this first of those that wait for CUDA may use it already; then what
    was decided stays.
    """
    _C.limit_host(host.default_limit_bytes())


def _set_mode(values: dict[str, Any]) -> None:
    """Has the planner know what it may do, where it has not the usual or nothing to."""
    offload, recompute = values["offload"], values["recompute"]
    usual = (("auto", "auto"), ("on-oom", "auto"), ("off", "off"))
    if (offload, recompute) in usual:
        return
    from oomph import planner
    from oomph.offload.devices import Mode

    mode = Mode(
        always=offload == "always",
        sends=offload != "off",
        recompute=recompute != "off",
        early=recompute == "always",
    )
    planner.set_mode(mode)


def _switch_registration_off() -> None:
    """Keeps NCCL from registering all memory, whose pages are exchanged.

    PyTorch reads the variables when it makes the first process group, which would have
    initialised CUDA: so it has not yet.
    """
    name = "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"
    for variable in (name, name.removeprefix("TORCH_")):
        value = os.environ.get(variable, "").lower()
        if value in ("1", "t", "true", "y", "yes"):
            os.environ[variable] = "0"
            log.logger.warning(
                "%s is switched off: NCCL would register memory whose pages oomph "
                "exchanges; NCCL can still register memory of "
                "torch.cuda.MemPool(pg.mem_allocator)",
                variable,
            )


def _note_rescue(device: int, size_bytes: int) -> None:
    """The first rescue of a step: it is logged, and the next step is planned."""
    from oomph import planner

    log.rescued(device, size_bytes)
    planner.note_shortage(device)


def _idle_between_steps(device: int) -> list[int]:
    """A capture needs room: says what may leave, and has the next step planned."""
    from oomph import planner
    from oomph.offload import idle

    planner.note_shortage(device)
    return idle.on_device(device)


def _limit_memory_info(torch: ModuleType) -> None:
    """Makes ``torch.cuda.mem_get_info`` agree with a device limit.

    PyTorch asks the CUDA runtime, which knows nothing of it.
    """
    from torch.cuda._utils import _get_device_index

    def mem_get_info(device: Any = None) -> tuple[int, int]:
        """Free and total bytes of a device, under oomph's device_limit."""
        torch.cuda.init()
        index = _get_device_index(device, optional=True)
        free_bytes, total_bytes = _C.memory_info(index)
        return free_bytes, total_bytes

    torch.cuda.mem_get_info = mem_get_info
    torch.cuda.memory.mem_get_info = mem_get_info
