"""Whatever a state holds is shown: conversations as providers write them, and values that are nothing of the kind."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from savegame.cli.printing import ago, plural, size
from savegame.cli.rendering import change_lines, message_text, messages_of, state_tree
from savegame.model import MISSING, Change
from savegame.testing.strategies import values

NOW = dt.datetime(2026, 11, 15, 12, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ({"role": "user", "content": "hi"}, "      user  hi"),
        ({"role": "user", "content": [{"text": "a"}, {"image": 1}]}, '      user  a\n            {"image": 1}'),
        ({"type": "ai", "content": "", "tool_calls": [{"name": "f", "args": {"x": 1}}]}, "        ai  → f(x=1)"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{1}"}}]}, " assistant  → f({1})"),
        ({"role": 5, "content": {"a": b"xyz"}, "tool_calls": 7}, '         5  {"a": "(3 bytes)"}'),
        ("just text", "  just text"),
    ],
)  # fmt: skip
def test_messages_as_providers_write_them(message: Any, shown: str) -> None:
    assert message_text(message, full=False).plain == shown


def test_where_messages_are() -> None:
    assert messages_of({"messages": [1]}) == messages_of({"channel_values": {"messages": [1]}}) == [1]
    assert messages_of({"messages": "none"}) is messages_of([]) is messages_of(None) is None


@given(values(), st.booleans())
def test_anything_is_shown(state: Any, full: bool) -> None:
    if isinstance(state, (dict, list)):
        assert state_tree(state, full=full)
    assert message_text({"role": state, "content": state, "tool_calls": state}, full=full)
    for old, new in ((state, 1), (MISSING, state), (state, MISSING)):
        assert list(change_lines(Change(("a",), old, new), full=full))


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "now"), (59, "59 s ago"), (90, "1 min ago"), (7200, "2 h ago"), (86_400, "1 day ago"), (3 * 86_400, "3 days ago")],
)
def test_times_are_told_from_now(seconds: int, said: str) -> None:
    assert ago(NOW - dt.timedelta(seconds=seconds), NOW) == said


def test_other_words() -> None:
    assert ago(NOW + dt.timedelta(minutes=5), NOW) == "in 5 min"
    assert ago(NOW - dt.timedelta(days=60), NOW) == "2026-09-16"
    assert [size(count) for count in (0, 999, 1000, 1_234_567, 5 * 10**12)] == ["0 B", "999 B", "1.0 kB", "1.2 MB", "5.0 TB"]
    assert [plural(count, "checkpoint") for count in (0, 1, 2000)] == ["0 checkpoints", "1 checkpoint", "2,000 checkpoints"]
