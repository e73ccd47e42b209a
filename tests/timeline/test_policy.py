"""What to keep and when to save, decided without a store."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from savegame.errors import InvalidInputError
from savegame.model import Kind
from savegame.timeline.policy import Event, Retention, Strategy, spared_by_prune

NOW = 10_000_000
SECOND = dt.timedelta(seconds=1)


@pytest.mark.requirement("B42", "D55", "D60", "X13", "Z16")
@pytest.mark.parametrize(
    "wrong",
    [{"max_checkpoints": 0}, {"max_checkpoints": -1}, {"max_checkpoints": 2**70}, {"ttl": dt.timedelta(0)}, {"ttl": -SECOND}],
)
def test_retention_refuses_what_would_keep_nothing(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        Retention(**wrong)


@pytest.mark.requirement("B31")
def test_the_default_keeps_everything() -> None:
    assert Retention().keeps_all
    assert not Retention(max_checkpoints=1).keeps_all
    assert not Retention(ttl=SECOND).keeps_all
    assert not Retention().hides(below_floor=True, labelled=False, created_us=0, now_us=NOW)


@pytest.mark.parametrize(
    ("retention", "below", "labelled", "age", "hidden"),
    [
        (Retention(max_checkpoints=3), True, False, 0, True),
        (Retention(max_checkpoints=3), False, False, 0, False),
        (Retention(max_checkpoints=3), True, True, 0, False),
        (Retention(max_checkpoints=3, keep_labelled=False), True, True, 0, True),
        (Retention(ttl=SECOND), False, False, 1_000_000, False),
        (Retention(ttl=SECOND), False, False, 1_000_001, True),
        (Retention(ttl=SECOND), True, False, 0, False),
        (Retention(ttl=SECOND), False, True, 5_000_000, False),
        (Retention(ttl=SECOND, keep_labelled=False), False, True, 5_000_000, True),
        (Retention(max_checkpoints=3, ttl=SECOND), False, False, 5_000_000, True),
        (Retention(max_checkpoints=3, ttl=SECOND), True, False, 0, True),
    ],
)
def test_what_retention_hides(retention: Retention, below: bool, labelled: bool, age: int, hidden: bool) -> None:
    assert retention.hides(below_floor=below, labelled=labelled, created_us=NOW - age, now_us=NOW) is hidden


@pytest.mark.parametrize(
    ("rank", "age", "labelled", "keep", "cutoff_age", "include_labelled", "spared"),
    [
        (0, 0, False, 2, None, False, True),
        (1, 0, False, 2, None, False, True),
        (2, 0, False, 2, None, False, False),
        (9, 0, True, 2, None, False, True),
        (9, 0, True, 2, None, True, False),
        (9, 5, False, None, 10, False, True),
        (9, 10, False, None, 10, False, True),
        (9, 11, False, None, 10, False, False),
        (9, 5, False, 2, 10, False, True),
        (1, 50, False, 2, 10, False, True),
        (9, 50, False, 2, 10, False, False),
        (0, 50, True, None, 10, True, False),
    ],
)
def test_what_a_prune_spares(
    rank: int, age: int, labelled: bool, keep: int | None, cutoff_age: int | None, include_labelled: bool, spared: bool
) -> None:
    cutoff = None if cutoff_age is None else NOW - cutoff_age
    found = spared_by_prune(rank, NOW - age, labelled=labelled, keep=keep, cutoff_us=cutoff, include_labelled=include_labelled)
    assert found is spared


# -- when to save ----------------------------------------------------------------------------------

STRATEGIES = [
    Strategy.after_tool_call,
    Strategy.after_llm_response,
    Strategy.never,
    Strategy.every(3),
    Strategy.interval(0.5),
    Strategy.interval(1e-7),
]


@pytest.mark.requirement("A17", "A72")
def test_the_default_saves_after_tool_calls() -> None:
    assert Strategy() == Strategy.after_tool_call == Strategy("after_tool_call")


@pytest.mark.requirement("A16", "A19", "A20", "A21", "A71", "A72")
@pytest.mark.parametrize(
    ("strategy", "events"),
    [
        (Strategy.after_tool_call, {"tool_call"}),
        (Strategy.after_llm_response, {"llm_response"}),
        (Strategy.every(1), {"iteration"}),
        (Strategy.interval(1), {"tool_call", "llm_response", "iteration"}),
        (Strategy.never, set()),
    ],
)
def test_which_events_a_strategy_saves_after(strategy: Strategy, events: set[str]) -> None:
    assert {event.value for event in Event if strategy.should_save(1, event)} == events
    assert {event for event in map(str, Event) if strategy.should_save(1, event)} == events


@pytest.mark.requirement("A22", "A23", "Z07", "Z08")
@given(st.integers(1, 50), st.integers(0, 10_000))
def test_every_n_saves_once_in_every_nth_iteration_and_not_before_any_work(n: int, iteration: int) -> None:
    wanted = sum(Strategy.every(n).should_save(iteration, event) for event in Event)
    assert wanted == (1 if iteration and iteration % n == 0 else 0)


@pytest.mark.requirement("A22", "A70", "B32")
def test_every_three_in_a_row() -> None:
    assert [i for i in range(10) if Strategy.every(3).should_save(i, "iteration")] == [3, 6, 9]


@pytest.mark.requirement("B20", "B34", "D43d", "Z13")
@pytest.mark.parametrize(
    ("since", "wanted"), [(None, True), (0.0, False), (29.9, False), (30.0, True), (1e6, True), (-1.0, False)]
)
def test_an_interval_saves_when_that_long_has_passed(since: float | None, wanted: bool) -> None:
    since_last = None if since is None else dt.timedelta(seconds=since)
    assert Strategy.interval(30).should_save(1, Event.TOOL_CALL, since_last=since_last) is wanted


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
def test_a_strategy_is_read_from_what_it_prints(strategy: Strategy) -> None:
    assert Strategy(str(strategy)) == strategy


@pytest.mark.parametrize("amount", ["", "()", "(0)", "(-1)", "(x)", "(nan)", "(inf)", "(1", "(1)(1)"])
@pytest.mark.parametrize("name", ["every", "interval"])
def test_a_strategy_with_a_wrong_amount_is_refused(name: str, amount: str) -> None:
    with pytest.raises(InvalidInputError):
        Strategy(name + amount)


@pytest.mark.parametrize("wrong", ["", "sometimes", "Never", "never(1)", "after_tool_call(1)", "every(1.5)"])
def test_what_is_no_strategy_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidInputError):
        Strategy(wrong)


@pytest.mark.requirement("A23", "Z08")
@pytest.mark.parametrize("wrong", [0, -3, True, 1.5, "3", None])
def test_a_number_of_iterations_is_at_least_one(wrong: Any) -> None:
    with pytest.raises(InvalidInputError, match="at least 1"):
        Strategy.every(wrong)


@pytest.mark.parametrize("wrong", [0, -1, 0.0, float("nan"), float("inf"), True, "30", None])
def test_an_interval_is_longer_than_nothing(wrong: Any) -> None:
    with pytest.raises(InvalidInputError, match="above 0"):
        Strategy.interval(wrong)


def test_an_unknown_event_is_refused_and_the_events_are_named() -> None:
    for strategy in STRATEGIES:
        with pytest.raises(InvalidInputError, match="tool_call, llm_response, iteration"):
            strategy.should_save(1, "TOOL_CALL")


@pytest.mark.requirement("A18")
def test_an_event_is_the_kind_of_the_checkpoint_saved_for_it() -> None:
    assert {str(Kind.of(event)) for event in Event} == {"tool_call", "llm_response", "iteration"}
