"""Everything that happens at `os.fork`: no store is in use meanwhile, and the child starts afresh. Touches nothing.

Python ignores errors raised in here and forks all the same. So a wait for a store that is interrupted (Ctrl-C) is repeated: a
child must not inherit a store in use, nor the parent keep what was held for the fork.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Generator
from inspect import GEN_SUSPENDED, getgeneratorstate
from typing import Final, Protocol, TypeAlias

WAITS: Final = 100
"""How often an interrupted wait is repeated."""

Still: TypeAlias = Generator[None, None, None]


class Renewable(Protocol):
    """Something that must start afresh in a forked child."""

    def after_fork_in_child(self) -> None:
        """Start afresh, without touching what belongs to the parent."""


class Forking(Renewable, Protocol):
    """Something that must not be in use while the process forks; renewed before its generator is closed in the child."""

    def still(self) -> Still:
        """Waits until it is not in use; then it cannot be used until the generator is closed."""


class _Held(threading.local):
    """What the thread that forks holds meanwhile; None stands for its turn."""

    def __init__(self) -> None:
        self.things: dict[Forking | None, Still] = {}


_open: weakref.WeakSet[Forking] = weakref.WeakSet()
_renewable: weakref.WeakSet[Renewable] = weakref.WeakSet()
_held = _Held()
_turn = threading.RLock()


def take_along(thing: Forking) -> None:
    """Call its verbs at every fork for as long as it lives."""
    _open.add(thing)


def leave_alone(thing: Forking) -> None:
    """Call them no more: it was closed."""
    _open.discard(thing)


def renew_in_child(thing: Renewable) -> None:
    """Have it start afresh in every forked child for as long as it lives."""
    _renewable.add(thing)


def call_in_child(function: Callable[[], object]) -> None:
    """Call a function in every forked child. If it fails, Python reports that and calls the others."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


def _one_at_a_time() -> Still:
    with _turn:
        yield


def _before_fork() -> None:
    raised: BaseException | None = None
    for _ in range(WAITS):
        try:
            _hold(None, _one_at_a_time)
            for thing in list(_open):
                _hold(thing, thing.still)
            break
        except BaseException as error:  # noqa: BLE001 - raised below, for Python to report it
            raised = error
    if raised is not None:
        raise raised


def _hold(thing: Forking | None, still: Callable[[], Still]) -> None:
    if thing in _held.things:
        return
    waiting = still()
    try:
        next(waiting)
    finally:
        if getgeneratorstate(waiting) == GEN_SUSPENDED:  # also where an interrupt came right after
            _held.things[thing] = waiting


def _go_on() -> None:
    while _held.things:
        _, waiting = _held.things.popitem()
        waiting.close()


def _after_fork_in_child() -> None:
    for thing in list(_open):
        thing.after_fork_in_child()
    _go_on()


def _renew_in_child() -> None:
    for thing in list(_renewable):
        thing.after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_go_on, after_in_child=_after_fork_in_child)
    os.register_at_fork(after_in_parent=_go_on)  # again: an interrupt that came during the fork ends the first
call_in_child(_renew_in_child)
