"""A process without descriptors: everything either works or says what to do, and works again when there are some."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from addresses import ALL

import savegame

CHILD = """
import os, resource, sys
import savegame

address, exported, left, first = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
state = {"messages": [{"role": "user", "content": "word"}]}

def work(name):
    with savegame.open(address) as vault:
        thread = vault.thread(name)
        thread.save(state)
        assert thread.state() == state
        assert [hit.thread_id for hit in vault.search("word")].count(name) == 1
        vault.stats()
        vault.verify()
        vault.export(f"{exported}.{name}.{left}")
        vault.import_(exported)

if first == "opened before":
    work("before")
taken = []
try:
    while True:
        taken.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    pass
for _ in range(left):
    os.close(taken.pop())
said = "done"
try:
    work("without")
except savegame.UnavailableError as error:
    said = str(error)
finally:
    for descriptor in taken:
        os.close(descriptor)
print(said)
work("after")
"""


OTHER = """
from savegame.stores.memory import MemoryStore
def open_url(url, **options):
    return MemoryStore()
"""


def run(*arguments: object, **environment: str) -> str:
    command = [sys.executable, "-c", CHILD, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ | environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    with savegame.open("memory:") as vault:
        vault.thread("exported").save({"a": 1})
        vault.export(tmp_path / "exported.jsonl")
    return tmp_path / "exported.jsonl"


@pytest.mark.parametrize("first", ["opened before", "opened without"])
@pytest.mark.parametrize("store", ALL)
def test_without_descriptors_it_is_told_what_to_do(
    store: str, first: str, exported: Path, address_of: Callable[..., str]
) -> None:
    for left in (0, 1, 2, 4, 6):
        said = run(address_of(store, f"vault {left}.db"), exported, left, first)
        assert said == "done" or "ulimit -n" in said, f"{left}: {said}"


SECOND = """
import os, resource, sys
import savegame

resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
with savegame.open(sys.argv[1]) as vault:
    vault.thread("t").save({"n": 1})
    taken = []
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass
    for _ in range(int(sys.argv[2])):
        os.close(taken.pop())
    said = "done"
    try:
        with vault.connection():
            pass
    except savegame.UnavailableError as error:
        said = str(error)
    for descriptor in taken:
        os.close(descriptor)
    vault.thread("t").save({"n": 2})
    print(said)
"""


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_second_connection_without_descriptors(store: str, address_of: Callable[..., str]) -> None:
    for left in range(4):
        command = [sys.executable, "-c", SECOND, address_of(store, f"vault {left}.db"), str(left)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == "done" or "ulimit -n" in done.stdout, f"{left}: {done.stdout}"


def test_a_store_of_another_package_is_not_taken_to_be_missing(tmp_path: Path, exported: Path) -> None:
    """Python would not only find no entry points, but remember that there are none."""
    (tmp_path / "other_store.py").write_text(OTHER)
    about = tmp_path / "other_store-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: other-store\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[savegame.stores]\nother = other_store:open_url\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    assert "ulimit -n" in run("other:", exported, 0, "opened without", PYTHONPATH=path)
