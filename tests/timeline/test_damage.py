"""One damaged checkpoint: what it holds up, what goes on beside it, and what is said of it, on every store."""

from __future__ import annotations

import pytest
from homes import Home

from savegame import CorruptionError, UnavailableError, UnsupportedError, Vault
from savegame.model import ThreadKey


@pytest.mark.requirement("A57", "C17", "C21", "C35", "C37", "D36", "E20", "E22", "E28", "X08", "Z06", "Z66")
def test_one_bad_checkpoint_neither_poisons_nor_vanishes(lasting: Home) -> None:
    vault = lasting.open()
    thread = vault.thread("t")
    for number in range(4):
        thread.update(append={"texts": [f"text number {number}"]}, id=f"{number}")
    vault.thread("other").save({"sound": True})
    lasting.damage(b"text number 2")

    again = lasting.open()
    thread = again.thread("t")
    assert again.thread("other").state() == {"sound": True}
    with pytest.raises(CorruptionError) as caught:
        thread.latest()
    assert caught.value.checkpoint_id == "2"
    assert caught.value.newest_sound is not None
    assert caught.value.newest_sound.id == "1"
    found = thread.latest(skip_damaged=True)
    assert found is not None
    assert (found.id, found.skipped[-1]) == ("1", "2")
    assert thread.load("0").state == {"texts": ["text number 0"]}
    assert any(problem.checkpoint_id == "2" for problem in again.verify().problems)
    assert thread.save({"texts": ["again"]}, parent=found).parent_id == "1"
    assert thread.state() == {"texts": ["again"]}


def with_one_damaged(lasting: Home) -> Vault:
    """Three threads of two checkpoints; the newest of the second one is damaged, its metadata too."""
    vault = lasting.open()
    for name in ("first", "second", "third"):
        vault.thread(name).save({"n": 1})
        vault.thread(name).save({"n": 2}, description=f"the {name} of them", force=True)
    lasting.damage(b"the second of them")
    return lasting.open()


@pytest.mark.requirement("Z06")
def test_listings_tell_of_a_damaged_thread_and_go_on(lasting: Home) -> None:
    vault = with_one_damaged(lasting)
    assert [(info.id, bool(info.damage)) for info in vault.threads()] == [("first", False), ("second", True), ("third", False)]
    assert [*vault.agents(), *vault.conversations()] == []
    assert vault.stats().checkpoints == 6
    with pytest.raises(CorruptionError, match="'second'"):
        list(vault.thread("second").history())


@pytest.mark.requirement("Z06")
def test_a_damaged_thread_does_not_stop_the_prune_of_others(lasting: Home) -> None:
    vault = with_one_damaged(lasting)
    with pytest.raises(CorruptionError, match="second"):  # after the others were pruned
        vault.prune(keep=1)
    assert [len(list(vault.thread(name).history())) for name in ("first", "third")] == [1, 1]


@pytest.mark.requirement("Z14")
def test_a_parent_that_cannot_be_read_stops_the_save(lasting: Home) -> None:
    thread = lasting.open().thread("t")
    thread.save({"text": "the one before"}, id="parent")
    lasting.damage(b"the one before")
    vault = lasting.open()
    with pytest.raises(CorruptionError):
        vault.thread("t").save({"text": "the one after"})
    row = vault.store.thread(ThreadKey(vault.namespace, "t"))
    assert row is not None
    assert (row.head_id, row.frames) == ("parent", 1)


@pytest.mark.requirement("C24", "C38", "X23", "Z25")
def test_whether_there_is_a_checkpoint_goes_by_what_loads(lasting: Home) -> None:
    vault = lasting.open()
    assert not vault.thread("t").has_checkpoint()
    vault.thread("t").save({"text": "the only one"})
    assert vault.thread("t").has_checkpoint()
    lasting.damage(b"the only one")
    thread = lasting.open().thread("t")
    assert not thread.has_checkpoint()
    with pytest.raises(CorruptionError):
        thread.latest()


@pytest.mark.requirement("E10", "E24", "E33c", "Z30", "Z49")
@pytest.mark.parametrize("what", ["the state's text", "the description", "the label"])
def test_verify_has_a_reason_whatever_is_damaged(lasting: Home, what: str) -> None:
    thread = lasting.open().thread("t")
    thread.save({"text": "the state's text"}, description="the description", label="the label", id="one")
    lasting.damage(what.encode())
    report = lasting.open().verify()
    assert not report.ok
    assert all(problem.place and problem.message for problem in report.problems)
    assert {problem.thread_id for problem in report.problems} == {"t"}


@pytest.mark.requirement("A43", "Z59")
def test_what_cannot_be_read_is_not_taken_for_missing(disk: Home) -> None:
    disk.open().thread("t").save({"live": True})
    disk.close()
    largest = max(disk.files(), key=lambda path: path.stat().st_size)
    largest.rename(largest.with_name("moved away"))
    largest.mkdir()  # something that is there and cannot be read, for root too
    with pytest.raises((UnavailableError, UnsupportedError)):
        disk.open().thread("t").latest()
    assert largest.is_dir()
