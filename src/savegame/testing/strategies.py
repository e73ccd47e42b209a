"""Hypothesis strategies: states of all types that the codec supports, plausible edits of a state, hostile ids.

An edit shares most of its structure with its state, as an agent's next step does: this is where deltas, runs and keyframes
can go wrong. Each strategy is created once, because Hypothesis takes longer to analyze a new one than to draw from it. Needs
hypothesis.
"""

from __future__ import annotations

import copy
import datetime as dt
import pathlib
import random
from functools import cache
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from savegame.testing.hostile import HOSTILE_IDS

_RANDOM: Final = random.Random(20)
LARGE: Final[tuple[Any, ...]] = (
    _RANDOM.randbytes(9000),
    _RANDOM.randbytes(10_000).hex(),
    "All work and no play makes Jack a dull boy. " * 300,
    "ü" * 5000,
    "x" * 8191,
    "x" * 8192,
    b"\x93" * 8192,
)
"""Values around and above the sizes at which stores treat them apart: compressed, or kept once per thread."""


@cache
def ids() -> SearchStrategy[str]:
    """Texts that are allowed as an id, and that a careless store would trip over."""
    return st.sampled_from(HOSTILE_IDS) | st.text(_characters(), min_size=1, max_size=512)


@cache
def _characters() -> SearchStrategy[str]:
    return st.characters(codec="utf-8", exclude_characters="\0")


@cache
def _zones() -> SearchStrategy[dt.tzinfo | None]:
    whole = st.integers(-86_399, 86_399).map(lambda seconds: dt.timezone(dt.timedelta(seconds=seconds)))
    return st.none() | st.just(dt.UTC) | whole | st.timezones()


@cache
def scalars() -> SearchStrategy[Any]:
    """Every kept type that has no parts."""
    return st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.sampled_from((2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**40, -(10**40))),
        st.floats(),
        st.text(),
        st.binary(),
        st.datetimes(timezones=_zones()),
        st.datetimes(timezones=_zones()).map(lambda moment: moment.replace(fold=1)),
        st.dates(),
        st.times(timezones=_zones()),
        st.timedeltas(),
        st.decimals(),
        st.uuids(),
        paths(),
    )


@cache
def paths() -> SearchStrategy[pathlib.PurePath]:
    """Paths of this machine and pure ones of both systems."""
    text = st.text(_characters(), max_size=20)
    classes = (pathlib.Path, pathlib.PurePosixPath, pathlib.PureWindowsPath)
    return st.one_of(*(text.map(cls) for cls in classes))


@cache
def keys() -> SearchStrategy[Any]:
    """Anything hashable that the codec keeps; NaN is left out, since it is not equal to itself."""
    plain = st.one_of(
        st.text(max_size=8),
        st.none(),
        st.booleans(),
        st.integers(),
        st.integers(2**64, 2**80),
        st.floats(allow_nan=False),
        st.binary(max_size=8),
        st.datetimes(timezones=_zones()),
        st.dates(),
        st.timedeltas(),
        st.decimals(allow_nan=False),
        st.uuids(),
        paths(),
    )
    return plain | st.tuples(plain, plain) | st.frozensets(plain, max_size=3)


@cache
def values(*, max_leaves: int = 20, large: bool = False) -> SearchStrategy[Any]:
    """Any value that the codec keeps, nested; with `large`, big texts and bytes too."""
    leaves = scalars() | st.sampled_from(LARGE) if large else scalars()
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=6),
            st.lists(inner, max_size=4).map(tuple),
            st.dictionaries(st.text(max_size=8), inner, max_size=6),
            st.dictionaries(keys(), inner, max_size=4),
            st.sets(keys(), max_size=4),
            st.frozensets(keys(), max_size=4),
        ),
        max_leaves=max_leaves,
    )


@cache
def messages() -> SearchStrategy[dict[str, Any]]:
    """Messages as a chat has them."""
    calls = st.lists(st.fixed_dictionaries({"id": st.text(max_size=6), "arguments": values(max_leaves=3)}), max_size=2)
    return st.fixed_dictionaries(
        {"role": st.sampled_from(("user", "assistant", "tool")), "content": st.text(max_size=300)},
        optional={"tool_calls": calls, "at": st.datetimes(timezones=_zones())},
    )


@cache
def states() -> SearchStrategy[Any]:
    """States as agents have them, and now and then something quite different."""
    agent = st.fixed_dictionaries(
        {"messages": st.lists(messages(), max_size=8)},
        optional={
            "files": st.dictionaries(st.sampled_from(("a.py", "b.py", "c/d.md")), st.text(max_size=400), max_size=3),
            "counter": st.integers(),
            "plan": values(max_leaves=8),
            "image": st.sampled_from(LARGE),
        },
    )
    return agent | values(large=True)


@st.composite
def edits(draw: DrawFn, state: Any) -> Any:
    """A state as it may be one step later. The given one is not touched."""
    if draw(st.integers(0, 9)) == 0:
        return draw(states())
    changed = copy.deepcopy(state)
    for _ in range(draw(st.integers(1, 3))):
        changed = _edit(draw, changed, depth=0)
    return changed


def _edit(draw: DrawFn, value: Any, *, depth: int) -> Any:
    inner = _parts(value)
    if inner and depth < 6 and draw(st.integers(0, 2)):
        part = draw(st.sampled_from(inner))
        value[part] = _edit(draw, value[part], depth=depth + 1)
        return value
    if type(value) is list:
        return _edit_list(draw, value)
    if type(value) is dict:
        return _edit_dict(draw, value)
    if type(value) in (str, bytes) and value:
        return _edit_text(draw, value)
    return draw(values(max_leaves=4, large=True))


def _parts(value: Any) -> list[Any]:
    if type(value) is list:
        return list(range(len(value)))
    return list(value) if type(value) is dict else []


def _edit_list(draw: DrawFn, items: list[Any]) -> list[Any]:
    at, end = sorted((draw(st.integers(0, len(items))), draw(st.integers(0, len(items)))))
    match draw(st.sampled_from(("append", "extend", "insert", "cut", "summary", "reverse", "repeat"))):
        case "append":
            return [*items, draw(messages())]
        case "extend":
            return [*items, *draw(_many())]
        case "insert":
            return [*items[:at], draw(values(max_leaves=3)), *items[at:]]
        case "cut":
            return [*items[:at], *items[end:]]
        case "summary":
            return [{"role": "system", "content": "what was said"}, *items[len(items) // 2 :]]
        case "reverse":
            return items[::-1]
        case _:
            return [*items, *items[at:end]]


@cache
def _many() -> SearchStrategy[list[Any]]:
    return st.lists(messages() | scalars(), max_size=80)


def _edit_dict(draw: DrawFn, fields: dict[Any, Any]) -> dict[Any, Any]:
    names = list(fields)
    match draw(st.sampled_from(("add", "drop", "order", "rename"))):
        case "drop" if names:
            del fields[draw(st.sampled_from(names))]
        case "order":
            return {name: fields[name] for name in draw(st.permutations(names))}
        case "rename" if names:
            fields[draw(keys())] = fields.pop(draw(st.sampled_from(names)))
        case _:
            fields[draw(_names())] = draw(values(max_leaves=4))
    return fields


@cache
def _names() -> SearchStrategy[Any]:
    return st.text(max_size=8) | keys()


def _edit_text(draw: DrawFn, text: Any) -> Any:
    at, end = sorted((draw(st.integers(0, len(text))), draw(st.integers(0, len(text)))))
    middle = draw(st.binary(max_size=12) if isinstance(text, bytes) else st.text(max_size=12))
    return text[:at] + middle + text[end:]
