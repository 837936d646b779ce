"""Starts Python processes on the simulated GPU: forks of one that imported PyTorch.

Importing PyTorch takes three seconds of a core, and hundreds of tests want a process of
their own. The server loads the simulated driver and imports PyTorch, but describes no
card and makes no call; a fork then does what a Python does that is started with its
environment: it loads the card and applies OOMPH_CONF.

Requests come over the socket of the server's standard input, one at a time: JSON, with
the descriptors of the child's three standard files and of a socket, to which the server
writes the child's number, and how it ended (as Popen.returncode).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import types
from typing import Any

from oomph import simulate

REQUEST_BYTES = 1 << 20
PRELOADED = ("numpy", "torch")  # no Triton: simulate.triton sees its import


def preload() -> None:
    """Loads what every child needs and none may have used."""
    for name in (simulate._DRIVER, *simulate._LIBRARIES):
        simulate._open(name, ctypes.RTLD_GLOBAL)
    for module in PRELOADED:
        importlib.import_module(module)
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
    while True:
        readable = select.select([server, *children.running], [], [])[0]
        for ended in readable:
            if ended is not server:
                children.reap(ended)
        if server not in readable:
            continue
        text, files, _, _ = socket.recv_fds(server, REQUEST_BYTES, 4)
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
            return json.loads(text)
        children.add(pid, reply)


def become(request: dict[str, Any]) -> None:
    """Makes this process what a Python is that was started with an environment."""
    os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = request["argv"]
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:2] = [request["path"], *filter(None, paths)]  # for "" and this folder
    torch = sys.modules.pop("torch")  # load() comes before it
    simulate.load(os.environ["OOMPH_SIMULATE"])
    sys.modules["torch"] = torch
    torch._import_device_backends()  # oomph's among them, as at the end of its import


def serve() -> types.CodeType:
    """Serves requests; in each child it gives what that is to run as ``__main__``."""
    preload()
    request = next_request(socket.socket(fileno=os.dup(0)))
    become(request)
    main = vars(sys.modules["__main__"])
    del main["forkserver"]
    if request["file"] is not None:
        main["__file__"] = request["file"]
    return compile(request["code"], request["file"] or "<string>", "exec")
