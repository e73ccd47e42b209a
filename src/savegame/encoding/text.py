"""Any stored value as text, whatever its keys and however long its numbers. Pure.

The texts are not escaped: surfaces do that for their terminal or page.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

_LONG_INT: Final = 10_000
"""Numbers of this many bits are written in hexadecimal: Python refuses decimal digits for much longer ones."""


class _Key(str):
    """The text of a key that is not text: never equal to a text key, so that no entry hides another."""

    __slots__ = ()
    __eq__ = object.__eq__
    __hash__ = object.__hash__


def plain_text(value: Any, *, indent: int | None = None) -> str:
    """Any stored value as text: texts unchanged, other values as JSON for people, on one line or indented."""
    return value if isinstance(value, str) else json.dumps(_to_json(value), ensure_ascii=False, indent=indent)


def number_text(number: int) -> str:
    """A whole number in decimal digits, or hexadecimal (`0x…`) if it has thousands of them."""
    return hex(number) if _is_long(number) else str(number)


def written(value: Any, write: Callable[[Any], str] = str) -> str:
    """`str` or `repr` of a value, even if it contains a number with more digits than Python writes."""
    if type(value) is int:
        return number_text(value)
    try:
        return write(value)
    except ValueError:
        return f"<{type(value).__qualname__} with too many digits to show>"


def key_text(key: Any) -> str:
    """A key of a dict as text."""
    return key if isinstance(key, str) else written(key, repr)


def format_path(path: tuple[Any, ...]) -> str:
    """A path as text: `("messages", 3, "content")` is `messages[3].content`."""
    out = ""
    for part in path:
        if isinstance(part, str) and part.isidentifier():
            out += f".{part}" if out else part
        else:
            out += f"[{repr_text(part)}]"
    return out


def repr_text(value: Any) -> str:
    """`repr` that never fails, even for numbers with more digits than Python writes and classes with a faulty `repr`."""
    try:
        return repr(value)
    except ValueError:
        return f"<{type(value).__qualname__} with too many digits to show>"
    except Exception as error:  # noqa: BLE001 - the text is part of another message, which must not get lost
        return f"<{type(value).__qualname__} whose repr raises {type(error).__name__}>"


def _to_json(value: Any) -> Any:
    """A value that `json.dumps` accepts."""
    if isinstance(value, int) and _is_long(value):
        return number_text(value)
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else _Key(key_text(key)): _to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_to_json(item) for item in value]
    return f"({len(value)} bytes)" if isinstance(value, (bytes, bytearray)) else written(value)


def _is_long(number: int) -> bool:
    return number.bit_length() >= _LONG_INT
