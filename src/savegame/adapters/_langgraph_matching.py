"""Which items and namespaces of a long-term memory match: filters, conditions, words, vectors. Pure.

Vectors are stored with length 1, as 32-bit floats, so that their cosine is a sum of products. numpy is used if it is installed.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from operator import ge, gt, le, lt, mul
from typing import Any, Final

from langgraph.store.base import MatchCondition

from savegame.encoding.text import written
from savegame.encoding.words import terms_of, words_of
from savegame.errors import InvalidInputError

PREFIX_FROM: Final = 3
"""A word of a query with at least this many characters also finds words that begin with it."""

# -- filters ---------------------------------------------------------------------------------------


def fits(value: Mapping[str, Any], wanted: Mapping[str, Any] | None) -> bool:
    """Whether a value passes a filter: every key equal, or true for its operators. A dotted key leads into dicts.

    Raises InvalidInputError for an unknown operator.
    """
    return all(_equals(_field(value, key), expected) for key, expected in (wanted or {}).items())


def _field(value: Mapping[str, Any], key: str) -> Any:
    found: Any = value
    for part in [key] if key in value else key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _equals(found: Any, expected: Any) -> bool:
    if isinstance(expected, Mapping):
        if any(isinstance(name, str) and name.startswith("$") for name in expected):
            return all(_holds(found, operator, operand) for operator, operand in expected.items())
        return isinstance(found, Mapping) and all(_equals(found.get(key), inner) for key, inner in expected.items())
    if isinstance(expected, list | tuple):
        return isinstance(found, list | tuple) and len(found) == len(expected) and all(map(_equals, found, expected))
    return bool(found == expected)


_ORDERS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {"$gt": gt, "$gte": ge, "$lt": lt, "$lte": le}


def _holds(found: Any, operator: str, operand: Any) -> bool:
    """Whether an operator holds. Only numbers, or only texts, have an order: nothing else is larger or smaller."""
    if operator in ("$eq", "$ne"):
        return bool(found == operand) is (operator == "$eq")
    if operator not in _ORDERS:
        raise InvalidInputError(f"filter operator {operator!r} is unknown; one of: $eq, $ne, $gt, $gte, $lt, $lte")
    alike = any(isinstance(found, kind) and isinstance(operand, kind) for kind in (int | float, str))
    return alike and _ORDERS[operator](found, operand)


# -- namespaces ------------------------------------------------------------------------------------


def matches(namespace: tuple[str, ...], condition: MatchCondition) -> bool:
    """Whether a namespace begins or ends as a condition says; `*` stands for any one label. Raises InvalidInputError."""
    path = tuple(condition.path)
    if condition.match_type not in ("prefix", "suffix"):
        raise InvalidInputError(f'match_type {condition.match_type!r} is unknown; one of: "prefix", "suffix"')
    if len(namespace) < len(path):
        return False
    labels = namespace[: len(path)] if condition.match_type == "prefix" else namespace[len(namespace) - len(path) :]
    return all(wanted in ("*", label) for wanted, label in zip(path, labels, strict=True))


# -- words -----------------------------------------------------------------------------------------


def score_words(query: str, values: Sequence[Any]) -> list[float | None]:
    """How well values match the words of a query, from 0 to 1: the share of its words that occur; rare words weigh more.

    None for values in which no word occurs.
    """
    terms = [_needle(words_of(term.text), open_end=term.open) for term in terms_of(query)]
    texts = [f" {' | '.join(' '.join(words_of(text)) for text in _texts(value))} " for value in values]
    found = [{number for number, term in enumerate(terms) if term in text} for text in texts]
    counts = [sum(number in one for one in found) for number in range(len(terms))]
    weights = [math.log(1 + len(values) / max(1, count)) for count in counts]
    return [sum(weights[number] for number in one) / sum(weights) if one else None for one in found]


def _needle(words: list[str], *, open_end: bool) -> str:
    """What to look for in words that are separated by spaces."""
    return f" {' '.join(words)}" + ("" if open_end and words and len(words[-1]) >= PREFIX_FROM else " ")


def _texts(value: Any) -> Iterator[str]:
    """All texts and numbers in a value, with the keys of dicts."""
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, Mapping):
            waiting += [part for pair in found.items() for part in pair]
        elif isinstance(found, list | tuple | set | frozenset):
            waiting += found
        elif not isinstance(found, bytes | bool | None):
            yield found if isinstance(found, str) else written(found)


# -- vectors ---------------------------------------------------------------------------------------


def pack_vector(numbers: Sequence[float], dims: int | None) -> bytes:
    """A vector as it is stored. Raises InvalidInputError for one with another number of dimensions, or not finite."""
    length = math.hypot(*numbers)
    if (dims is not None and len(numbers) != dims) or not math.isfinite(length):
        raise InvalidInputError(
            f"the embedding function returned a vector of {len(numbers)} numbers and length {length}, "
            f'but the index has dims={dims}; correct "dims", or the function'
        )
    return struct.pack(f"<{len(numbers)}f", *(number / length for number in numbers) if length else numbers)


def cosines(query: bytes, vectors: Sequence[bytes]) -> list[float]:
    """The cosine of the angle between a vector and each of others of the same length."""
    numpy = _numpy()
    if numpy is not None and vectors:
        table = numpy.frombuffer(b"".join(vectors), dtype="<f4").reshape(len(vectors), -1)
        found: list[float] = (table @ numpy.frombuffer(query, dtype="<f4")).tolist()
        return found
    read = struct.Struct(f"<{len(query) // 4}f").unpack
    wanted = read(query)
    return [math.fsum(map(mul, wanted, read(vector))) for vector in vectors]


@cache
def _numpy() -> Any:
    return import_module("numpy") if find_spec("numpy") else None
