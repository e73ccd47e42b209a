"""Defects of the session files and pointers of system C that must not be here, by number."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from test_defects import IN_FILES, Home, a_disk, a_home, a_lasting_one  # noqa: F401 - fixtures

import savegame
from savegame import Conversation, CorruptionError, InvalidInputError, Message, ToolCall
from savegame.testing.faults import Child, Mouth

SESSIONS = ["a", "a_b", "a_1", "latest", "a_latest", "my latest work", "a.json"]


def test_z24_a_session_is_matched_by_its_whole_id(home: Home) -> None:
    vault = home.open()
    for session in SESSIONS:
        for number in range(3):
            vault.thread(session).save({"of": session, "n": number})
    assert vault.thread("a").prune(keep=1) == 2
    assert vault.thread("latest").delete()
    assert not vault.thread("my").delete()
    kept = {info.id: info.checkpoints for info in vault.threads()}
    assert kept == {session: 1 if session == "a" else 3 for session in SESSIONS if session != "latest"}
    assert vault.thread("a_latest").state() == {"of": "a_latest", "n": 2}


def save_three(mouth: Mouth, url: str) -> None:
    thread = savegame.open(url).thread("t")
    for number in range(3):
        thread.save({"n": number}, id=f"{number}")
    mouth.say("saved")
    mouth.hear()


def written_last(disk: Home) -> Path:
    """The file that the newest save went to."""
    return disk.path / "v.db-wal" if disk.store == "sqlite" else next(disk.path.rglob("journal.jsonl"))


def test_z25_a_torn_write_leaves_the_checkpoint_before_it(disk: Home) -> None:
    """There is no pointer that could be torn: cut off the end of what was written last, and the save before it counts."""
    with Child(save_three, disk.url) as child:
        assert child.next() == ["saved"]
    last = written_last(disk)
    last.write_bytes(last.read_bytes()[:-20])
    thread = disk.open().thread("t")
    assert thread.has_checkpoint()
    newest = thread.latest()
    assert newest is not None
    assert (newest.id, newest.state) == ("1", {"n": 1})
    assert thread.save({"n": 2}, id="2").step == 3


def test_z25_whether_there_is_a_checkpoint_goes_by_what_loads(lasting: Home) -> None:
    vault = lasting.open()
    assert not vault.thread("t").has_checkpoint()
    vault.thread("t").save({"text": "the only one"})
    assert vault.thread("t").has_checkpoint()
    lasting.damage(b"the only one")
    thread = lasting.open().thread("t")
    assert not thread.has_checkpoint()
    with pytest.raises(CorruptionError):
        thread.latest()


def test_z26_there_is_no_place_unless_one_is_named() -> None:
    assert inspect.signature(savegame.open).parameters["url"].default is inspect.Parameter.empty
    with pytest.raises(InvalidInputError):
        savegame.open("")


def test_z27_only_checkpoints_are_counted(home: Home) -> None:
    vault = home.open()
    thread = vault.thread("t")
    for number in range(5):
        thread.save({"n": number})
    thread.put_records({("note", "beside"): 1})
    if home.store in IN_FILES:
        (home.path / "t_99.json").write_text("somebody else's")
    assert thread.prune(keep=2) == 3
    assert thread.remove("head") == 1
    assert (thread.delete(), thread.delete()) == (True, False)
    if home.store in IN_FILES:
        assert (home.path / "t_99.json").read_text() == "somebody else's"


def test_z62_finished_work_is_not_offered_for_recovery(home: Home) -> None:
    vault = home.open()
    for status in ("in_progress", "completed", "failed(OOM)", "halted(loop)"):
        vault.thread(status).save({"n": 1})
        vault.thread(status).save({"n": 2}, status=status, force=True)
    assert [info.id for info in vault.threads(status="in_progress")] == ["in_progress"]
    done = home.open().thread("completed").latest()
    assert done is not None
    assert done.status == "completed"
    assert [info.status.reason for info in vault.threads(status="failed")] == ["OOM"]


def test_z63_a_tool_call_has_an_id_a_message_and_one_outcome(home: Home) -> None:
    with pytest.raises(InvalidInputError, match="id"):
        ToolCall.from_dict({"name": "refund", "arguments": {}})
    with pytest.raises(InvalidInputError, match="result must not be None"):
        ToolCall("c1", "refund", {}, status="completed")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="tool_call_id"):
        Message("tool", "42")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="no earlier message makes that call"):
        Conversation("helper", messages=[Message.tool_result("unknown", "42")]).check_pairing()
    thread = home.open().thread("t")
    saved = thread.save({"n": 1})
    thread.save({"n": 2})
    assert thread.load(saved.id).state == thread.load(1).state == {"n": 1}
