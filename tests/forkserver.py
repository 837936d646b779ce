"""Starts Python processes on the simulated GPU: forks of one that imported PyTorch.

Importing PyTorch takes two seconds of a core, and hundreds of tests want a process of
their own. The server loads the simulated driver and imports PyTorch, but describes no
card and makes no call; a fork then does what a Python does that is started with its
command line and environment: it loads the card, imports oomph when it comes to that,
and applies OOMPH_CONF when PyTorch is imported. If it is to become another Python by
os.execve, it starts again as that one, with its own number.

Requests come over the socket of the server's standard input, one at a time: JSON, with
the descriptors of the child's three standard files and of a socket, to which the server
writes the child's number, and how it ended (as Popen.returncode). Forks ask over a
socket of their own, which all of them have: torchrun's ranks are forks if it is one.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import types
import weakref
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any, NoReturn

import processes
from oomph import simulate

REQUEST_BYTES = 1 << 20
Program = tuple[types.CodeType, dict[str, Any]]  # what exec() takes
PRELOADED = (  # nothing that imports Triton, as torch._dynamo: simulate.triton sees it
    *("numpy", "torch"),
    # Half of what torch._dynamo imports, and so whoever makes an optimizer.
    *("torch.fx.experimental.symbolic_shapes", "torch.distributed.fsdp"),
    "torch.distributed.launcher.api",  # of torchrun
    # Of the other half, what needs neither torch._dynamo nor a variable.
    *("numpy.random", "torch._numpy", "torch.onnx", "torch.nn.utils._expanded_weights"),
    *("torch._higher_order_ops.triton_kernel_wrap", "torch._functorch.make_functional"),
    "torch._functorch._aot_autograd.graph_capture_wrappers",
)
_ELASTIC = "torch.distributed.elastic.multiprocessing"


class Preloaded:
    """What the server has imported, and no child takes apart when it ends.

    Python clears all modules when it ends, which copies the pages that a child shares
    with the server: a third of what a short child costs. Those that a child imports
    itself, oomph's among them, and its program's own variables are cleared as always.
    """

    def __init__(self) -> None:
        self.before = set(sys.modules)
        self.modules: dict[str, types.ModuleType] = {}
        atexit.register(self.leave)  # before all others, and so called after them

    def keep(self) -> None:
        """Keeps what was imported since this began, until the process is gone."""
        new = sys.modules.keys() - self.before
        self.modules = {name: sys.modules[name] for name in new}
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.modules))
        # PyTorch would unregister its own operators, one by one.
        for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
            finalizer.atexit = False

    def leave(self) -> None:
        """Has Python's end overlook them: it finds modules where imports do."""
        for name, module in self.modules.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


def preload() -> None:
    """Loads what every child needs and none may have used."""
    preloaded = Preloaded()
    simulate.preload()
    for module in PRELOADED:
        importlib.import_module(module)
    preloaded.keep()
    gc.freeze()  # the collections of a child leave alone what was there before it


class Children:
    """The processes that run, each with a descriptor that says when it ends."""

    def __init__(self) -> None:
        self.running: dict[int, tuple[int, socket.socket]] = {}

    def add(self, pid: int, reply: socket.socket) -> None:
        """Says the number of a process, and watches it."""
        self.running[os.pidfd_open(pid)] = pid, reply
        reply.sendall(f"{pid}\n".encode())

    def reap(self, ended: int) -> None:
        """Says how a process ended."""
        pid, reply = self.running.pop(ended)
        os.close(ended)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with reply, contextlib.suppress(BrokenPipeError):  # nobody waits for it
            reply.sendall(f"{code}\n".encode())

    def kill(self) -> None:
        """Kills them, and the processes that they started."""
        for pid, _ in self.running.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)

    def forget(self) -> None:
        """Closes what is the server's, in a child."""
        for ended, (_, reply) in self.running.items():
            os.close(ended)
            reply.close()


def next_request(server: socket.socket) -> dict[str, Any]:
    """Forks for each request; returns in the child, with what it is asked to be."""
    children = Children()
    forks, asking = socket.socketpair(type=socket.SOCK_SEQPACKET)
    while True:
        readable = select.select([server, forks, *children.running], [], [])[0]
        for ended in readable:
            if ended not in (server, forks):
                children.reap(ended)
        asked = next((s for s in (server, forks) if s in readable), None)
        if asked is None:
            continue
        text, files, _, _ = socket.recv_fds(asked, REQUEST_BYTES, 4)
        if not text:  # whoever asked is gone
            children.kill()
            sys.exit(0)
        pid = os.fork()
        if pid == 0:
            children.forget()
            for number, file in enumerate(files[:3]):
                os.dup2(file, number)
        for file in files[:3]:
            os.close(file)
        reply = socket.socket(fileno=files[3])
        if pid == 0:
            reply.close()
            server.close()
            forks.close()
            processes.Fork.use(asking)
            return json.loads(text)
        children.add(pid, reply)


class FirstImport:
    """Finds PyTorch where it is imported: the one that was, before the fork."""

    def __init__(self) -> None:
        self._torch = sys.modules.pop("torch")

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """What importing a module would find; another PyTorch may stand before ours."""
        if name != "torch":
            return None
        found = PathFinder.find_spec(name, path)
        if found is not None and found.origin == self._torch.__file__:
            found.loader = self
        return found

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        """PyTorch as it is before the last line of its import."""
        return self._torch

    def exec_module(self, torch: Any) -> None:
        """Ends the import: that line loads oomph's plug-in, among others."""
        if torch._is_device_backend_autoload_enabled():
            torch._import_device_backends()
        sys.meta_path.remove(self)


class Replaced(BaseException):
    """This process is to become another Python: ``start`` begins that one."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.start = functools.partial(begin, command[1:], environment)


def execve(path: str, command: Sequence[str], variables: Mapping[str, str]) -> NoReturn:
    """Takes the place of os.execve."""
    if path != sys.executable:
        _execve(path, command, variables)
    raise Replaced(command, variables)


_execve = os.execve


def begin(command: Sequence[str], environment: Mapping[str, str]) -> Program:
    """Does what a Python does that is started, up to its program, which it gives.

    Args:
        command: The arguments of Python: ``-u`` or not, a script, or ``-c`` or ``-m``
            with what follows; then the program's.
        environment: All of it.
    """
    os.environ.clear()
    os.environ.update(environment)
    if command[0] == "-u":
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        command = command[1:]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    name = "<string>"
    if command[0] == "-c":
        _, text, *arguments = command
        sys.argv, folder = ["-c", *arguments], ""
    elif command[0] == "-m":
        _, module, *arguments = command
        sys.argv, folder = ["-m", *arguments], os.getcwd()
        text = f"__import__('runpy')._run_module_as_main({module!r})"
    else:
        main.__file__ = name = os.path.abspath(command[0])
        sys.argv, folder = list(command), str(Path(name).resolve().parent)
        text = Path(name).read_text()
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [folder, *filter(None, paths), *_PATHS]
    for known in [n for n in sys.modules if n.partition(".")[0] == "oomph"]:
        del sys.modules[known]
    if processes.FITS & {*sys.argv[1:2]}:
        fork_servers()
    elif processes.FITTING in command:
        processes.Fork.forget()
    if any(name.startswith("OOMPH_") for name in environment):  # as the .pth does
        importlib.import_module("oomph_autoload").start()
    return compile(text, name, "exec"), vars(main)


def start_rank(
    args: Sequence[str], env: dict[str, str], stdout: Any, stderr: Any, **_: Any
) -> processes.Fork | subprocess.Popen[bytes]:
    """Takes the place of Popen where torchrun starts a rank."""
    return processes.start(list(args), env, files=[0, stdout or 1, stderr or 2])


class Piped:
    """A fork that is written to and read: takes the place of such a Popen."""

    def __init__(self, args: list[str], env: dict[str, str], **_: Any) -> None:
        asked, self.stdin = map(os.fdopen, os.pipe(), ("rb", "wb"))
        self.stdout, said = map(os.fdopen, os.pipe(), ("rb", "wb"))
        with asked, said:
            self._process = processes.start(args, env, files=[asked, said, 2])
        self.wait = self._process.wait


def fork_servers() -> None:
    """Has oomph fork the server of its scripts from this one, too."""
    launcher = importlib.import_module("oomph.fitting.process.launcher")
    launcher.subprocess = types.SimpleNamespace(PIPE=subprocess.PIPE, Popen=Piped)


_PATHS: list[str] = []  # where modules are for all


def end_early() -> None:
    """Leaves out what PyTorch's libraries do when a process exits: 0.2 s of a core.

    All else is done: Python's end, and then that of the libraries loaded from now on.
    """
    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)


def serve() -> Program:
    """Serves requests; returns in each child, with what that is to run."""
    preload()
    request = next_request(socket.socket(fileno=os.dup(0)))
    os.setsid()
    os.chdir(request["cwd"])
    given = [Path(p).resolve() for p in os.environ["PYTHONPATH"].split(os.pathsep)]
    _PATHS[:] = [p for p in sys.path if p and Path(p).resolve() not in given]
    end_early()
    os.execve = execve
    ranks = f"{_ELASTIC}.subprocess_handler.subprocess_handler"
    sys.modules[ranks].Popen = start_rank  # type: ignore[attr-defined]
    sys.meta_path.insert(0, FirstImport())
    return begin(request["command"], request["environment"])
