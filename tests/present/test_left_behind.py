"""What a rewind leaves behind, told before it is done."""

from __future__ import annotations

import savegame
from savegame.present.completion import list_left_behind


def test_what_is_not_on_the_way_is_left_behind() -> None:
    with savegame.open("memory:") as vault:
        thread = vault.thread("t")
        first, second, third = (thread.save(number) for number in range(3))
        thread.rewind(first)
        other, last = (thread.save(f"other {number}") for number in range(2))
        assert list(list_left_behind(thread, last)) == []
        assert list(list_left_behind(thread, first)) == [last, other]
        assert list(list_left_behind(thread, third)) == [last, other], "the head's line, up to where the branch began"
        assert list(list_left_behind(thread, second, branches=True)) == [last, other, third]
        thread.rewind(first)
        assert list(list_left_behind(thread, last)) == [], "forth again"
