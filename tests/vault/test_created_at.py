"""Histories that come from elsewhere bring their own times; the order stays the store's."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from addresses import Opener

import savegame
from savegame import Conversation, Message, Retention, Strategy
from savegame.errors import AlreadyExistsError, CheckpointNotFound, InvalidInputError
from savegame.vault import Vault


def on(day: int, year: int = 2020) -> dt.datetime:
    return dt.datetime(year, 3, day, 12, 30, 15, 123456, tzinfo=dt.UTC)


@pytest.mark.requirement("A06")
def test_the_time_is_kept_and_shown_and_the_order_is_that_of_the_saves(vault: Vault) -> None:
    thread = vault.thread("old")
    assert thread.save({"n": [1]}, created_at=on(5)).created_at == on(5)
    thread.update(append={"n": [2]}, created_at=on(3))
    thread.update(set={"m": 1}, created_at=on(9), label="later")
    there = [(entry.step, entry.created_at) for entry in thread.history()]
    assert there == [(3, on(9)), (2, on(3)), (1, on(5))]
    assert thread.state() == {"n": [1, 2], "m": 1}
    (info,) = vault.threads()
    assert (info.created_at, info.updated_at) == (on(5), on(9))
    assert vault.thread("old").load("later").created_at == on(9)
    now = thread.update(append={"n": [3]}).created_at
    assert now > on(9, 2026)
    assert vault.verify().ok


@pytest.mark.requirement("B04", "Z64")
def test_times_of_any_zone_and_any_year_are_kept(vault: Vault) -> None:
    thread = vault.thread("old")
    for moment in (
        dt.datetime.min.replace(tzinfo=dt.UTC),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC),
        dt.datetime(2020, 3, 5, 12, tzinfo=dt.timezone(dt.timedelta(hours=-7))),
        dt.datetime.max.replace(tzinfo=dt.UTC),
    ):
        saved = thread.save({"n": 1}, created_at=moment)
        found = vault.load(saved.id)
        assert (found.created_at, found.created_at.tzinfo) == (moment, dt.UTC)
        assert savegame.Checkpoint.from_dict(found.to_dict()).created_at == moment


@pytest.mark.parametrize(
    ("moment", "message"),
    [
        (dt.datetime(2020, 3, 5), r"created_at must be a datetime with a time zone, .*not datetime.datetime\(2020, 3, 5"),
        (dt.date(2020, 3, 5), "created_at must be a datetime with a time zone"),
        ("2020-03-05T12:00:00Z", "created_at must be a datetime with a time zone"),
        (1583409600, "created_at must be a datetime with a time zone"),
        (
            dt.datetime.max.replace(tzinfo=dt.timezone(dt.timedelta(hours=-1))),
            "created_at is not a time between the years 1 and",
        ),
        (
            dt.datetime.min.replace(tzinfo=dt.timezone(dt.timedelta(hours=1))),
            "created_at is not a time between the years 1 and",
        ),
    ],
)
def test_other_times_are_refused(vault: Vault, moment: Any, message: str) -> None:
    thread = vault.thread("old")
    with pytest.raises(InvalidInputError, match=message):
        thread.save({"n": []}, created_at=moment)
    with pytest.raises(InvalidInputError, match=message):
        thread.update(append={"n": [1]}, created_at=moment)
    assert thread.latest() is None


def test_it_goes_with_the_other_details(vault: Vault) -> None:
    conversation = Conversation("helper", id="talk", messages=[Message.user("hi")])
    saved = vault.thread("talk").save(conversation, created_at=on(5), iteration=3, id="first")
    assert (saved.created_at, saved.iteration) == (on(5), 3)
    assert vault.thread("talk").save(conversation, created_at=on(5), iteration=3, id="first") == saved
    assert vault.thread("talk").save(conversation, iteration=3, id="first") == saved
    with pytest.raises(AlreadyExistsError):
        vault.thread("talk").save(conversation, created_at=on(6), iteration=3, id="first")
    assert vault.thread("talk").modify(lambda state: state, created_at=on(7)).created_at == on(7)
    assert vault.thread("talk").fork("copy").latest().created_at > on(9, 2026)  # type: ignore[union-attr]


def test_ages_and_days_count_from_it(vault: Vault) -> None:
    thread = vault.thread("old", agent="helper")
    for day in (5, 3, 9):
        thread.save({"day": day}, created_at=on(day), tokens_used=day, cost=0.5)
    assert thread.load(at=on(9)).state == {"day": 9}
    assert thread.load(at=on(8)).state == {"day": 3}  # the newest on its line that is not younger
    with pytest.raises(CheckpointNotFound):
        thread.load(at=on(2))
    assert [(one.key, one.tokens_used) for one in vault.usage(by="day")] == [(on(day).date(), day) for day in (3, 5, 9)]
    (used,) = vault.usage()
    assert (used.first_at, used.last_at) == (on(3), on(9))
    assert thread.prune(older_than=dt.timedelta(days=365)) == 2
    assert thread.state() == {"day": 9}


def test_retention_takes_it_for_as_old_as_it_says(opened: Opener) -> None:
    vault = opened(retention=Retention(ttl=dt.timedelta(days=365)))
    thread = vault.thread("old")
    thread.save(1, created_at=on(5))
    thread.save(2, created_at=on(6), label="kept")
    thread.save(3, created_at=on(7))
    assert [entry.load().state for entry in thread.history()] == [3, 2]
    assert vault.thread("old").state() == 3


def test_it_arrives_with_exports_and_copies(opened: Opener, tmp_path: Any) -> None:
    vault = opened()
    saved = vault.thread("old").save({"n": 1}, created_at=on(5))
    vault.export(tmp_path / "export")
    with savegame.open("memory:") as imported, savegame.open("memory:") as copied:
        imported.import_(tmp_path / "export")
        vault.copy_to(copied)
        for other in (imported, copied):
            assert (other.load(saved.id).created_at, other.load(saved.id).digest) == (on(5), saved.digest)


@pytest.mark.parametrize("moment", [on(5), on(5, 9000)])
def test_a_run_on_top_of_it_saves_as_its_strategy_says(opened: Opener, moment: dt.datetime) -> None:
    vault = opened(retention=Retention(max_checkpoints=1))
    vault.thread("talk").save({"messages": [{"role": "user", "content": "hi"}]}, created_at=moment)
    replies = iter(
        [{"role": "assistant", "content": "", "tool_calls": [{"id": "c", "name": "no such", "arguments": {}}]}, "done"]
    )
    with vault.run("talk", strategy=Strategy.interval(60)) as run:
        run.model(lambda _: next(replies))
        chosen = run.checkpoint
        run.tools()
        run.model(lambda _: next(replies))
        head = run.checkpoint
    assert list(vault.thread("talk").history()) == [head, chosen]
