"""Every command of the design is there; each has help, an example that names real options, and a place in the reference."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from commands import PLAIN, run

import savegame
from savegame.cli.app import build_app
from savegame.cli.json_output import OUTPUTS
from savegame.cli.vaults import hurry, patient

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "cli.md"
DESIGN = {
    *("demo", "ls", "log", "show", "diff", "tail", "search", "rewind", "fork", "label", "prune", "stats", "verify", "repair"),
    *("compact", "backup", "erase", "copy", "export", "import", "stale", "answer", "resolve", "doctor", "ui", "mcp", "bench"),
}
ROOT: Any = typer.main.get_command(build_app())


def leaves(group: Any = ROOT, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from leaves(command, (*before, name))
        else:
            yield (*before, name), command


def groups(group: Any = ROOT, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield before
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from groups(command, (*before, name))


NEEDY = [path for path, command in leaves() if any(parameter.required for parameter in command.params)]
"""Commands that cannot go on without an argument."""


def test_every_command_of_the_design_is_there() -> None:
    assert set(ROOT.commands) >= DESIGN


def test_the_help_of_the_whole_lists_them() -> None:
    shown = run("--help").out
    assert all(re.search(rf"^│ {name} ", shown, re.MULTILINE) for name in ROOT.commands)


@pytest.mark.parametrize("path", [path for path, _ in leaves()], ids=" ".join)
def test_every_command_has_help_and_an_example(path: tuple[str, ...]) -> None:
    command = dict(leaves())[path]
    example = re.search(r"^Example: savegame (.+)$", command.help, re.MULTILINE)
    assert example is not None
    words = shlex.split(example[1].partition(" | ")[0])
    assert words[: len(path)] == list(path)
    known = {option for parameter in command.params for option in parameter.opts}
    if path != ("bench",):  # whose options are the benchmark's
        assert {word for word in words if re.match(r"--?[a-z]", word)} <= known
    for parameter in command.params:
        assert parameter.param_type_name == "argument" or parameter.help, parameter.name


@pytest.mark.parametrize("path", [*groups(), *NEEDY], ids=" ".join)
def test_what_lacks_a_command_or_an_argument_is_wrong_use(path: tuple[str, ...]) -> None:
    done = run(*path)
    assert done.code == savegame.InvalidInputError.exit_code
    assert "Usage: savegame" in done.out + done.err


@pytest.mark.parametrize("path", list(groups()), ids=" ".join)
def test_a_command_that_is_not_there_is_wrong_use(path: tuple[str, ...]) -> None:
    assert run(*path, "nonsense").code == savegame.InvalidInputError.exit_code


def test_help_is_shown_by_the_installed_command() -> None:
    shown = run("prune", "--help").out
    assert "Example: savegame prune --keep 50" in shown
    assert "SAVEGAME_STORE" in shown


def test_what_prints_json_has_a_documented_shape() -> None:
    printing = {" ".join(path) for path, command in leaves() if any("--json" in p.opts for p in command.params)}
    assert printing == OUTPUTS.keys()
    page = REFERENCE.read_text(encoding="utf-8")
    for name in printing:
        assert f"`{OUTPUTS[name].of.__name__}`" in page, name


@pytest.mark.parametrize(
    ("shell", "given"),
    [
        ("bash", {"COMP_WORDS": "savegame re", "COMP_CWORD": "1"}),
        ("zsh", {"_TYPER_COMPLETE_ARGS": "savegame re"}),
        ("fish", {"_TYPER_COMPLETE_ARGS": "savegame re", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}),
    ],
)
def test_shells_complete_commands(shell: str, given: dict[str, str]) -> None:
    done = run(_SAVEGAME_COMPLETE=f"complete_{shell}", **given)
    assert set(re.findall(r"\b(rewind|repair|resolve)\b", done.out)) == {"rewind", "repair", "resolve"}
    assert "complete_" + shell in run(_SAVEGAME_COMPLETE=f"source_{shell}").out


def test_shells_complete_threads_and_labels(on_disk: str) -> None:
    def complete(words: str) -> list[str]:
        given = {"COMP_WORDS": f"savegame {words}", "COMP_CWORD": str(len(re.findall(r"(?:\\ |\S)+", words)))}
        return run(_SAVEGAME_COMPLETE="complete_bash", SAVEGAME_STORE=on_disk, **given).out.splitlines()

    assert complete("show inv") == ["invoice-7", "invoice-8"]
    assert complete("rewind support-42 bef") == [r"before\ refund"]
    assert complete(r"rewind support-42 before\ re") == [r"before\ refund"]
    assert complete('rewind support-42 "bef') == ["before refund"], "inside quotes bash needs no more"
    assert complete("show -s nowhere.db inv") == [""]


def test_names_that_no_line_can_hold_are_not_offered(on_disk: str) -> None:
    with savegame.open(on_disk) as vault:
        vault.thread("invoice\x1b[2J").save(1)
        vault.thread("invoice $(reboot)").save(1)
    given = {"COMP_WORDS": "savegame show invoice", "COMP_CWORD": "2", "SAVEGAME_STORE": on_disk}
    offered = run(_SAVEGAME_COMPLETE="complete_bash", **given).out.splitlines()
    assert offered == [r"invoice\ \$\(reboot\)", "invoice-7", "invoice-8"]


def test_a_server_that_does_not_answer_is_not_waited_for() -> None:
    assert hurry("postgresql://h/db?deadline=60", 0.5) == "postgresql://h/db?deadline=60&deadline=0.5"
    assert hurry("postgres://h/db", 0.5) == "postgres://h/db?deadline=0.5"
    assert hurry("sqlite:a.db", 0.5) == patient("sqlite:a.db") == "sqlite:a.db"
    assert patient("postgresql://h/db") == "postgresql://h/db?deadline=5"
    assert patient("postgresql://h/db?deadline=60") == "postgresql://h/db?deadline=60"


def test_the_environment_of_tests_names_no_vault() -> None:
    assert "SAVEGAME_STORE" not in PLAIN
