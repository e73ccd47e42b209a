"""Functions of the user's in code that cannot await: asynchronous ones are refused, with the next step. Touches errors."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final, TypeVar

from savegame.errors import InvalidInputError

T = TypeVar("T")

OPEN_ASYNC: Final = "open the vault with savegame.open_async, or pass an ordinary function"


def refuse_asynchronous(function: Callable[..., Any], what: str, advice: str = OPEN_ASYNC) -> None:
    """Raise InvalidInputError for a function that returns something to await."""
    if inspect.iscoroutinefunction(function):
        raise InvalidInputError(f"{what} is asynchronous, and nothing here can await it; {advice}")


def plain_result(value: T, what: str, advice: str = OPEN_ASYNC) -> T:
    """What a user's function returned. Raises InvalidInputError for something to await; a coroutine is closed unbegun."""
    if not inspect.isawaitable(value):
        return value
    if inspect.iscoroutine(value):
        value.close()
    raise InvalidInputError(
        f"{what} is asynchronous: it returned a {type(value).__name__}, and nothing here can await it; {advice}"
    )
