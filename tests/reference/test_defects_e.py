"""Defects of the checksummed writer of system E that must not be here, by number."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest
from test_defects import Home, a_disk, a_home, a_lasting_one  # noqa: F401 - fixtures

import savegame
from savegame import AsyncVault, InvalidInputError, Message, Retention
from savegame.testing.faults import Child, Mouth

FLOATS = [130.65331632653061, 1e-05, 1e16, 0.1 + 0.2, 5e-324, -0.0]


def test_z44_an_id_that_is_saved_twice_is_there_once(home: Home) -> None:
    vault = home.open()
    for _ in range(2):
        vault.thread("t").save({"n": 1}, id="one")
    assert vault.stats().checkpoints == 1
    assert vault.delete_checkpoint("one")
    assert vault.find("one") is None
    assert home.open().thread("t").latest() is None


def test_z45_backups_are_whole_and_each_stays(disk: Home, tmp_path: Path) -> None:
    vault = disk.open()
    for number in range(3):
        vault.thread("t").save({"n": number}, force=True)
        vault.backup(str(tmp_path / f"backup {number}"))
    with pytest.raises(savegame.AlreadyExistsError):
        vault.backup(str(tmp_path / "backup 0"))
    scheme = "file:" if disk.store == "file" else ""
    for number in range(3):
        with savegame.open(f"{scheme}{tmp_path / f'backup {number}'}") as backup:
            assert backup.thread("t").state() == {"n": number}
            assert backup.verify().ok


def test_z46_ids_are_long_enough_to_be_unique(home: Home) -> None:
    vault = home.open()
    made = [vault.thread(f"{number % 7}").save({}, force=True).id for number in range(300)]
    assert len(set(made)) == 300
    assert {len(bytes.fromhex(one)) for one in made} == {16}


def test_z47_the_newest_is_never_an_older_one(home: Home) -> None:
    """The head moves in the same write as the save: there is no second thing that could fail."""
    writer = home.open().thread("t")
    for number in range(20):
        saved = writer.save({"n": number})
        seen = home.open().thread("t").latest()
        assert seen is not None
        assert (seen.id, seen.state) == (saved.id, {"n": number})
    writer.remove("head")
    assert home.open().thread("t").state() == {"n": 18}
    home.close()
    assert not [path for path in home.files() if "tmp" in path.name or path.name.endswith((".new", ".partial"))]


@pytest.mark.parametrize("place", ["plain", "with [a-z]*?"])
def test_z48_ids_are_no_patterns(home: Home, place: str) -> None:
    home = Home(home.store, home.path / place, home.url)
    vault = home.open()
    ids = ["b", "a_b", "*", "?", "[ab]", "[!x]", "a*"]
    for name in ids:
        vault.thread(name).save({"of": name}, id=f"{name}.1")
    assert vault.find("?.1") == vault.load("?.1")
    assert vault.thread("*").delete()
    assert vault.delete_checkpoint("[ab].1")
    assert [info.id for info in vault.threads()] == sorted(set(ids) - {"*", "[ab]"})
    assert vault.load("b.1").state == {"of": "b"}
    home.close()


@pytest.mark.parametrize("what", ["the state's text", "the description", "the label"])
def test_z49_verify_gives_a_reason_whatever_is_damaged(lasting: Home, what: str) -> None:
    thread = lasting.open().thread("t")
    thread.save({"text": "the state's text"}, description="the description", label="the label", id="one")
    lasting.damage(what.encode())
    report = lasting.open().verify()
    assert not report.ok
    assert all(problem.place and problem.message for problem in report.problems)
    assert {problem.thread_id for problem in report.problems} == {"t"}


def test_z50_the_newest_is_told_by_no_time_of_a_file(disk: Home, tmp_path: Path) -> None:
    thread = disk.open().thread("t")
    for number in range(4):
        thread.save({"n": number}, id=f"{number}")
    thread.remove("3")
    assert thread.state() == {"n": 2}
    disk.close()
    copy = Home(disk.store, tmp_path / "copy")
    shutil.copytree(disk.path, copy.path)
    for age, path in enumerate(copy.files()):
        os.utime(path, (age, age))
    vault = copy.open()
    newest = vault.thread("t").latest()
    assert newest is not None
    assert (newest.id, newest.thread_id) == ("2", "t")
    assert {entry.id: vault.load(entry.id).id for entry in vault.thread("t").history()} == {"2": "2", "1": "1", "0": "0"}
    copy.close()


def work_on(mouth: Mouth, url: str) -> None:
    vault = savegame.open(url)
    for session in ("one", "two", "done"):
        vault.thread(session).save({"n": 1}, status="in_progress", iteration=7)
    vault.thread("done").save({"n": 2}, status="completed", force=True)
    mouth.say("working")
    mouth.hear()


def test_z51_every_session_that_was_killed_is_found(lasting: Home) -> None:
    with Child(work_on, lasting.url) as child:
        assert child.next() == ["working"]
    vault = lasting.open()
    unfinished = list(vault.threads(status="in_progress"))
    assert [info.id for info in unfinished] == ["one", "two"]
    assert [vault.load(info.head).iteration for info in unfinished] == [7, 7]


def test_z65_floats_come_back_to_the_bit(home: Home) -> None:
    vault = home.open()
    for number, value in enumerate(FLOATS):
        vault.thread("t").save({"floats": FLOATS[: number + 1]}, cost=abs(value))
    again = home.open(cache_bytes=0)
    found = again.thread("t").load()
    assert [value.hex() for value in found.state["floats"]] == [value.hex() for value in FLOATS]
    assert [entry.cost for entry in again.thread("t").history(newest_first=False)] == [abs(value) for value in FLOATS]
    assert again.verify().ok


def test_z65_old_checkpoints_go_by_themselves(home: Home) -> None:
    thread = home.open(retention=Retention(max_checkpoints=3)).thread("t")
    for number in range(300):
        thread.save({"n": number, "text": os.urandom(100).hex()})
    assert [entry.step for entry in thread.history()] == [300, 299, 298]
    assert home.open().stats().checkpoints < 300  # freed, not only hidden


def hold(mouth: Mouth, url: str) -> None:
    """Keep everybody else from writing, until told to go on."""
    with ExitStack() as held:
        if url.startswith("file:"):
            fcntl.flock(held.enter_context(Path(url.removeprefix("file:"), "lock").open("rb")), fcntl.LOCK_EX)
        else:
            writing = "CREATE TABLE held (n)" if url.endswith(".db") else "LOCK TABLE savegame.thread IN SHARE MODE"
            held.enter_context(held.enter_context(savegame.open(url)).connection()).execute(writing)
        mouth.say("held")
        mouth.hear()


def test_z65_an_awaited_save_does_not_block_the_loop(lasting: Home) -> None:
    async def save_while_held(child: Child) -> None:
        vault = AsyncVault(lasting.open())
        saving = asyncio.create_task(vault.thread("t").save({"n": 1}))
        for _ in range(20):
            await asyncio.sleep(0.001)
            assert not saving.done()
        child.go()
        assert (await saving).step == 1

    lasting.open().thread("before").save({})
    with Child(hold, lasting.url) as child:
        assert child.next() == ["held"]
        asyncio.run(save_while_held(child))


@pytest.mark.parametrize("wrong", [{"iteration": -1}, {"tokens_used": -1}, {"cost": -0.5}, {"iteration": 1.5}, {"status": "x"}])
def test_z66_what_is_given_is_checked(home: Home, wrong: dict[str, object]) -> None:
    thread = home.open().thread("t")
    with pytest.raises(InvalidInputError):
        thread.save({"n": 1}, **wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="role"):
        Message.from_dict({"role": "wizard", "content": "x"})
    assert thread.latest() is None


def test_z66_a_damaged_newest_gives_way_to_the_newest_sound_one(lasting: Home) -> None:
    thread = lasting.open().thread("t")
    for number in range(3):
        thread.save({"text": f"the text of {number}"}, id=f"{number}")
    lasting.damage(b"the text of 2")
    found = lasting.open().thread("t").latest(skip_damaged=True)
    assert found is not None
    assert (found.id, found.skipped, found.state) == ("1", ("2",), {"text": "the text of 1"})
