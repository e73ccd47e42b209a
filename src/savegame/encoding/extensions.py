"""Dates, paths and other values without a MessagePack type, as extensions with the tags below, and back.

A tag is stored with each value: it never changes its meaning, and is never used again for something else. Reading makes plain
values of the standard library only. Touches foreign and errors.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import functools
import os
import pathlib
import uuid
import zoneinfo
from collections.abc import Callable
from typing import Any, Final

import ormsgpack

from savegame.encoding.foreign import Foreign
from savegame.errors import needs_descriptors

TUPLE, SET, FROZENSET, DATETIME, DATE, TIME, TIMEDELTA, DECIMAL, UUID, BIGINT, PATH, MAP, OBJECT, ENUM, BLOB, FOREIGN = range(
    1, 17
)


@dataclasses.dataclass(frozen=True, slots=True)
class RawExt:
    """An extension that was not decoded."""

    tag: int
    data: bytes


def write_raw(ext: RawExt) -> ormsgpack.Ext:
    """The extension of a RawExt, unchanged."""
    return ormsgpack.Ext(ext.tag, ext.data)


def _small(tag: int, parts: Any) -> ormsgpack.Ext:
    return ormsgpack.Ext(tag, ormsgpack.packb(parts))


def _zone(value: dt.datetime | dt.time) -> Any:
    zone = value.tzinfo
    if zone is None:
        return None
    if type(zone) is dt.timezone:
        offset, *name = zone.__getinitargs__()  # type: ignore[attr-defined]
        micros = offset // dt.timedelta(microseconds=1)
        return [*name, micros, True] if name else micros
    if isinstance(zone, zoneinfo.ZoneInfo) and zone.key is not None:
        offset = value.utcoffset()
        return [zone.key, 0 if offset is None else offset // dt.timedelta(microseconds=1)]
    raise TypeError(f"unknown time zone {zone!r}")


def _read_zone(zone: Any) -> dt.tzinfo | None:
    if zone is None:
        return None
    if type(zone) is int:
        return dt.timezone(dt.timedelta(microseconds=zone))
    key, offset, *fixed = zone
    if fixed:
        return dt.timezone(dt.timedelta(microseconds=offset), key)
    named = _zone_named(key)
    return dt.timezone(dt.timedelta(microseconds=offset), key) if named is None else named  # unknown zone: keep the instant


@functools.lru_cache(maxsize=1024)
def _zone_named(key: str) -> zoneinfo.ZoneInfo | None:
    """The zone, or None if this machine does not have it.

    ZoneInfo is called only for existing keys: for others it would import a module of that name from the package tzdata.
    """
    with needs_descriptors(f"cannot read the time zone {key!r}"):
        if any(os.path.isfile(os.path.join(root, key)) for root in zoneinfo.TZPATH) or key in _listed_zones():
            return zoneinfo.ZoneInfo(key)
    return None


_listed_zones = functools.cache(zoneinfo.available_timezones)


def _write_datetime(value: dt.datetime) -> ormsgpack.Ext:
    return _small(DATETIME, [value.replace(tzinfo=None).isoformat(), value.fold, _zone(value)])


def _read_datetime(body: bytes) -> dt.datetime:
    text, fold, zone = ormsgpack.unpackb(body)
    return dt.datetime.fromisoformat(text).replace(tzinfo=_read_zone(zone), fold=fold)


def _write_time(value: dt.time) -> ormsgpack.Ext:
    return _small(TIME, [value.replace(tzinfo=None).isoformat(), value.fold, _zone(value)])


def _read_time(body: bytes) -> dt.time:
    text, fold, zone = ormsgpack.unpackb(body)
    return dt.time.fromisoformat(text).replace(tzinfo=_read_zone(zone), fold=fold)


def write_path(value: pathlib.PurePath) -> ormsgpack.Ext:
    """A path of either system. Raises TypeError for users' subclasses."""
    kind = next((name for name, cls in _PATHS.items() if type(value) is cls), None)
    if kind is None:
        raise TypeError(f"{type(value).__qualname__} cannot be stored")
    return _small(PATH, [kind, str(value)])


def _read_path(body: bytes) -> pathlib.PurePath:
    kind, text = ormsgpack.unpackb(body)
    cls: type[pathlib.PurePath] = _PATHS[kind]
    foreign = {"posix": pathlib.PurePosixPath, "windows": pathlib.PureWindowsPath}
    if kind in foreign and cls is not type(pathlib.Path()):  # a path of the other system
        cls = foreign[kind]
    return cls(text)


_PATHS: Final[dict[str, type[pathlib.PurePath]]] = {
    "posix": pathlib.PosixPath,
    "windows": pathlib.WindowsPath,
    "pure-posix": pathlib.PurePosixPath,
    "pure-windows": pathlib.PureWindowsPath,
}

WRITERS: Final[dict[type, Callable[[Any], ormsgpack.Ext]]] = {
    dt.datetime: _write_datetime,
    dt.date: lambda value: ormsgpack.Ext(DATE, value.isoformat().encode()),
    dt.time: _write_time,
    dt.timedelta: lambda value: _small(TIMEDELTA, [value.days, value.seconds, value.microseconds]),
    decimal.Decimal: lambda value: ormsgpack.Ext(DECIMAL, str(value).encode()),
    RawExt: write_raw,
    Foreign: lambda value: _small(FOREIGN, [value.kind, value.data]),
    uuid.UUID: lambda value: ormsgpack.Ext(UUID, value.bytes),
    int: lambda value: ormsgpack.Ext(BIGINT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)),
}

READERS: Final[dict[int, Callable[[bytes], Any]]] = {
    DATETIME: _read_datetime,
    DATE: lambda body: dt.date.fromisoformat(body.decode()),
    TIME: _read_time,
    TIMEDELTA: lambda body: dt.timedelta(*ormsgpack.unpackb(body)),
    DECIMAL: lambda body: decimal.Decimal(body.decode()),
    UUID: lambda body: uuid.UUID(bytes=body),
    BIGINT: lambda body: int.from_bytes(body, "big", signed=True),
    PATH: _read_path,
}
