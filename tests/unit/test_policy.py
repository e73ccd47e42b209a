"""What to keep, decided without a store."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from savegame.errors import InvalidInputError
from savegame.policy import Retention, spared_by_prune

NOW = 10_000_000
SECOND = dt.timedelta(seconds=1)


@pytest.mark.parametrize("wrong", [{"max_checkpoints": 0}, {"max_checkpoints": -1}, {"ttl": dt.timedelta(0)}, {"ttl": -SECOND}])
def test_retention_refuses_what_would_keep_nothing(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        Retention(**wrong)


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
