"""Which vault a command is about: --store, SAVEGAME_STORE, the platform's directory. None is made by looking."""

from __future__ import annotations

from pathlib import Path

from commands import run

import savegame
from savegame.cli.vaults import store_name


def test_the_option_then_the_environment_then_the_platform(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for name, address in (
        ("given", tmp_path / "given.db"),
        ("environment", tmp_path / "environment.db"),
        ("platform", home / "data" / "savegame" / "agents.db"),
    ):
        with savegame.open(address) as vault:
            vault.thread(name).save(1)
    here = {"HOME": str(home), "XDG_DATA_HOME": str(home / "data")}
    there = here | {"SAVEGAME_STORE": str(tmp_path / "environment.db")}
    assert [info["id"] for info in run("ls", "--json", "-s", str(tmp_path / "given.db"), **there).json] == ["given"]
    assert [info["id"] for info in run("ls", "--json", **there).json] == ["environment"]
    assert [info["id"] for info in run("ls", "--json", **here).json] == ["platform"]


def test_an_option_before_the_command_is_told_its_place() -> None:
    for option in ("-s", "--store"):
        done = run(option, "agents.db", "ls")
        assert (done.code, "--store goes after the command" in done.err) == (2, True)
    assert "savegame ls --namespace …" in run("--namespace", "mine", "ls").err


def test_migrating_what_the_environment_names(tmp_path: Path) -> None:
    address = tmp_path / "environment.db"
    assert run("migrate", SAVEGAME_STORE=str(address)).out.startswith("tables created")
    assert address.exists()


def test_a_vault_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    here = {"HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}
    for arguments in (["ls"], ["rewind", "a", "head"], ["prune", "--keep", "1"], ["ui", "--no-open"]):
        done = run(*arguments, **here)
        assert (done.code, done.out) == (savegame.StoreNotFound.exit_code, "")
        assert "name one with --store or SAVEGAME_STORE" in done.err
    assert "check the address" in run("ls", "-s", str(tmp_path / "no.db")).err
    assert list(tmp_path.iterdir()) == []


def test_a_namespace_is_a_world_of_its_own(on_disk: str) -> None:
    assert run("ls", "-s", on_disk, "--namespace", "other", "--json").json == []


def test_looking_leaves_the_file_as_it_is(on_disk: str) -> None:
    path = Path(on_disk.removeprefix("sqlite:"))
    before = path.read_bytes()
    for arguments in (["ls"], ["log", "support-42"], ["show", "support-42"], ["stats"], ["verify"], ["calls"], ["stale"]):
        assert run(*arguments, "-s", on_disk).code == 0
    assert path.read_bytes() == before


def test_a_password_is_never_shown() -> None:
    for address in (
        "postgresql://me:secret@127.0.0.1:1/nowhere?deadline=0.1",
        "postgresql://me:se:secret@127.0.0.1:1/nowhere?deadline=0.1",
        "postgresql://127.0.0.1:1/nowhere?deadline=0.1&sslpassword=secret",
    ):
        for command in ("ls", "doctor"):
            done = run(command, "-s", address)
            assert done.code != 0
            assert "secret" not in done.out + done.err
    assert store_name("/a/[b]/password=c.db") == "/a/[b]/password=c.db"
