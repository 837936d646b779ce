"""Another process, which shares memory with that of a test and does what it asks."""

from __future__ import annotations

from typing import Any

import torch

ANSWER_S = 100


def serve(kind: type, requests: Any, replies: Any) -> None:
    """The main program of the other process."""
    from remote import check_sound

    other = kind()
    while True:
        name, args = requests.get()
        try:
            reply = getattr(other, name)(*args)
            del args
            check_sound()
            replies.put((reply, None))
            del reply
        except Exception as error:
            replies.put((None, f"{type(error).__name__}: {error}"))


class Peer:
    """The other process, as seen from the first.

    Calls name a method of its one object, which is of the kind given.
    """

    def __init__(self, kind: type) -> None:
        context = torch.multiprocessing.get_context("spawn")
        self.requests, self.replies = context.Queue(), context.Queue()
        ends = (kind, self.requests, self.replies)
        self.process = context.Process(target=serve, args=ends, daemon=True)
        self.process.start()

    def __call__(self, name: str, *args: Any) -> Any:
        self.requests.put((name, args))
        reply, error = self.replies.get(timeout=ANSWER_S)
        if error is not None:
            raise RuntimeError(error)
        return reply


_peers: dict[type, Peer] = {}


def peer_of(kind: type) -> Peer:
    """The one other process of a kind that this process has."""
    if kind not in _peers:
        _peers[kind] = Peer(kind)
    return _peers[kind]
