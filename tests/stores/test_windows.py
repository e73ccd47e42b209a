"""What can be said about Windows without one: the modules and flags that it lacks are taken away."""

from __future__ import annotations

import subprocess
import sys

CHILD = """
import os, sys

missing = {"fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"}
for name in missing:
    sys.modules[name] = None  # importing it fails
for name in ("O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_PATH", "fork", "getuid", "register_at_fork"):
    delattr(os, name)

import savegame

for address in sys.argv[1:]:
    try:
        with savegame.open(address) as vault:
            thread = vault.thread("t")
            thread.save({"a": (1, 2)})
            thread.update(set={"b": 3})
            print(vault.thread("t").state(), vault.verify().ok, len(list(vault.search("x"))))
    except savegame.UnsupportedError as error:
        print(error)
"""


def run(*addresses: str) -> list[str]:
    command = [sys.executable, "-c", CHILD, *addresses]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_memory_works() -> None:
    assert run("memory:") == ["{'a': (1, 2), 'b': 3} True 0"]


def test_postgres_works(postgres_url: str) -> None:
    assert run(postgres_url) == ["{'a': (1, 2), 'b': 3} True 0"]


def test_files_are_refused_in_one_sentence_that_names_what_works() -> None:
    for told in run("agents.db", "sqlite:agents.db", "file:agents"):
        assert "need Linux or macOS" in told
        assert "postgresql://" in told
