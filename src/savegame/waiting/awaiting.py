"""Refuses asynchronous functions of users in code that cannot await them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final, TypeVar

from savegame.errors import InvalidInputError

T = TypeVar("T")

OPEN_ASYNC: Final = "open the vault with savegame.open_async, or pass an ordinary function"


def refuse_asynchronous(function: Callable[..., Any], what: str, advice: str = OPEN_ASYNC) -> None:
    """Raise InvalidInputError for an asynchronous function."""
    if inspect.iscoroutinefunction(function):
        raise InvalidInputError(f"{what} is asynchronous and cannot be awaited here; {advice}")


def plain_result(value: T, what: str, advice: str = OPEN_ASYNC) -> T:
    """Return the result of a user's function. Raises InvalidInputError for an awaitable, and closes a coroutine unstarted."""
    if not inspect.isawaitable(value):
        return value
    if inspect.iscoroutine(value):
        value.close()
    raise InvalidInputError(
        f"{what} is asynchronous: it returned a {type(value).__name__}, which cannot be awaited here; {advice}"
    )
