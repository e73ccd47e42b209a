"""AsyncVault and AsyncThread have every verb of Vault and Thread, with the same parameters."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

import savegame
from savegame import AsyncThread, AsyncVault, Run, Thread, Vault
from savegame.runs.arun import AsyncRun

PAIRS = ((Vault, AsyncVault), (Thread, AsyncThread), (Run, AsyncRun))
NOT_AWAITED = {"thread", "register", "connection", "run"}
"""They read and write nothing; `connection` refuses, and a run is entered."""


def verbs() -> Iterator[tuple[type, type, str]]:
    for sync, face in PAIRS:
        for name, member in vars(sync).items():
            if inspect.isfunction(member) and not name.startswith("_"):
                yield sync, face, name


def attributes() -> Iterator[tuple[type, type, str]]:
    for sync, face in PAIRS:
        yield from ((sync, face, name) for name, member in vars(sync).items() if isinstance(member, property))


def is_listing(verb: Any) -> bool:
    return str(inspect.signature(verb).return_annotation).startswith(("Iterator", "Iterable", "Generator"))


def parameters(function: Any) -> list[tuple[str, Any, Any]]:
    return [(one.name, one.kind, one.default) for one in inspect.signature(function).parameters.values()]


@pytest.mark.requirement("X15")
@pytest.mark.parametrize(("sync", "face", "name"), list(verbs()))
def test_every_verb_has_its_twin(sync: type, face: type, name: str) -> None:
    verb = getattr(sync, name)
    line, hint = f"{name} = {{}}({sync.__name__}.{name})", "" if is_listing(verb) else " (_writes if it changes something)"
    line = line.format("_lists" if is_listing(verb) else "_reads")
    assert name in vars(face), f"write `{line}`{hint} in class {face.__name__} of src/savegame/aio.py"
    twin = getattr(face, name)
    assert parameters(twin) == parameters(verb), f"{face.__name__}.{name} has other parameters than {sync.__name__}.{name}"
    if name in NOT_AWAITED:
        assert not inspect.iscoroutinefunction(twin)
    elif is_listing(verb):
        assert inspect.isasyncgenfunction(twin), f"{face.__name__}.{name} must be an asynchronous iterator: use _lists"
    else:
        assert inspect.iscoroutinefunction(twin), f"{face.__name__}.{name} must be awaited: use _reads or _writes"
    assert inspect.getdoc(twin)


@pytest.mark.parametrize(("sync", "face", "name"), list(attributes()))
def test_every_attribute_is_one_there_too(sync: type, face: type, name: str) -> None:
    assert isinstance(vars(face).get(name), property), f"{face.__name__}.{name} is missing: {sync.__name__} has it"


def test_both_ways_to_open_have_the_same_parameters() -> None:
    assert parameters(savegame.open_async) == parameters(savegame.open)
