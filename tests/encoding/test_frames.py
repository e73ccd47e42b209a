"""Envelopes, sums, metadata and large values."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import ormsgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from savegame.encoding import frames
from savegame.encoding.codec import Codec
from savegame.encoding.delta import APPEND, SET, Op, dump
from savegame.encoding.extensions import TUPLE
from savegame.encoding.frames import (
    DIGEST_BYTES,
    Meta,
    checksum,
    dump_note,
    load_meta,
    load_note,
    pack_meta,
    recode,
    thread_salt,
    unwrap,
    wrap,
)
from savegame.errors import CorruptionError, UnsupportedError
from savegame.testing import strategies

META = Meta("parent", 3, 1_700_000_000_000_000, 512, "manual", "failed", "it broke", 4, 5, 0.5, "text", "hint", "agent")


def stored(meta: Meta) -> bytes:
    return meta.digest.ljust(DIGEST_BYTES, b"\0") + pack_meta(meta)


def digest(parent: bytes, thread_id: str, checkpoint_id: str, meta: Meta, delta: bytes) -> bytes:
    return frames.digest(parent, thread_id, checkpoint_id, pack_meta(meta), delta)


# -- envelope --------------------------------------------------------------------------------------


@given(st.binary(max_size=300) | st.sampled_from([b"a" * 5000, random.Random(1).randbytes(5000), b"a" * 4096, b"a" * 4095]))
def test_a_body_unwraps_to_its_payload(payload: bytes) -> None:
    for compress in (True, False):
        for with_blobs in (True, False):
            body = wrap(payload, compress=compress, with_blobs=with_blobs)
            flags, found = unwrap(body)
            assert found == payload
            assert bool(flags & frames.WITH_BLOBS) is with_blobs
            again = recode(body)
            assert unwrap(again)[1] == payload
            assert bool(unwrap(again)[0] & frames.WITH_BLOBS) is with_blobs
            assert len(again) <= max(len(body), len(payload) + 2)


def test_compression_only_where_it_helps() -> None:
    assert len(wrap(b"a" * 100_000, compress=True)) < 1000
    assert len(wrap(b"a" * 100_000, compress=False)) == 100_002
    noise = random.Random(2).randbytes(10_000)
    assert wrap(noise, compress=True)[2:] == noise


@given(st.binary(max_size=100))
def test_random_bytes_are_no_body(data: bytes) -> None:
    with contextlib.suppress(CorruptionError, UnsupportedError):
        unwrap(data)


def test_headers_that_this_version_does_not_know() -> None:
    with pytest.raises(UnsupportedError, match="key 7"):
        unwrap(b"\x00\x07abc")
    for damaged in (b"", b"\x00", b"\xff\x00abc", b"\x01\x00not zstd", b"\x01\x00"):
        with pytest.raises((CorruptionError, UnsupportedError)):
            unwrap(damaged)


def test_a_compressed_body_that_is_cut_or_claims_too_much() -> None:
    body = wrap(b"hello " * 10_000, compress=True)
    for end in range(2, len(body)):
        with pytest.raises(CorruptionError):
            unwrap(body[:end])


# -- sums ------------------------------------------------------------------------------------------


@pytest.mark.requirement("E11", "X09")
@pytest.mark.parametrize("body", [b"\x00\x00", random.Random(3).randbytes(700), b"\x00" * 64], ids=["tiny", "random", "zeros"])
def test_every_flipped_bit_changes_the_checksum(body: bytes) -> None:
    whole = checksum(body, 17, 3, 2)
    for bit in range(len(body) * 8):
        damaged = bytearray(body)
        damaged[bit // 8] ^= 1 << bit % 8
        assert checksum(bytes(damaged), 17, 3, 2) != whole
    for cut in range(len(body)):
        assert checksum(body[:cut], 17, 3, 2) != whole


def test_a_row_that_moved_has_another_checksum() -> None:
    salts = [thread_salt("default", "a"), thread_salt("default", "b"), thread_salt("other", "a")]
    sums = {checksum(b"body", salt, seq, base) for salt in salts for seq in range(50) for base in range(50)}
    assert len(sums) == len(salts) * 50 * 50


def test_digests_do_not_change_between_releases() -> None:
    """Written down once: a history copied from an old vault must have the same digests for ever."""
    first = digest(b"", "thread", "id", META, b"delta")
    assert first.hex() == "25ee26fa9ca63d9cea118356c44b1fa4e538b68213a4672328fa1958337d7acb"
    assert len(first) == 32


@pytest.mark.requirement("E11")
def test_a_digest_is_over_everything_fixed() -> None:
    base = digest(b"p", "t", "i", META, b"d")
    others = [digest(b"q", "t", "i", META, b"d"), digest(b"p", "u", "i", META, b"d"), digest(b"p", "t", "j", META, b"d")]
    others.append(digest(b"p", "t", "i", META, b"e"))
    for name in Meta.__slots__:
        if name != "digest":
            other = load_meta(stored(META))
            value: Any = getattr(other, name)
            setattr(
                other, name, {str: "zzz", int: 99, float: 9.5, type(None): "zzz", bytes: b"\x80", list: [b"x"]}[type(value)]
            )
            others.append(digest(b"p", "t", "i", other, b"d"))
    assert len({base, *others}) == len(others) + 1
    twin = load_meta(stored(META))
    twin.digest = b"whatever"
    assert digest(b"p", "t", "i", twin, b"d") == base


# -- metadata and notes ----------------------------------------------------------------------------


def test_metadata_round_trip() -> None:
    for meta in (
        META,
        Meta(None, 1, 0, 0, "manual", "in_progress"),
        Meta("a" * 32, 1, 0, 0, "manual", "completed", blobs=[b"x" * 32]),
    ):
        meta.digest = b"d" * 32
        assert load_meta(stored(meta)) == meta


@pytest.mark.parametrize("parent", ["", "a" * 32, "chosen"])
@pytest.mark.parametrize("blobs", [(), (b"x" * 32,)])
@pytest.mark.parametrize("details", [{}, {"kind": "recovery"}, {"about": b"\x80", "cost": 0.5}, frames.details_of(META)])
def test_metadata_of_a_new_checkpoint_is_packed_like_any_other(parent: str, blobs: tuple[bytes, ...], details: Any) -> None:
    packed = frames.metadata_of(parent, 7, 8, 9, details, blobs)
    assert packed == frames.pack_meta(Meta(parent or None, 7, 8, 9, **details, blobs=list(blobs)))
    loaded = load_meta(b"d" * 32 + packed)
    assert {**frames.details_of(Meta(None, 0, 0, 0)), **details} == frames.details_of(loaded)
    assert (loaded.parent_id, loaded.step, loaded.blobs) == (parent or None, 7, list(blobs))


@given(strategies.ids())
def test_ids_are_packed_and_unpacked(text: str) -> None:
    assert frames.unpack_id(frames.pack_id(text)) == text


@pytest.mark.parametrize("text", ["0" * 32, "abcdef0123456789" * 2, "ABCDEF0123456789" * 2, "ab " * 10 + "ab", "g" * 32])
def test_ids_that_look_generated(text: str) -> None:
    assert frames.unpack_id(frames.pack_id(text)) == text


@pytest.mark.requirement("A59")
@given(st.binary(max_size=60))
@settings(max_examples=300)
def test_damaged_metadata_and_notes(data: bytes) -> None:
    for load in (load_meta, load_note):
        with contextlib.suppress(CorruptionError):
            load(data)


def test_notes() -> None:
    assert dump_note(None, ()) is None
    assert load_note(None) == (None, ())
    assert load_note(dump_note("l", ("a", "b"))) == ("l", ("a", "b"))
    assert load_note(dump_note(None, ("a",))) == (None, ("a",))
    assert load_note(dump_note("", ())) == ("", ())


# -- large values ----------------------------------------------------------------------------------


@given(strategies.values(large=True, max_leaves=10))
@settings(max_examples=150)
def test_large_values_are_taken_out_and_put_back(value: Any) -> None:
    codec = Codec()
    data = codec.encode([value])
    smaller, found = frames.take_out(data)
    assert frames.put_back(smaller, found.__getitem__) == data
    assert all(len(content) >= frames.BLOB_FROM for content in found.values())
    if not found:
        assert smaller == data


def test_references_are_listed() -> None:
    codec = Codec()
    big, other = "x" * 9000, b"y" * 9000
    ops = [Op(SET, (), codec.encode({"a": big, "deep": [({1: other},)]})), Op(APPEND, ("l",), codec.encode([big]))]
    smaller, blobs = frames.take_out_ops(ops)
    assert sorted(blobs.values(), key=len) == sorted([big.encode(), other], key=len)
    body = wrap(dump(smaller), compress=True, with_blobs=True)
    assert set(frames.references(body)) == set(blobs)
    assert len(body) < 300
    assert frames.put_back_ops(smaller, blobs.__getitem__) == ops
    assert frames.references(wrap(dump(ops), compress=True)) == []


def test_deeply_nested_references_are_no_crash() -> None:
    value = b"\x90"
    for _ in range(2000):
        value = ormsgpack.packb(ormsgpack.Ext(TUPLE, b"\x91" + value))
    with pytest.raises(CorruptionError):
        frames.references(wrap(dump([Op(SET, (), value)]), compress=False, with_blobs=True))
    with pytest.raises(CorruptionError):
        frames.put_back(value, lambda name: name)
