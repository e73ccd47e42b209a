"""A checkpoint as JSON, and back: its fields, its state with every type, and what is refused."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given

import savegame
from savegame import Checkpoint, Status
from savegame.encoding.codec import Codec
from savegame.errors import InvalidInputError
from savegame.testing import strategies
from savegame.vault import Vault

WHEN = dt.datetime(2026, 11, 18, 9, 30, tzinfo=dt.UTC)


@dataclass
class Plan:
    """A class of the user's."""

    steps: list[str]


@pytest.fixture
def vault() -> Vault:
    return savegame.open("memory:")


def a_checkpoint(vault: Vault, state: Any = None) -> Checkpoint:
    thread = vault.thread("t", agent="helper")
    thread.save(None)
    return thread.save(
        state,
        label="before",
        description="why",
        tags=["a", "b"],
        metadata={"when": WHEN, "seen": ("x", 1)},
        kind="periodic",
        status=Status.failed("no money"),
        iteration=3,
        tokens_used=20,
        cost=0.25,
        resume_hint="try again",
        external_id="outer",
    )


def through_json(found: Checkpoint, **how: Any) -> Any:
    return json.loads(json.dumps(found.to_dict(**how), allow_nan=False))


FIELDS = [item.name for item in dataclasses.fields(Checkpoint)]


@pytest.mark.requirement("A09", "A63", "B13")
def test_every_field_comes_back(vault: Vault) -> None:
    made = a_checkpoint(vault)
    text = through_json(made)
    read = Checkpoint.from_dict(text)
    assert read == made
    assert {name: getattr(read, name) for name in FIELDS} == {name: getattr(made, name) for name in FIELDS}
    assert read.to_dict() == made.to_dict() == text
    assert "state" not in text
    with pytest.raises(InvalidInputError, match=f"checkpoint {made.id} came without its state; load it from its vault"):
        _ = read.state
    assert read.load() is read
    plain = vault.thread("plain").save(1)
    assert Checkpoint.from_dict(through_json(plain)).to_dict() == plain.to_dict()


def test_the_state_goes_along_with_its_types(vault: Vault) -> None:
    state = {"pair": (1, 2), "at": WHEN, "cost": decimal.Decimal("1.10"), 7: {b"x"}, "$tuple": [1], "nan": float("inf")}
    made = a_checkpoint(vault, state)
    assert Checkpoint.from_dict(through_json(made, state=True)).state == state
    loaded = vault.load(made.id)
    read = Checkpoint.from_dict(through_json(loaded, state=True))
    assert (read.state, read.load().state) == (state, state)
    assert read.to_dict(state=True) == loaded.to_dict(state=True)
    assert Checkpoint.from_dict(through_json(a_checkpoint(vault, None), state=True)).state is None


@pytest.mark.requirement("A09")
@given(strategies.values(large=True))
def test_any_state_goes_along(state: Any) -> None:
    with savegame.open("memory:") as vault:
        made = vault.thread("t").save(state)
        assert Codec().encode(Checkpoint.from_dict(through_json(made, state=True)).state) == Codec().encode(state)


@pytest.mark.requirement("B13")
def test_objects_come_back_where_their_class_is_registered(vault: Vault) -> None:
    thread = vault.thread("plan", type=Plan)
    text = through_json(thread.save(Plan(["look", "act"]), metadata={"plan": Plan([])}), state=True)
    assert Checkpoint.from_dict(text).state == {"steps": ["look", "act"]}
    read = Checkpoint.from_dict(text, codec=vault.codec)
    assert (read.state, read.metadata) == (Plan(["look", "act"]), {"plan": Plan([])})
    assert read.to_dict(state=True) == text


def test_an_entry_of_a_listing_has_to_be_loaded_first(vault: Vault) -> None:
    a_checkpoint(vault, {"n": 1})
    entry = next(vault.thread("t").history())
    assert "state" not in entry.to_dict()
    with pytest.raises(InvalidInputError, match=r"call \.load\(\) on it"):
        entry.to_dict(state=True)
    assert entry.load().to_dict(state=True)["state"] == {"n": 1}


def test_dataclasses_sees_the_fields_and_nothing_else(vault: Vault) -> None:
    made = a_checkpoint(vault, {"n": 1})
    found = dataclasses.asdict(made)
    assert list(found) == FIELDS
    assert not [name for name in found if name.startswith("_")]
    assert (found["id"], found["status"], found["metadata"]) == (made.id, made.status, made.metadata)


@pytest.mark.requirement("A10")
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("id", None, "id is missing"),
        ("id", 7, "id must be text"),
        ("thread_id", "", "thread_id must not be empty"),
        ("agent_id", ["a"], "agent_id must be text"),
        ("parent_id", "x" * 513, "parent_id has 513 characters"),
        ("seq", "1", "seq must be a whole number"),
        ("step", True, "step must be a whole number"),
        ("size_bytes", -1, "size_bytes must be at least 0"),
        ("iteration", 1.5, "iteration must be a whole number"),
        ("tokens_used", "many", "tokens_used must be a whole number"),
        ("cost", "free", "cost must be a number"),
        ("created_at", "yesterday", "created_at is not a time"),
        ("created_at", "2026-11-18T09:30:00", "created_at must be a datetime or ISO text with a time zone"),
        ("digest", "abc", "digest must be 64 hexadecimal digits"),
        ("label", {"a": 1}, "label must be text"),
        ("description", 1, "description must be text"),
        ("resume_hint", [], "resume_hint must be text"),
        ("tags", "a", "tags must be a list"),
        ("tags", [1], r"tags\[0\] must be text"),
        ("kind", "k" * 65, "kind has 65 characters"),
        ("status", "done", "status: status 'done' is unknown"),
        ("status", None, "status: a status is text"),
        ("reason", 1, "status: reason must be text"),
        ("metadata", [1], "metadata must be a dict"),
        ("metadata", {"$date": 7}, "metadata is not as to_dict writes it"),
        ("state", {"$nothing": 1}, "state is not as to_dict writes it"),
        ("state", {"$large": ["s", "00"]}, "state is not as to_dict writes it"),
        ("state", {"$packed": "not base64"}, "state is not as to_dict writes it"),
        ("state", "\ud800", "state is not as to_dict writes it"),
        ("state", {"a": object()}, "state is not as to_dict writes it"),
    ],
)
def test_what_is_wrong_is_named(vault: Vault, name: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        Checkpoint.from_dict(a_checkpoint(vault, {"n": 1}).to_dict(state=True) | {name: value})


@pytest.mark.requirement("A09", "A63")
def test_what_is_no_dict_or_lacks_a_field_is_refused(vault: Vault) -> None:
    whole = a_checkpoint(vault).to_dict()
    with pytest.raises(InvalidInputError, match="a Checkpoint is read from a dict, not from list"):
        Checkpoint.from_dict([])  # type: ignore[arg-type]
    for name in ("id", "thread_id", "seq", "step", "created_at", "size_bytes", "digest"):
        with pytest.raises(InvalidInputError, match=f"{name} is missing"):
            Checkpoint.from_dict({key: value for key, value in whole.items() if key != name})
    few = {name: whole[name] for name in ("id", "thread_id", "seq", "step", "created_at", "size_bytes", "digest")}
    assert Checkpoint.from_dict({**few, "head": True}).kind == "manual"


def test_json_that_is_nested_too_deeply_is_refused(vault: Vault) -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidInputError, match="state is not as to_dict writes it"):
        Checkpoint.from_dict(a_checkpoint(vault).to_dict() | {"state": deep})
