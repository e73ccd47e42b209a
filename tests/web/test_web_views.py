"""The pure parts of the page: lanes, conversations, values, numbers for people."""

from __future__ import annotations

import datetime as dt

import pytest

import savegame
from savegame.encoding.text import plain_text
from savegame.errors import InvalidInputError
from savegame.model import Change
from savegame.present.lanes import MOST_LANES, start_lanes
from savegame.present.text import ago, size_text
from savegame.vault import Vault
from savegame.web import formatting, messages, plots, timeline, values

NOW = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)


def drawn(vault: Vault, *, page: int = 100) -> list[tuple[int, int]]:
    """Step and lane of each checkpoint of a thread, newest first, drawn page by page."""
    thread = vault.thread("t")
    waiting = start_lanes(vault.info("t").head)  # type: ignore[union-attr]
    points = list(thread.history(branches=True))
    found = []
    for first in range(0, len(points), page):
        drawing = timeline.draw(points[first : first + page], waiting)
        waiting = ",".join(drawing.waiting).split(",")
        found += [(row.checkpoint.step, row.lane) for row in drawing.rows]
    return found


@pytest.mark.parametrize("page", [1, 2, 3, 100])
def test_branches_have_lanes_of_their_own_and_the_head_has_the_first(quick_vault: Vault, page: int) -> None:
    thread = quick_vault.thread("t")
    for number in range(4):
        thread.save(number)
    thread.rewind(2)
    thread.save("other")
    assert drawn(quick_vault, page=page) == [(3, 0), (4, 1), (3, 1), (2, 0), (1, 0)]
    thread.rewind(2)
    assert drawn(quick_vault, page=page) == [(3, 1), (4, 2), (3, 2), (2, 0), (1, 0)]


def test_lines_join_where_branches_began(quick_vault: Vault) -> None:
    thread = quick_vault.thread("t")
    for number in range(2):
        thread.save(number)
    thread.rewind(1)
    thread.save("other")
    rows = timeline.draw(thread.history(branches=True), start_lanes(thread.head)).rows
    assert [len(row.lines) for row in rows] == [1, 2, 2]
    assert "C" in rows[2].lines[1].path
    assert not rows[2].lines[0].path.endswith(f"V{timeline.HEIGHT}"), "nothing leads on below the first checkpoint"


def test_many_branches_share_the_last_lane(quick_vault: Vault) -> None:
    thread = quick_vault.thread("t")
    root = thread.save(0)
    for number in range(20):
        thread.save(number, parent=root)
    lanes = [lane for _, lane in drawn(quick_vault)]
    assert max(lanes) == MOST_LANES - 1


def test_messages_of_other_frameworks_are_read() -> None:
    said = [
        {"type": "human", "content": "hello"},
        {"type": "ai", "content": [{"type": "text", "text": "a"}, {"type": "tool_use", "id": "1", "name": "f", "input": {}}]},
        {"role": "tool", "tool_call_id": "1", "content": "result", "is_error": True},
        {"role": "assistant", "tool_calls": [{"id": "2", "function": {"name": "g", "arguments": '{"x": 1}'}}]},
    ]
    views = messages.view_messages(said, 0, 4)
    assert [(view.role, view.text) for view in views] == [("user", "hello"), ("assistant", "a"), ("assistant", "")]
    assert views[1].calls == (messages.CallView("1", "f", "{}", "result", failed=True),)
    assert views[2].calls == (messages.CallView("2", "g", '{"x": 1}'),)
    assert messages.preview({"channel_values": {"messages": said}}) == "assistant: g(…)"


def test_results_stand_at_their_calls_also_where_ids_return() -> None:
    call = {"role": "assistant", "tool_calls": [{"id": "1", "name": "f", "arguments": {}}]}
    result = [{"role": "tool", "tool_call_id": "1", "content": text} for text in ("first", "second", "late")]
    views = messages.view_messages([call, result[0], call, result[1], result[2]], 0, 5)
    assert [[call.result for call in view.calls] for view in views] == [["first"], ["second"], []]
    assert views[2].answers == "1"


@pytest.mark.parametrize("state", [None, 7, "x", [], {}, {"messages": 7}, {"messages": {"a": 1}}, {"channel_values": []}])
def test_states_without_messages_have_no_conversation(state: object) -> None:
    assert messages.find_messages(state) is None
    assert messages.preview(state) is None


@pytest.mark.parametrize(
    "message",
    [None, 7, "x", [], {}, {"role": 7}, {"content": {"a": b"x"}}, {"tool_calls": 7}, {"tool_calls": [7, {"name": 7}]},
     {"attachments": [7, {"content": {"base64": "!"}}]}, {"content": [{"type": "image_url", "image_url": 7}]},
     {"content": [1, 2]}, {"metadata": 7, "timestamp": NOW, "tokens": "x"}],
)  # fmt: skip
def test_whatever_is_in_a_list_of_messages_is_shown(message: object) -> None:
    assert len(messages.view_messages([message], 0, 1)) == 1
    assert messages.preview({"messages": [message]}) is not None
    assert messages.get_attachment([message], 0, 0) is None


def test_places_in_values_are_found_by_number() -> None:
    value = {"a": [1, {"b": "deep"}], ("tuple", 1): {2, 3}}
    assert values.at_place(value, "0.1") == {"b": "deep"}
    for wrong in ("0.1.0", "2", "9" * 5000):
        with pytest.raises(InvalidInputError, match="has no container"):
            values.at_place(value, wrong)
    assert [branch.name for branch in values.branches(value)] == ["a", "('tuple', 1)"]
    assert [leaf.text for leaf in values.branches([True, 1.5, "x", b"12", NOW])] == [
        "true", "1.5", "x", '"(2 bytes)"', "2026-03-01 12:00:00+00:00",
    ]  # fmt: skip


def test_changed_words_are_marked() -> None:
    (one,) = values.change_views([Change(("a", 0), "the quick fox", "the slow fox")])
    assert one.path == "a[0]"
    assert [piece.text for piece in one.old or [] if piece.marked] == ["quick"]
    assert [piece.text for piece in one.new or [] if piece.marked] == ["slow"]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(3, "just now"), (-3, "just now"), (-25, "in 25 s"), (300, "5 min ago"), (-300, "in 5 min"), (7200, "2 h ago"),
     (86400 * 9, "9 d ago"),  (86400 * 40, "20 Jan"), (86400 * 400, "25 Jan 2025")],
)  # fmt: skip
def test_times_are_told_as_people_do(seconds: int, said: str) -> None:
    assert ago(NOW - dt.timedelta(seconds=seconds), NOW) == said


def test_numbers_are_told_as_people_do() -> None:
    assert [size_text(n) for n in (0, 999, 1200, 34_567, 999_600, 10**13)] == [
        "0 B", "999 B", "1.20 kB", "34.6 kB", "1.00 MB", "10.0 TB",
    ]  # fmt: skip
    assert [formatting.short_number(n) for n in (0, 950, 1234, 34_567, 1_500_000)] == ["0", "950", "1.2k", "35k", "1.5M"]
    assert [formatting.money_text(n) for n in (0, 12.5, 0.0042, 0.00001)] == ["0.00", "12.50", "0.0042", "1.0e-05"]
    assert [formatting.duration(n) for n in (0.012, 3.44, 75, 7500)] == ["12 ms", "3.4 s", "1 min 15 s", "2 h 5 min"]


def test_a_plot_shows_the_newest_days_and_what_grew() -> None:
    numbers = {NOW.date() - dt.timedelta(days=back): 10.0 for back in (0, 1, 200)}
    bars = plots.by_day("n", numbers, NOW.date(), formatting.short_number)
    assert len(bars.bars) == plots.MOST_DAYS
    assert [bar.height > 0 for bar in bars.bars[-3:]] == [False, True, True]
    assert plots.by_day("n", numbers, NOW.date(), formatting.short_number, growing=True).total == "30"


def test_a_waterfall_spans_from_the_first_call_to_the_last() -> None:
    def entry(key: str, begin: int, end: int | None, status: str = "done") -> savegame.CallEntry:
        ended = None if end is None else NOW + dt.timedelta(seconds=end)
        begun = NOW + dt.timedelta(seconds=begin)
        return savegame.CallEntry(key, "f", savegame.CallStatus(status), started_at=begun, ended_at=ended)

    spans = plots.waterfall([entry("a", 0, 5), entry("b", 5, 10), entry("c", 10, None, "unknown")], NOW)
    assert [(span.x, span.width) for span in spans] == [(0, 50), (50, 50), (99.2, 0.8)]
    waiting = savegame.CallEntry("d", "f", savegame.CallStatus.WAITING)
    assert plots.waterfall([waiting], NOW)[0].width == 0


def test_any_key_has_a_text_and_hides_no_other() -> None:
    value = {(1, 2): 3, "(1, 2)": 4, 7: b"12", None: {1.5}, "when": NOW}
    assert plain_text(value) == (
        '{"(1, 2)": 3, "(1, 2)": 4, "7": "(2 bytes)", "None": [1.5], "when": "2026-03-01 12:00:00+00:00"}'
    )
    assert plain_text("as it is") == "as it is"


def test_what_texts_begin_and_end_with_is_not_marked_however_long() -> None:
    same = "word " * 5000
    (one,) = values.change_views([Change(("a",), f"{same}quick {same}", f"{same}slow {same}")])
    assert [piece.text for piece in one.old or [] if piece.marked] == ["quick"]


def test_a_page_marks_words_only_as_far_as_its_work_allows() -> None:
    texts = [
        (" ".join(f"w{n * step % 701}" for n in range(700)), " ".join(f"w{n * step % 699}" for n in range(700)))
        for step in range(1, 201)
    ]
    found = values.change_views([Change((step,), old, new) for step, (old, new) in enumerate(texts)])
    marked = [any(piece.marked for piece in one.old or []) for one in found]
    assert marked[0]
    assert sum(marked) < values.MOST_ON_A_PAGE // 1400
    assert [
        ("".join(piece.text for piece in one.old or []), "".join(piece.text for piece in one.new or [])) for one in found
    ] == texts
    repeated = values.change_views([Change(("a",), "a b " * 500, "b a " * 501)])
    assert not any(piece.marked for piece in repeated[0].old or []), "what would take too long is shown as it is"
