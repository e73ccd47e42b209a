"""Whatever a state holds is shown: conversations as providers write them, and values that are nothing of the kind."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from savegame.cli.printing import plural
from savegame.cli.rendering import change_lines, message_text, state_tree
from savegame.model import MISSING, Change
from savegame.testing.strategies import values


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ({"role": "user", "content": "hi"}, "      user  hi"),
        ({"role": "user", "content": [{"text": "a"}, {"image": 1}]}, '      user  a\n            {"image": 1}'),
        ({"type": "ai", "content": "", "tool_calls": [{"name": "f", "args": {"x": 1}}]}, " assistant  → f(x=1)"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{1}"}}]}, " assistant  → f({1})"),
        ({"role": "assistant", "content": [{"type": "tool_use", "name": "f", "input": {}}]}, " assistant  → f()"),
        ({"role": "assistant", "tool_calls": [{"name": "f", "arguments": {}, "result": 7}]}, " assistant  → f() = 7"),
        (
            {"role": "assistant", "tool_calls": [{"name": "f", "status": "failed", "error": "no\nway"}]},
            " assistant  → f() ✗ no⏎way",
        ),
        ({"role": "user", "attachments": [{"name": "a.png", "mime_type": "image/png"}]}, "      user  + a.png (image/png)"),
        ({"role": 5, "content": {"a": b"xyz"}, "tool_calls": 7}, '   message  {"a": "(3 bytes)"}'),
        ({"role": "user", "content": b"x"}, "      user  (1 byte)"),
        ("just text", "   message  just text"),
    ],
)  # fmt: skip
def test_messages_as_providers_write_them(message: Any, shown: str) -> None:
    assert message_text(message, full=False).plain == shown


@given(values(), st.booleans())
def test_anything_is_shown(state: Any, full: bool) -> None:
    if isinstance(state, (dict, list)):
        assert state_tree(state, full=full)
    assert message_text({"role": state, "content": state, "tool_calls": state}, full=full)
    for old, new in ((state, 1), (MISSING, state), (state, MISSING)):
        assert list(change_lines(Change(("a",), old, new), full=full))


def test_other_words() -> None:
    assert [plural(count, "checkpoint") for count in (0, 1, 2000)] == ["0 checkpoints", "1 checkpoint", "2,000 checkpoints"]
