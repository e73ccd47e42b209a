"""The bytes of a frame: envelope, compression, metadata, large values, the two sums.

Every stored body starts with two bytes: flags (compressed, contains references to blobs) and the id of its encryption key
(0: none). The *checksum* of a row covers its stored bytes and its place, so that every read detects damaged and misplaced
rows. The *digest* of a checkpoint covers its parent's digest, its fixed metadata and its logical delta, however that is
stored. Neither is keyed: they detect accidents, not attacks.
"""

from __future__ import annotations

import datetime as dt
import functools
import threading
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final

import blake3
import zstandard
from ormsgpack import packb

from savegame.encoding.delta import APPEND, SET, SPLICE, Op, parse
from savegame.encoding.extensions import BLOB, MAP, OBJECT, TUPLE, RawExt
from savegame.encoding.nesting import inside_out
from savegame.encoding.raw import MAX_DEPTH, pack_raw, unpack_raw
from savegame.errors import CorruptionError, SavegameError, UnsupportedError

COMPRESSED, WITH_BLOBS = 1, 2
PLAIN: Final = b"\0\0"
"""The first bytes of a body that is not compressed, not encrypted and has no references; the payload follows."""

DIGEST_BYTES: Final = 32

BLOB_FROM: Final = 8192
"""Texts and bytes from this size on are stored once per thread."""

EXPANDS_BY: Final = 100
EXPANDS_TO: Final = 256 * 1024 * 1024
"""Limit for decompression, against forged data: a factor of the stored size, or bytes if that is more."""

MOVED_TO: Final = 1024 * 1024
"""The limit in place of EXPANDS_TO for records in an export."""

STATE_TO: Final = 4 * 1024 * 1024 * 1024
"""Maximum size of an encoded state. Reading allows a quarter more, because it does not count exactly."""

_local = threading.local()
_idle: dict[int, list[zstandard.ZstdCompressor]] = {}
"""Compressors by level that no thread is using."""


# -- envelope --------------------------------------------------------------------------------------


def most_from(stored: int, to: int | None = None) -> int:
    """The maximum decompressed size of a body of `stored` bytes."""
    return max(EXPANDS_TO if to is None else to, EXPANDS_BY * stored)


def wrap(payload: bytes, *, compress: bool, level: int = 1, with_blobs: bool = False, least: int = 0) -> bytes:
    """The stored body of a payload, uncompressed below `least` bytes, and if it would expand too far."""
    flags = WITH_BLOBS if with_blobs else 0
    if compress and len(payload) >= least:
        smaller = _compress(payload, level)
        if len(smaller) < len(payload) * 0.9 and len(payload) <= most_from(len(smaller)):
            return bytes((flags | COMPRESSED, 0)) + smaller
    return bytes((flags, 0)) + payload


def unwrap(body: bytes, to: int | None = None) -> tuple[int, bytes]:
    """The flags and the payload of a stored body. Raises CorruptionError, also if it would expand too far."""
    if len(body) < 2 or body[0] > (COMPRESSED | WITH_BLOBS):
        raise CorruptionError("a stored body has no valid header")
    if body[1]:
        raise UnsupportedError(f"this data is encrypted (key {body[1]}); open the vault with its key")
    if not body[0] & COMPRESSED:
        return body[0], body[2:]
    try:
        size = zstandard.frame_content_size(body[2:20])
        if size > most_from(len(body) - 2, to):
            raise CorruptionError(f"a stored body of {len(body)} bytes would become {size}: it was not written by savegame")
        return body[0], _decompressor().decompress(memoryview(body)[2:])
    except zstandard.ZstdError as error:
        raise CorruptionError(f"a stored body does not decompress: {error}") from error


def movable(body: bytes) -> bytes:
    """The body of a record for an export: uncompressed if it would expand too far there."""
    try:
        flags, payload = unwrap(body)
    except SavegameError:  # not one of ours: a record may contain anything
        return body
    return body if len(payload) <= most_from(len(body) - 2, MOVED_TO) else bytes((flags & ~COMPRESSED, 0)) + payload


def recode(body: bytes) -> bytes:
    """The same body with the best compression."""
    flags, payload = unwrap(body)
    return wrap(payload, compress=True, level=12, with_blobs=bool(flags & WITH_BLOBS), least=64)


def _compress(payload: bytes, level: int) -> bytes:
    """The compressed payload. A compressor serves one thread at a time; it is kept for others, which may not live long."""
    idle = _idle.setdefault(level, [])
    try:
        compressor = idle.pop()
    except IndexError:
        compressor = zstandard.ZstdCompressor(level=level, write_checksum=False)
    smaller: bytes = compressor.compress(payload)
    idle.append(compressor)
    return smaller


def _decompressor() -> zstandard.ZstdDecompressor:
    if not hasattr(_local, "decompressor"):
        _local.decompressor = zstandard.ZstdDecompressor()
    decompressor: zstandard.ZstdDecompressor = _local.decompressor
    return decompressor


# -- sums ------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def thread_salt(namespace: str, thread_id: str) -> int:
    """The number of a thread inside checksums."""
    return zlib.crc32(f"{namespace}\0{thread_id}".encode())


def checksum(body: bytes, salt: int, a: int = 0, b: int = 0) -> int:
    """The checksum of stored bytes at their place (thread, sequence number, base).

    Returns -1, which is no checksum, if damage has changed the types of the arguments.
    """
    try:
        return zlib.crc32(body, place_sum(salt, a, b))
    except TypeError:
        return -1


def place_sum(salt: int, a: int, b: int) -> int:
    """The start value of the checksum of a row at a place."""
    return (salt + (a ^ a >> 32) * SEQ_FACTOR + (b ^ b >> 32) * BASE_FACTOR) & 0xFFFFFFFF


SEQ_FACTOR: Final = 0x9E3779B1
BASE_FACTOR: Final = 0x85EBCA6B
PLACE_STEP: Final = (SEQ_FACTOR + BASE_FACTOR) & 0xFFFFFFFF
"""The increase of `place_sum` from one frame of a line to the next, while both numbers are below 2**32."""


def digest(parent: bytes, thread_id: str, checkpoint_id: str, meta: bytes, delta: bytes) -> bytes:
    """The digest of a checkpoint, over its parent's digest, its ids, its packed metadata and its logical delta."""
    data = packb([parent, thread_id, checkpoint_id, meta]) + delta
    if len(data) > _FEW_BYTES:
        return blake3.blake3(data).digest()
    hasher = blake3.blake3(data[:_HELD])
    for at in range(_HELD, len(data), _HELD):
        hasher.update(data[at : at + _HELD])
    return hasher.digest()


_HELD: Final = 2047
_FEW_BYTES: Final = 4 * _HELD
"""From 2,048 bytes on BLAKE3 releases the interpreter lock, which costs more than hashing a few thousand bytes."""


def request_digest(request: bytes) -> bytes:
    """The digest of the arguments of a save with a chosen id."""
    return blake3.blake3(request).digest(length=16)


# -- metadata --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Meta:
    """The metadata of a checkpoint, stored in this order; a new field comes last but for the digest.

    `metadata` is an encoded dict, `blobs` are the digests that its delta refers to.
    """

    parent_id: str | None
    step: int
    created_us: int
    size_bytes: int
    kind: str = "manual"
    status: str = "in_progress"
    reason: str | None = None
    iteration: int | None = None
    tokens_used: int | None = None
    cost: float | None = None
    description: str | None = None
    resume_hint: str | None = None
    agent_id: str | None = None
    forked_from: str | None = None
    metadata: bytes = b""
    blobs: list[bytes] = field(default_factory=list)
    external_id: str | None = None
    request: bytes | None = None
    """The digest of the save's arguments if the caller chose the id; distinguishes a retry from other content."""
    about: bytes = b""
    """An encoded dict: parts of the state for listings, which therefore need not read it."""
    digest: bytes = b""

    @property
    def created_at(self) -> dt.datetime:
        """When the checkpoint was saved, by the store's clock unless the save gave another time."""
        return dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(microseconds=self.created_us)


def details_of(meta: Meta) -> dict[str, Any]:
    """The details that the caller of a save can give, by the names of Meta."""
    return {name: getattr(meta, name) for name in Meta.__slots__ if name not in _COMPUTED}


_stored: Final = attrgetter(*Meta.__slots__[:-1])
_EMPTY: Final = tuple(map(Meta.__slots__.index, ("metadata", "blobs", "about")))
"""Places of the fields that are stored as None if they are empty."""

_COMPUTED: Final = frozenset(("parent_id", "step", "created_us", "size_bytes", "blobs", "digest"))


def metadata_of(parent_id: str, step: int, now: int, size: int, details: dict[str, Any], blobs: Iterable[bytes]) -> bytes:
    """The packed metadata of a new checkpoint; `details` are named as in Meta."""
    if details or blobs:
        fields = {"created_us": now, **details}
        return pack_meta(Meta(parent_id or None, step, size_bytes=size, **fields, blobs=list(blobs)))
    return packb([pack_id(parent_id) if parent_id else None, step, now, size, "manual", "in_progress"])


def pack_meta(meta: Meta) -> bytes:
    """The fields of metadata, without the digest, as the bytes that the digest covers."""
    fields = list(_stored(meta))
    fields[0] = None if meta.parent_id is None else pack_id(meta.parent_id)
    for place in _EMPTY:
        fields[place] = fields[place] or None
    used = len(fields)
    while fields[used - 1] is None:
        used -= 1
    return pack_raw(fields[:used])


def load_meta(data: bytes) -> Meta:
    """Metadata from its stored bytes: the digest, then the packed fields."""
    try:
        parent, *others = unpack_raw(data[DIGEST_BYTES:])
        if len(others) > len(Meta.__slots__) - 2:
            raise ValueError(f"{len(others)} fields")
        meta = Meta(_unpack_id(parent), *others)
    except (ValueError, TypeError) as error:
        raise CorruptionError(f"stored metadata cannot be read: {error}") from error
    meta.digest = data[:DIGEST_BYTES]
    meta.metadata, meta.blobs, meta.about = meta.metadata or b"", meta.blobs or [], meta.about or b""
    return meta


def _unpack_id(stored: Any) -> str | None:
    return None if stored is None else unpack_id(stored)


@functools.lru_cache(maxsize=4096)
def pack_id(text: str) -> str | bytes:
    """The stored form of an id: generated ids as 16 bytes, ids chosen by users as text."""
    if len(text) == 32:
        try:
            data = bytes.fromhex(text)
        except ValueError:
            return text
        if data.hex() == text:
            return data
    return text


def unpack_id(stored: str | bytes) -> str:
    """The reverse of `pack_id`."""
    return stored.hex() if isinstance(stored, bytes) else stored


# -- notes -----------------------------------------------------------------------------------------


def dump_note(label: str | None, tags: tuple[str, ...]) -> bytes | None:
    """The stored bytes of a label and tags; None if there are none."""
    return pack_raw([label, list(tags)]) if label is not None or tags else None


def load_note(data: bytes | None) -> tuple[str | None, tuple[str, ...]]:
    """A label and tags from their stored bytes."""
    if data is None:
        return None, ()
    try:
        label, tags = unpack_raw(data)
        return label, tuple(tags)
    except (ValueError, TypeError) as error:
        raise CorruptionError(f"a stored label cannot be read: {error}") from error


# -- large values ----------------------------------------------------------------------------------

_CARRY_VALUES: Final = frozenset((SET, APPEND, SPLICE))
_NESTED: Final = frozenset((TUPLE, MAP, OBJECT))
_SMALL: Final = frozenset((int, float, bool, type(None)))


def take_out(data: bytes) -> tuple[bytes, dict[bytes, bytes]]:
    """An encoded value with references in place of its large texts and bytes, and these by their digest."""
    if len(data) < BLOB_FROM:
        return data, {}
    found: dict[bytes, bytes] = {}

    def visit(value: Any) -> Any:
        if type(value) is str and len(value) >= BLOB_FROM // 4:
            return refer(value.encode(), b"s", value)
        if type(value) is bytes:
            return refer(value, b"b", value)
        return value

    def refer(content: bytes, kind: bytes, value: Any) -> Any:
        if len(content) < BLOB_FROM:
            return value
        key = blake3.blake3(content).digest()
        found[key] = content
        return RawExt(BLOB, kind + key)

    smaller = _map_leaves(data, visit)
    return (smaller, found) if found else (data, {})


def put_back(data: bytes, fetch: Callable[[bytes], bytes]) -> bytes:
    """An encoded value with its references replaced by their contents."""

    def visit(value: Any) -> Any:
        if type(value) is RawExt and value.tag == BLOB:
            content = fetch(value.data[1:])
            return content.decode() if value.data[:1] == b"s" else content
        return value

    return _map_leaves(data, visit)


def take_out_ops(ops: list[Op]) -> tuple[list[Op], dict[bytes, bytes]]:
    """`take_out` for the values of operations."""
    blobs: dict[bytes, bytes] = {}
    smaller = []
    for op in ops:
        if op.code in _CARRY_VALUES and len(op.value) >= BLOB_FROM:
            value, found = take_out(op.value)
            blobs |= found
            op = op._replace(value=value)
        smaller.append(op)
    return smaller, blobs


def put_back_ops(ops: list[Op], fetch: Callable[[bytes], bytes]) -> list[Op]:
    """`put_back` for the values of operations."""
    return [op._replace(value=put_back(op.value, fetch)) if op.code in _CARRY_VALUES else op for op in ops]


def references(body: bytes) -> list[bytes]:
    """The digests of the large values that a stored delta refers to."""
    found: list[bytes] = []

    def visit(value: Any) -> Any:
        if type(value) is RawExt and value.tag == BLOB:
            found.append(value.data[1:])
        return value

    flags, payload = unwrap(body)
    if flags & WITH_BLOBS:
        for op in parse(payload):
            if op.code in _CARRY_VALUES:
                _map_leaves(op.value, visit)
    return found


def _map_leaves(data: bytes, visit: Callable[[Any], Any]) -> bytes:
    """An encoded value with `visit` applied to its texts, bytes and references."""

    def open_part(value: Any) -> tuple[int | None, Any]:
        if type(value) is RawExt and value.tag in _NESTED:
            return value.tag, unpack_raw(value.data)
        return None, value if type(value) in (list, dict) else visit(value)

    try:
        mapped = inside_out(
            unpack_raw(data), open_part, lambda tag, parts: RawExt(tag, pack_raw(parts)), 2 * MAX_DEPTH, passed=_SMALL
        )
    except RecursionError as error:  # deeper than any state
        raise CorruptionError("a stored value is nested too deeply") from error
    return pack_raw(mapped)
