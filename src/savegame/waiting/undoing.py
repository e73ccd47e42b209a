"""Undo a step whose next one fails. Touches nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class on_failure:  # noqa: N801 - reads like contextlib's
    """Call `undo` if the block raises anything, also Ctrl-C; the error passes on."""

    __slots__ = ("_undo",)

    def __init__(self, undo: Callable[[], object]) -> None:
        self._undo = undo

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        if kind is not None:
            self._undo()
