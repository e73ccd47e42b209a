"""Files that are damaged, cut off, foreign or made up: refused with the line and the next step, and nothing changes."""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from exports import Line, lines_of, write
from kept import kept

import savegame
from savegame.encoding.frames import digest, load_meta, unwrap
from savegame.encoding.json_form import from_text
from savegame.errors import AlreadyExistsError, CorruptionError, SavegameError, StoreNotFound, UnsupportedError
from savegame.vault import Vault


@pytest.fixture
def vault() -> Iterator[Vault]:
    """Where files are imported: something is there already."""
    with savegame.open("memory:") as vault:
        vault.thread("mine").save("mine")
        yield vault


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A small export with every kind of line."""
    path = tmp_path / "e.jsonl"
    with savegame.open("memory:") as source:
        thread = source.thread("t", agent="a")
        for number in range(3):
            thread.update(append={"l": [number]}, id=f"t-{number}", label=f"label {number}", metadata={"n": number})
        thread.update(set={"big": "x" * 8192}, id="large")
        thread.attach_subject("somebody")
        source.thread("u").save(None, id="u-0")
        source.export(path)
    return path


def refused(vault: Vault, path: Path, *errors: type[SavegameError]) -> SavegameError:
    before = kept(vault)
    with pytest.raises(errors or CorruptionError) as caught:
        vault.import_(path)
    assert kept(vault) == before
    assert str(path) in str(caught.value)
    return caught.value


def test_the_file_itself_is_sound_also_with_sums_made_here(vault: Vault, path: Path) -> None:
    write(path, lines_of(path))
    assert vault.import_(path) == 5
    assert vault.verify().ok


# -- damaged ---------------------------------------------------------------------------------------


def test_every_changed_byte_is_noticed(vault: Vault, path: Path) -> None:
    whole = path.read_bytes()
    in_the_large_value = whole.index(b"x" * 8000), whole.rindex(b"x" * 8000)
    places = [
        *range(0, in_the_large_value[0], 3),
        *range(*in_the_large_value, 500),
        *range(in_the_large_value[1], len(whole), 3),
    ]
    for place in places:
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        error = refused(vault, path, CorruptionError, UnsupportedError)
        line = whole.count(b"\n", 0, place) + 1
        assert f"line {line}:" in str(error) or line == 1, (place, str(error))


def test_a_file_that_was_cut_off_is_noticed(vault: Vault, path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    for count in range(1, len(lines)):
        path.write_bytes(b"".join(lines[:count]))
        assert "cut off" in str(refused(vault, path)) or count == 0
        path.write_bytes(b"".join(lines[:count]) + lines[count][:-1])
        assert f"line {count + 1}:" in str(refused(vault, path))


def test_a_missing_doubled_swapped_or_added_line_is_noticed(vault: Vault, path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    for number in range(1, len(lines)):
        before, line, after = lines[:number], lines[number], lines[number + 1 :]
        changed = [before + after, [*before, line, line, *after], [*before[:-1], line, before[-1], *after]]
        for found in (*changed, [*lines, line]):
            path.write_bytes(b"".join(found))
            assert "line " in str(refused(vault, path, CorruptionError, UnsupportedError))


# -- foreign ---------------------------------------------------------------------------------------


def test_what_is_no_export_is_refused_unread(vault: Vault, path: Path, tmp_path: Path) -> None:
    for content in (b"", b"\n", b"text\n", b"{}\n", b"[1]\n", b"\xff\xfe\0", b'{"thread": "t"}\n', b"x" * 100_000, b"[" * 9000):
        path.write_bytes(content)
        assert "not an export" in str(refused(vault, path, UnsupportedError))
    for missing in (tmp_path / "missing", tmp_path):
        refused(vault, missing, StoreNotFound)


def test_a_newer_format_is_refused(vault: Vault, path: Path) -> None:
    lines = lines_of(path)
    lines[0]["savegame-export"] = 2
    write(path, lines)
    assert "newer savegame" in str(refused(vault, path, UnsupportedError))
    for odd in (0, -1, "1", None, True, 1.5, 10**30):
        lines[0]["savegame-export"] = odd
        write(path, lines)
        refused(vault, path, CorruptionError, UnsupportedError)


def test_a_live_database_is_not_opened(tmp_path: Path) -> None:
    with savegame.open(tmp_path / "v.db") as vault:
        vault.thread("t").save(1)
        for name in ("v.db", "v.db-wal", "v.db-shm"):
            assert "live SQLite database" in str(refused(vault, tmp_path / name, UnsupportedError))
        os.symlink(tmp_path / "v.db", tmp_path / "link")
        refused(vault, tmp_path / "link", UnsupportedError)


# -- made up ---------------------------------------------------------------------------------------

Change = Callable[[Line], object]
DEEP: Any = []
for _ in range(400):
    DEEP = [DEEP]
BOMB = "AQAotS/9oP///////////wEAAA=="
"""An envelope that says compressed, and a frame that claims to be enormous."""

HOSTILE: list[tuple[str, Change]] = [
    ("thread", lambda line: line.update(thread="")),
    ("thread", lambda line: line.update(thread="a\0b")),
    ("thread", lambda line: line.update(thread="x" * 513)),
    ("thread", lambda line: line.update(thread="\ud800")),
    ("thread", lambda line: line.update(thread=7)),
    ("thread", lambda line: line.update(thread="another")),
    ("thread", lambda line: line.update(agent=["a"])),
    ("thread", lambda line: line.pop("agent")),
    ("large", lambda line: line.update(large="00" * 32)),
    ("large", lambda line: line.update(large="zz")),
    ("large", lambda line: line.update(large=5)),
    ("large", lambda line: line.update(content={"text": "other"})),
    ("large", lambda line: line.update(content={"base64": BOMB})),
    ("large", lambda line: line.update(content=DEEP)),
    ("checkpoint", lambda line: line.update(checkpoint="other")),
    ("checkpoint", lambda line: line.update(checkpoint=None)),
    ("checkpoint", lambda line: line.update(base="missing")),
    ("checkpoint", lambda line: line.update(base=0)),
    ("checkpoint", lambda line: line.update(note={"label": 5, "tags": []})),
    ("checkpoint", lambda line: line.update(note={"label": None, "tags": [1]})),
    ("checkpoint", lambda line: line.update(note=[])),
    ("checkpoint", lambda line: line.update(delta=[])),
    ("checkpoint", lambda line: line.update(delta=None)),
    ("checkpoint", lambda line: line.update(delta=DEEP)),
    ("checkpoint", lambda line: line.update(delta={"base64": BOMB})),
    ("checkpoint", lambda line: line.update(delta={"base64": "AAA="})),
    ("checkpoint", lambda line: line.update(delta={"base64": 1})),
    ("checkpoint", lambda line: line.update(delta=[["set", [], {"$int": "9" * 5000}]])),
    ("checkpoint", lambda line: line.update(delta=[["set", [], {"$large": ["s", "00" * 32]}]])),
    ("checkpoint", lambda line: line.update(delta=[["set", [], {"$object": "os.system"}]])),
    ("checkpoint", lambda line: line.update(delta=[["run", [], 1]])),
    ("checkpoint", lambda line: line["meta"].update(step="one")),
    ("checkpoint", lambda line: line["meta"].update(step=10**30)),
    ("checkpoint", lambda line: line["meta"].update(kind="other")),
    ("checkpoint", lambda line: line["meta"].update(kind=[])),
    ("checkpoint", lambda line: line["meta"].update(status="other")),
    ("checkpoint", lambda line: line["meta"].update(at="99999-01-01")),
    ("checkpoint", lambda line: line["meta"].update(parent_id=5)),
    ("checkpoint", lambda line: line["meta"].update(digest="00")),
    ("checkpoint", lambda line: line["meta"].update(digest="00" * 32)),
    ("checkpoint", lambda line: line["meta"].update(size_bytes=None)),
    ("checkpoint", lambda line: line["meta"].update(another=1)),
    ("checkpoint", lambda line: line.update(meta={"base64": "AAAA"})),
    ("checkpoint", lambda line: line.update(meta=DEEP)),
    ("record", lambda line: line.update(record=1)),
    ("record", lambda line: line.update(kind="\udc00")),
    ("record", lambda line: line.update(value=1)),
    ("head", lambda line: line.update(head="missing")),
    ("head", lambda line: line.update(head=1)),
    ("end", lambda line: line.update(threads=1)),
    ("end", lambda line: line.update(checkpoints=10**30)),
    ("end", lambda line: line.update(records="1")),
    ("end", lambda line: line.update(end=False)),
]


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_hostile_lines_are_refused(vault: Vault, path: Path, number: int) -> None:
    kind, change = HOSTILE[number]
    lines = lines_of(path)
    for place in [place for place, line in enumerate(lines) if next(iter(line)) == kind]:
        changed = copy.deepcopy(lines)
        change(changed[place])
        write(path, changed)
        assert "line " in str(refused(vault, path))


def test_lines_that_no_json_writer_makes_are_refused(vault: Vault, path: Path) -> None:
    first = path.read_bytes().splitlines(keepends=True)[0]
    before = json.loads(first)["sum"]
    for text in (b"[" * 100_000, b'{"head":NaN', b'{"head":' + b"9" * 5000, b'{"thread":"\xff","agent":null', b"7", b'{"a":1'):
        total = hashlib.sha256(before.encode() + text).hexdigest()[:32]
        path.write_bytes(first + text + f',"sum":"{total}"}}\n'.encode())
        assert "line 2:" in str(refused(vault, path))


def test_lines_in_an_odd_order_are_refused(vault: Vault, path: Path) -> None:
    lines = lines_of(path)
    first, header, *rest, end = lines
    record = next(line for line in rest if "record" in line)
    for odd in (
        [line for line in lines if "large" not in line],  # a checkpoint refers to it
        [first, *rest, end],  # checkpoints of no thread
        [line for line in lines if "head" not in line],  # threads without an end
        [first, header, record, *(line for line in rest if line is not record), end],  # a record before checkpoints
        [*lines[:-1], *lines[1:-1], {**end, "threads": 4, "checkpoints": 10, "records": 2}],  # everything twice
        [*lines, end],
        [*lines[:-1], first, end],
    ):
        write(path, odd)
        refused(vault, path)


def test_a_history_whose_digests_fit_but_whose_changes_do_not_is_taken_away_again(vault: Vault, path: Path) -> None:
    lines = lines_of(path)
    place = next(place for place, line in enumerate(lines) if line.get("checkpoint") == "t-2")
    lines[place]["delta"] = [["append", ["nowhere"], [1]]]
    parent = b""
    for line in lines[: place + 3]:
        if "checkpoint" in line:
            meta = from_text("meta", line["meta"])
            parent = digest(parent, "t", line["checkpoint"], meta[32:], unwrap(from_text("delta", line["delta"]))[1])
            assert load_meta(meta).digest == parent or line["checkpoint"] in ("t-2", "large")
            line["meta"]["digest"] = parent.hex()
    write(path, lines)
    assert "does not load" in str(refused(vault, path))
    assert vault.verify().ok
    assert [info.id for info in vault.threads()] == ["mine"]


def test_one_id_in_two_threads_of_a_file_is_refused(vault: Vault, path: Path) -> None:
    lines = lines_of(path)
    for line in lines:
        if line.get("checkpoint") == "u-0":
            meta = from_text("meta", line["meta"])
            line["checkpoint"] = "t-0"
            line["meta"]["digest"] = digest(b"", "u", "t-0", meta[32:], unwrap(from_text("delta", line["delta"]))[1]).hex()
        elif line.get("head") == "u-0":
            line["head"] = "t-0"
    write(path, lines)
    with pytest.raises(AlreadyExistsError):
        vault.import_(path)
    assert vault.verify().ok
    assert [info.id for info in vault.threads()] == ["mine", "t"]
