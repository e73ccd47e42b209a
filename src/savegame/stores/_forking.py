"""What stores do around `os.fork`: nothing is held while a process forks, and the child begins anew. Touches nothing."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol


class Forking(Protocol):
    """Something that must not be in use while the process forks."""

    def before_fork(self) -> None:
        """Wait until nobody uses it, and let nobody begin."""

    def after_fork_in_parent(self) -> None:
        """Go on."""

    def after_fork_in_child(self) -> None:
        """Begin anew, leaving alone what is the parent's."""


_open: weakref.WeakSet[Forking] = weakref.WeakSet()
_waiting: list[Forking] = []
_turn = threading.RLock()


def take_along(thing: Forking) -> None:
    """Call its three verbs at every fork for as long as it lives."""
    _open.add(thing)


def leave_alone(thing: Forking) -> None:
    """Call them no more: it was closed."""
    _open.discard(thing)


def _before_fork() -> None:
    _turn.acquire()
    _waiting[:] = list(_open)
    for thing in _waiting:
        thing.before_fork()


def _after_fork_in_parent() -> None:
    while _waiting:
        _waiting.pop().after_fork_in_parent()
    _turn.release()


def _after_fork_in_child() -> None:
    while _waiting:
        _waiting.pop().after_fork_in_child()
    _turn.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
