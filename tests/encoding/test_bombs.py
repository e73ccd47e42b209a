"""Small files that would become huge: refused by their line or their place, before memory is taken for them."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import blake3
import ormsgpack
import pytest
import zstandard

import savegame
from savegame.encoding import delta, frames
from savegame.encoding.delta import APPEND, SET, Op
from savegame.encoding.extensions import BLOB, TUPLE
from savegame.encoding.frames import COMPRESSED, EXPANDS_TO, PLAIN, WITH_BLOBS, unwrap, wrap
from savegame.encoding.json_form import from_text
from savegame.errors import CorruptionError, InvalidState
from savegame.model import ThreadKey
from savegame.store import Append, PutKeyframe, PutRecord
from savegame.testing import same
from savegame.vault import Vault

MIB = 1024 * 1024
KEY = ThreadKey("default", "t")
FEW = 48 * MIB
"""More than refusing needs, far less than any of these would become."""


@functools.cache
def compressed(size: int, *, told: bool = True) -> bytes:
    """`size` nils, as one zstd frame of a few kilobytes."""
    packer = zstandard.ZstdCompressor(level=1).compressobj(size=size if told else zstandard.CONTENTSIZE_UNKNOWN)
    parts = [packer.compress(b"\xc0" * min(16 * MIB, size - at)) for at in range(0, size, 16 * MIB)]
    return b"".join(parts) + packer.flush()


def bomb(size: int = 1024 * MIB, flags: int = COMPRESSED) -> bytes:
    return bytes((flags, 0)) + compressed(size)


def lying() -> bytes:
    """Says that it becomes one byte."""
    data = bytearray(compressed(200 * MIB))
    assert data[4] & 0xE0 == 0x80  # four bytes of size
    where = 5 + (data[4] & 0x20 == 0)
    data[where : where + 4] = (1).to_bytes(4, "little")
    return bytes((COMPRESSED, 0)) + bytes(data)


def nested(levels: int) -> bytes:
    data = b"\xc0"
    for _ in range(levels):
        data = ormsgpack.packb(ormsgpack.Ext(TUPLE, b"\x91" + data))
    return data


HEADERS = [
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\xc9\xff\xff\xff\xff\x01",
    b"\xdc\xff\xff" * 500,
]
BODIES: dict[str, Callable[[], bytes]] = {
    "a gigabyte": bomb,
    "a little more than may be": lambda: bomb(EXPANDS_TO + MIB),
    "of unknown size": lambda: bytes((COMPRESSED, 0)) + compressed(400 * MIB, told=False),
    "of another size than it says": lying,
    "no frame at all": lambda: bytes((COMPRESSED, 0)) + b"nothing",
    "nested": lambda: PLAIN + nested(5000),
    "nested and compressed": lambda: wrap(nested(5000), compress=True),
} | {f"header {number}": functools.partial(lambda header: PLAIN + header, header) for number, header in enumerate(HEADERS)}


@contextmanager
def little_memory(most: int = FEW) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < most


# -- in a file -------------------------------------------------------------------------------------


@pytest.fixture
def lines(tmp_path: Path) -> list[dict[str, Any]]:
    """Those of an export with a thread, a large value and a record."""
    with savegame.open("memory:") as source:
        source.thread("t").save({"big": "x" * 9000, "l": []}, id="a", metadata={"m": 1})
        source.thread("t").put_records({("kind", "name"): "value"})
        source.export(tmp_path / "good.jsonl")
    return [json.loads(line) for line in (tmp_path / "good.jsonl").read_bytes().splitlines()]


def line_of(lines: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    return next(line for line in lines if kind in line)


def import_refused(lines: list[dict[str, Any]], path: Path) -> str:
    """Write the lines with sums that fit; import them, which must fail by the line, with little memory, and leave nothing."""
    before = ""
    with path.open("wb") as file:
        for line in lines:
            text = json.dumps({name: value for name, value in line.items() if name != "sum"})[:-1].encode()
            before = hashlib.sha256(before.encode() + text).hexdigest()[:32]
            file.write(text + f',"sum":"{before}"}}\n'.encode())
    with savegame.open("memory:") as vault:
        with little_memory(), pytest.raises(CorruptionError, match=r": line \d+: ") as caught:
            vault.import_(path)
        assert list(vault.threads()) == []
        assert vault.verify().ok
    return str(caught.value)


def as_base64(body: bytes) -> dict[str, str]:
    return {"base64": base64.b64encode(body).decode()}


@pytest.mark.parametrize("kind", [*BODIES, "ten megabytes"])
def test_a_record_in_a_file(lines: list[dict[str, Any]], tmp_path: Path, kind: str) -> None:
    body = bomb(10 * MIB) if kind == "ten megabytes" else BODIES[kind]()
    line_of(lines, "record")["value"] = as_base64(body)
    assert f"line {lines.index(line_of(lines, 'record')) + 1}:" in import_refused(lines, tmp_path / "bad.jsonl")


@pytest.mark.parametrize("kind", BODIES)
def test_a_delta_and_a_large_value_in_a_file(lines: list[dict[str, Any]], tmp_path: Path, kind: str) -> None:
    for name, place in (("delta", "checkpoint"), ("content", "large")):
        changed = json.loads(json.dumps(lines))
        line_of(changed, place)[name] = as_base64(BODIES[kind]())
        import_refused(changed, tmp_path / f"{place}.jsonl")


def with_digest(lines: list[dict[str, Any]], change: Callable[[dict[str, Any]], None]) -> None:
    """Change the checkpoint, and let its digest fit."""
    line = line_of(lines, "checkpoint")
    change(line)
    packed = from_text("meta", line["meta"])[32:]
    line["meta"]["digest"] = frames.digest(b"", "t", "a", packed, unwrap(from_text("delta", line["delta"]))[1]).hex()


@pytest.mark.parametrize("data", [nested(5000), *HEADERS], ids=lambda data: data[:4].hex())
def test_states_and_metadata_in_a_file(lines: list[dict[str, Any]], tmp_path: Path, data: bytes) -> None:
    packed = {"$packed": base64.b64encode(data).decode()}
    states = [
        lambda line: line.update(delta=[["set", [], packed]]),
        lambda line: line.update(delta=as_base64(PLAIN + delta.dump([Op(SET, (), data)]))),
        lambda line: line.update(delta=as_base64(PLAIN + delta.dump([Op(SET, (), b"\x90"), Op(APPEND, (), data)]))),
        lambda line: line["meta"].update(metadata={"m": packed}),
        lambda line: line["meta"].update(about={"m": packed}),
    ]
    for number, change in enumerate(states):
        changed = json.loads(json.dumps(lines))
        try:
            with_digest(changed, change)
        except CorruptionError:
            change(line_of(changed, "checkpoint"))
        import_refused(changed, tmp_path / f"{number}.jsonl")


def test_one_large_value_in_many_places_of_a_file(
    lines: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten kilobytes, 4,000 times: forty megabytes, of a file of 300 kB. By one operation, or a few at a time."""
    monkeypatch.setattr(frames, "EXPANDS_BY", 20)
    monkeypatch.setattr(frames, "EXPANDS_TO", 4 * MIB)
    content = "x" * 10_000
    name = blake3.blake3(content.encode()).hexdigest()
    line_of(lines, "large").update(large=name, content={"text": content})
    line_of(lines, "checkpoint")["meta"]["blobs"] = [name]
    refer = {"$large": ["s", name]}
    once = json.loads(json.dumps(lines))
    with_digest(once, lambda line: line.update(delta={"large": [["set", [], [refer] * 4000]]}))
    often = json.loads(json.dumps(lines))
    with_digest(often, lambda line: line.update(delta={"large": [["set", [], []]] + [["append", [], [refer] * 400]] * 10}))
    for number, changed in enumerate((once, often)):
        message = import_refused(changed, tmp_path / f"{number}.jsonl")
        assert "does not load" in message
        assert "not written by savegame" in message


# -- in a store ------------------------------------------------------------------------------------


def made_up(vault: Vault, body: bytes, blobs: tuple[tuple[bytes, bytes], ...] = ()) -> None:
    """A thread whose only frame has a body that no vault wrote, with sums that fit."""
    meta = frames.metadata_of("", 1, 1, 100, {}, [name for name, _ in blobs])
    vault.store.commit([Append(KEY, "made-up", 0, frames.digest(b"", "t", "made-up", meta, b"") + meta, body, blobs=blobs)])


@pytest.mark.parametrize("kind", BODIES)
def test_a_record_in_a_store(opened: Callable[..., Vault], kind: str) -> None:
    vault = opened()
    vault.thread("t").save(1)
    vault.store.commit([PutRecord(KEY, "kind", "name", BODIES[kind]())])
    with little_memory(), pytest.raises(CorruptionError):
        vault.thread("t").records("kind")


@pytest.mark.parametrize("kind", [name for name in BODIES if not name.startswith(("nested", "header"))])
def test_a_frame_in_a_store(opened: Callable[..., Vault], kind: str) -> None:
    vault = opened()
    made_up(vault, BODIES[kind]())
    for look in (vault.thread("t").latest, lambda: vault.load("made-up"), lambda: vault.thread("t").update(set={"a": 1})):
        with little_memory(), pytest.raises(CorruptionError):
            look()
    with little_memory():
        assert not vault.verify().ok


@pytest.mark.parametrize("data", [nested(5000), *HEADERS], ids=lambda data: data[:4].hex())
def test_a_state_in_a_store(vault: Vault, data: bytes) -> None:
    for body in ([Op(SET, (), data)], [Op(SET, (), b"\x90"), Op(APPEND, (), data), Op(APPEND, (), data)]):
        made_up(vault, PLAIN + delta.dump(body))
        with little_memory(), pytest.raises(CorruptionError):
            vault.thread("t").latest()
        vault.thread("t").delete()


def test_a_keyframe_in_a_store(vault: Vault) -> None:
    thread = vault.thread("t")
    thread.save({"n": 1})
    vault.store.commit([PutKeyframe(KEY, 1, bomb())])
    vault.rooms.engine.cache.clear()
    with little_memory(), pytest.raises(CorruptionError):
        thread.latest()


@pytest.mark.parametrize("inner", ["[" * 20_000 + "]" * 20_000, "nothing"], ids=["nested", "no JSON"])
def test_a_line_of_a_journal(tmp_path: Path, inner: str) -> None:
    with savegame.open(f"file:{tmp_path}") as vault:
        vault.thread("t").save(1)
    (journal,) = tmp_path.glob("*/*/journal.jsonl")
    with journal.open("ab") as file:
        text = b'{"note":1,"text":' + inner.encode()
        total = frames.checksum(text, frames.thread_salt(*KEY), file.tell())
        file.write(text + b',"sum":"%08x"}\n' % total)
    with savegame.open(f"file:{tmp_path}") as vault:
        assert not vault.verify().ok
        with pytest.raises(CorruptionError, match="line at byte"):
            vault.thread("t").latest()
        assert vault.repair().ok
        assert vault.thread("t").state() == 1


def test_large_values_in_a_store(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    name = bytes(32)
    reference = ormsgpack.packb(ormsgpack.Ext(BLOB, b"b" + name))

    def delta_of(items: bytes) -> bytes:
        return bytes((WITH_BLOBS, 0)) + delta.dump([Op(SET, (), items)])

    made_up(vault, delta_of(b"\x91" + reference), ((name, bomb()),))
    with little_memory(), pytest.raises(CorruptionError):
        vault.thread("t").latest()
    vault.thread("t").delete()
    made_up(vault, delta_of(b"\xdc\x0f\xff" + reference * 0xFFF), ((name, bomb(MIB)),))
    monkeypatch.setattr(vault.rooms.engine, "largest", 20 * MIB)
    with little_memory(), pytest.raises(CorruptionError, match="not written by savegame"):
        vault.thread("t").latest()


def test_a_chain_in_a_store(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each delta becomes no more than it may, but all of them together do. What was replaced does not count."""
    for number in range(10):
        vault.thread("replaced").update(set={"k": "x" * (6 * MIB) + str(number)})
        vault.thread("kept").update(set={f"k{number}": "x" * (6 * MIB) + str(number)})
        vault.thread("list").update(append={"l": [["x" * 8000] * 750]})
    monkeypatch.setattr(vault.rooms.engine, "largest", 20 * MIB)
    vault.rooms.engine.cache.clear()
    assert vault.thread("replaced").state() == {"k": "x" * (6 * MIB) + "9"}
    for name in ("kept",) if vault.store.readable else ("kept", "list"):  # what is not compressed is as large as it is
        with little_memory(8 * FEW), pytest.raises(CorruptionError, match="not written by savegame"):
            vault.thread(name).latest()


# -- what is no bomb -------------------------------------------------------------------------------


def test_what_compresses_very_well_is_saved_and_loaded(on_disk: Callable[..., Vault]) -> None:
    state = {"zeros": bytes(200 * MIB), "small": 1}
    vault = on_disk()
    vault.thread("t").save(state)
    vault.rooms.engine.cache.clear()
    assert vault.thread("t").state() == state
    assert sum(vault.stats().sizes.values()) < MIB


@pytest.mark.parametrize(
    ("state", "limit"),
    [
        ({"zeros": bytes(300_000)}, 64 * 1024),
        ({"a": "0" * 50_000, "b": ["0" * 50_000] * 20}, 64 * 1024),
        ([0] * 40_000, 8 * 1024),
        ([{}] * 12_500, 8 * 1024),
        ({"more": ["x" * 9000] * 50, "zeros": [bytes(200_000), "0" * 200_000]}, 64 * 1024),
    ],
    ids=["bytes", "one text often", "numbers", "dicts", "all of it"],
)
def test_what_would_expand_too_far_is_not_compressed(
    opened: Callable[..., Vault], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: Any, limit: int
) -> None:
    monkeypatch.setattr(frames, "EXPANDS_TO", limit)
    vault = opened()
    thread = vault.thread("t")
    thread.save(state)
    thread.save({"state": state, "n": 1})
    thread.update(set={"n": 2})
    vault.rooms.engine.cache.clear()
    assert same(thread.state(), {"state": state, "n": 2})
    assert same(thread.state("head~2"), state)
    thread.remove("head~1")
    vault.compact()
    vault.rooms.engine.cache.clear()
    assert same(thread.state(), {"state": state, "n": 2})
    assert vault.verify().ok
    vault.export(tmp_path / "x.jsonl")
    with savegame.open("memory:") as other:
        other.import_(tmp_path / "x.jsonl")
        assert same(other.thread("t").state(), {"state": state, "n": 2})


def test_records_that_compress_very_well_come_along(opened: Callable[..., Vault], tmp_path: Path) -> None:
    vault = opened()
    records = {"zeros": bytes(5 * MIB), "text": "0" * (2 * MIB), "some": "abc " * 500, "small": 1}
    vault.thread("t").save(1)
    vault.thread("t").put_records({("kind", name): value for name, value in records.items()})
    assert vault.thread("t").records("kind") == records
    vault.export(tmp_path / "x.jsonl")
    with savegame.open("memory:") as other:
        other.import_(tmp_path / "x.jsonl")
        assert other.thread("t").records("kind") == records


def test_a_state_that_could_not_be_loaded_is_not_saved(vault: Vault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("savegame.timeline.timeline.STATE_TO", 10_000)
    thread = vault.thread("t")
    thread.save({"l": ["x" * 5000]})
    for change in (
        lambda: thread.save({"l": ["x" * 11_000]}),
        lambda: thread.update(append={"l": ["x" * 6000]}),
        lambda: thread.update(set={"m": "x" * 6000}),
    ):
        with pytest.raises(InvalidState, match="would take about"):
            change()
    assert thread.state() == {"l": ["x" * 5000]}
