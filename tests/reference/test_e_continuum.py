"""System E: a writer of checksummed checkpoints, made atomically, and the recovery of sessions after a crash."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import savegame
from savegame import Checkpoint, InvalidInputError, ThreadNotFound, Vault
from tests.reference.conftest import Opener

SESSION = {"messages": [{"role": "user", "content": "test"}], "tool_calls_pending": [], "tool_results": None}


def saved(vault: Vault, session: str, iteration: int, state: Any = SESSION, **details: Any) -> Checkpoint:
    return vault.thread(session).save(state, iteration=iteration, **details)


def test_checkpoint_writer_creation(vault: Vault) -> None:
    """E31. Being ready to write to a session writes nothing."""
    thread = vault.thread("session")
    assert (list(vault.threads()), vault.stats().checkpoints) == ([], 0)
    assert (thread.latest(), thread.head, thread.step) == (None, None, 0)


def test_save_and_load_checkpoint(vault: Vault) -> None:
    """E32. The latest is the one that was saved."""
    made = saved(vault, "session", 1, kind="manual", tokens_used=100, cost=0.01)
    loaded = vault.thread("session").load()
    assert (loaded.id, loaded.iteration) == (made.id, 1)


# -- what its tests leave out ----------------------------------------------------------------------


@pytest.mark.parametrize("trigger", ["manual", "periodic", "error", "user pressed ⏎", "x" * 64])
def test_the_trigger_is_any_text(vault: Vault, trigger: str) -> None:
    """E01d, E29. With a hint for the one who resumes; at most 64 characters."""
    made = saved(vault, "session", 1, kind=trigger, resume_hint="look at the log first")
    loaded = vault.thread("session").load()
    assert (loaded.kind, loaded.resume_hint) == (trigger, "look at the log first")
    assert Checkpoint.from_dict(loaded.to_dict()).kind == trigger == next(vault.thread("session").history()).kind == made.kind
    with pytest.raises(InvalidInputError, match="a kind"):
        saved(vault, "session", 2, kind=trigger + "x" * 64)


def test_a_checksum_is_64_hexadecimal_digits(vault: Vault) -> None:
    """E33a."""
    assert re.fullmatch("[0-9a-f]{64}", saved(vault, "session", 1).digest)


def test_what_was_written_verifies_without_a_complaint(on_disk: Opener) -> None:
    """E33b."""
    vault = on_disk()
    saved(vault, "session", 1)
    vault.close()
    report = on_disk().verify()
    assert (report.ok, report.problems, report.checkpoints) == (True, (), 1)


def test_a_session_is_checked_by_itself(
    on_disk: Opener, damage: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """E24. Whatever else is damaged, and without looking at other sessions."""
    vault = on_disk()
    for name in ("sound", "broken"):
        vault.thread(name).save({"text": f"the state of {name}"})
        vault.thread(name).update(set={"n": 1})
    vault.close()
    damage("the state of broken")
    vault = on_disk()
    assert not vault.verify().ok
    monkeypatch.setattr(vault.store, "heads", lambda *_, **__: pytest.fail("all sessions are looked at"))
    report = vault.verify("sound")
    assert (report.ok, report.threads, report.checkpoints) == (True, 1, 2)
    report = vault.verify(thread_id="broken")
    assert (report.ok, {problem.thread_id for problem in report.problems}) == (False, {"broken"})
    with pytest.raises(ThreadNotFound, match=r"vault\.threads\(\)"):
        vault.verify("nobody")


def test_a_missing_checksum_is_reported_with_a_reason_in_files(in_files: Vault, tmp_path: Path) -> None:
    """E33c, E25."""
    made = saved(in_files, "session", 1)
    in_files.close()
    (journal,) = tmp_path.rglob("journal.jsonl")
    first, second = journal.read_text(encoding="utf-8").splitlines()
    without = re.sub(',"sum":.*', "}", second)
    journal.write_text(f"{first}\n{without}\n", encoding="utf-8")
    with savegame.open(f"file:{tmp_path}/vault") as vault:
        report = vault.verify()
    assert not report.ok
    assert made.id in [problem.checkpoint_id for problem in report.problems]


def test_a_missing_checksum_is_reported_with_a_reason_in_sqlite(in_sqlite: Vault) -> None:
    """E33c, E25."""
    made = saved(in_sqlite, "session", 1)
    with in_sqlite.connection() as db:
        db.execute("UPDATE frame SET delta_sum = 0")
    report = in_sqlite.verify()
    assert [(problem.checkpoint_id, problem.place) for problem in report.problems] == [(made.id, "delta of frame 1")]


def test_the_order_of_keys_never_fails_a_checksum(on_disk: Opener) -> None:
    """E33d. The order is kept, and what is read back adds up, whatever it is."""
    vault = on_disk()
    keys = [f"key {number}" for number in range(30)]
    orders = [keys, keys[::-1], sorted(keys)]
    digests = [saved(vault, "session", number, dict.fromkeys(order, 1.1)).digest for number, order in enumerate(orders)]
    vault.close()
    again = on_disk()
    entries = [entry.load() for entry in again.thread("session").history(newest_first=False)]
    assert [list(entry.state) for entry in entries] == orders
    assert [entry.digest for entry in entries] == digests
    assert again.verify().ok


def test_what_is_written_comes_back_exactly(on_disk: Opener) -> None:
    """E33e, E01. Every field, and numbers to the last bit."""
    vault = on_disk()
    state = {**SESSION, "tool_calls_pending": [{"id": "c1", "name": "pay", "arguments": {"amount": 130.65331632653061}}]}
    details = {"iteration": 3, "tokens_used": 2**40, "cost": 130.65331632653061, "resume_hint": "ask the bank first"}
    made = vault.thread("session").save(state, kind="tool_call", id="cp-1", **details)  # type: ignore[arg-type]
    vault.close()
    found = on_disk().thread("session").load("cp-1")
    assert found.state == state
    assert {name: getattr(found, name) for name in details} == details
    assert (found.thread_id, found.kind, found.created_at) == ("session", "tool_call", made.created_at)


@pytest.mark.parametrize("address", ["{}/a/b/vault.db", "file:{}/a/b/vault"])
def test_missing_parents_are_made_and_are_private(tmp_path: Path, address: str) -> None:
    """E33f, E08."""
    with savegame.open(address.format(tmp_path)) as vault:
        saved(vault, "session", 1)
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("wrong", [{"iteration": -1}, {"tokens_used": -1}, {"cost": -0.01}, {"kind": ""}])
def test_details_that_make_no_sense_are_refused(vault: Vault, wrong: dict[str, Any]) -> None:
    """E30. And nothing is saved."""
    with pytest.raises(InvalidInputError):
        vault.thread("session").save(SESSION, **wrong)
    assert vault.thread("session").latest() is None


def test_an_id_finds_exactly_its_checkpoint(vault: Vault) -> None:
    """E18, E23. No pattern, no ending, and once it is deleted it is gone."""
    for name in ("b", "a_b", "*", "[ab]"):
        vault.thread("session").save(name, id=name)
    assert [vault.load(name).state for name in ("b", "a_b", "*", "[ab]")] == ["b", "a_b", "*", "[ab]"]
    assert (vault.delete_checkpoint("b"), vault.delete_checkpoint("b"), vault.find("b")) == (True, False, None)
    assert vault.load("a_b").state == "a_b"


def test_when_the_newest_is_deleted_the_one_before_it_is_loaded(vault: Vault) -> None:
    """E19, E23."""
    first, second = saved(vault, "session", 1), saved(vault, "session", 2)
    assert vault.delete_checkpoint(second.id)
    assert vault.thread("session").load().id == first.id


def test_every_session_that_ended_uncleanly_is_found(on_disk: Opener) -> None:
    """E26, E27. Those whose latest checkpoint says that work was going on; with when, where and how to go on."""
    vault = on_disk()
    saved(vault, "finished", 1, status="completed")
    saved(vault, "given up", 1, status="failed(no money)")
    for session in ("crashed", "crashed too"):
        made = saved(vault, session, 7, resume_hint="ask again")
    vault.close()
    again = on_disk()
    unclean = list(again.threads(status="in_progress"))
    assert [info.id for info in unclean] == ["crashed", "crashed too"]
    assert unclean[1].updated_at == made.created_at
    last = again.load(unclean[1].head)
    assert (last.iteration, last.resume_hint) == (7, "ask again")


def test_recovery_goes_back_to_the_newest_sound_checkpoint(on_disk: Opener, damage: Callable[[str], None]) -> None:
    """E28. Says what it passed over, and work goes on from there."""
    vault = on_disk()
    made = [saved(vault, "session", number, {"said": f"in iteration {number}"}).id for number in range(3)]
    vault.close()
    damage("in iteration 2")
    thread = on_disk().thread("session")
    found = thread.latest(skip_damaged=True)
    assert found is not None
    assert (found.id, found.skipped) == (made[1], (made[2],))
    assert thread.save({"said": "again"}, parent=found).parent_id == made[1]
    assert thread.state() == {"said": "again"}
