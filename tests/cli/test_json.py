"""`--json` of every command, in both databases: one document of the documented shape, and nothing else on standard output."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest
from commands import fits, run

import savegame
from savegame.cli import json_output
from savegame.cli.json_output import OUTPUTS

COMMANDS = {
    "ls": ["ls", "--recent"],
    "log": ["log", "support-42", "--graph"],
    "show": ["show", "support-42", "head~1"],
    "diff": ["diff", "support-42", "before refund", "head"],
    "tail": ["tail", "support-42"],
    "search": ["search", "parcel"],
    "rewind": ["rewind", "support-42", "before refund"],
    "fork": ["fork", "support-42", "another", "--at", "2"],
    "label": ["label", "support-42", "latest", "the end", "--tag", "good"],
    "prune": ["prune", "--keep", "1", "--yes"],
    "erase": ["erase", "customer-7", "--yes"],
    "compact": ["compact"],
    "export": ["export", "{tmp}/all.jsonl"],
    "import file": ["import", "file", "{tmp}/all.jsonl", "--namespace", "other"],
    "verify": ["verify"],
    "repair": ["repair"],
    "stats": ["stats", "--by", "agent"],
    "stale": ["stale"],
    "calls": ["calls"],
    "answer": ["answer", "invoice-7", "--approve"],
    "resolve": ["resolve", "invoice-8", "--error", "the bank knows nothing of it"],
    "send": ["send", "support-42", "Are you there?", "--key", "k"],
    "inbox": ["inbox", "support-42"],
    "unsend": ["unsend", "support-42", "k"],
    "stop": ["stop", "gone", "enough"],
    "effects": ["effects", "invoice-8"],
    "doctor": ["doctor"],
}


def test_all_have_their_shape(store: str, tmp_path: Path) -> None:
    """In this order: what changes something comes after what is only looked at."""
    last = ("rewind", "fork", "label", "prune", "answer", "resolve", "unsend", "stop", "erase", "compact")
    for name in sorted(COMMANDS, key=lambda name: last.index(name) if name in last else -1):
        done = run(*(part.format(tmp=tmp_path) for part in COMMANDS[name]), "--store", store, "--json")
        assert done.err == "", (name, done)
        assert done.code == 0 or name == "doctor", (name, done)  # the server of tests does not flush, and that is a problem
        shape = OUTPUTS[name]
        printed = [json.loads(line) for line in done.out.splitlines()] if shape.how == "lines" else json.loads(done.out)
        items = [printed] if shape.how == "one" else printed
        assert items, f"{name}: nothing to look at"
        for item in items:
            assert fits(item, shape.of), (name, item)


def test_copies_have_their_shapes(on_disk: str, tmp_path: Path) -> None:
    found = run("backup", tmp_path / "backup.db", "--store", on_disk, "--json").json
    assert fits(found, OUTPUTS["backup"].of)
    assert found["size_bytes"] == (tmp_path / "backup.db").stat().st_size
    done = run("copy", on_disk, tmp_path / "copy.db", "--json")
    assert fits(json.loads(done.out), OUTPUTS["copy"].of)
    assert json.loads(done.out) == {"namespaces": {"default": 11}}
    for address in (on_disk, "memory:"):
        assert fits(run("migrate", address, "--json").json, OUTPUTS["migrate"].of)


def test_every_shape_is_tried() -> None:
    assert OUTPUTS.keys() == {*COMMANDS, "backup", "copy", "migrate", "import langgraph"}


@pytest.mark.parametrize(
    ("value", "shape"), [({"a": 1}, json_output.CompactOutput), (1, str | None), ([1], list[str]), (True, int)]
)
def test_what_does_not_fit_is_noticed(value: Any, shape: Any) -> None:
    assert not fits(value, shape)


def test_values_are_told_apart_that_json_has_no_words_for(on_disk: str) -> None:
    with savegame.open(on_disk) as vault:
        vault.thread("odd").save({"at": dt.date(2026, 11, 15), "raw": b"\0", "pair": (1, 2), "nan": float("nan")})
    state = run("show", "odd", "--store", on_disk, "--json").json["state"]
    assert state == {
        "at": {"$date": "2026-11-15"},
        "raw": {"$bytes": "AA=="},
        "pair": {"$tuple": [1, 2]},
        "nan": {"$float": "nan"},
    }


@pytest.mark.parametrize("arguments", [["ls", "--bogus"], ["show"], ["ls", "-n", "-1"], ["nothing"], ["import"]])
def test_a_wrong_command_is_told_as_a_document_too(arguments: list[str]) -> None:
    done = run(*arguments, "--json")
    failure = json.loads(done.err)
    assert (done.code, done.out) == (2, "")
    assert fits(failure, json_output.ErrorOutput)
    assert (failure["error"], failure["exit_code"]) == ("invalid-input", 2)
    assert run(*arguments).code == 2, "and without it as typer shows it"


def test_an_error_is_a_document_too(on_disk: str) -> None:
    done = run("show", "nobody", "--store", on_disk, "--json")
    failure = json.loads(done.err)
    assert (done.code, done.out) == (3, "")
    assert fits(failure, json_output.ErrorOutput)
    assert (failure["error"], failure["exit_code"]) == ("thread-not-found", 3)
