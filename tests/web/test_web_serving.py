"""`savegame ui` as people start it, and how much a page reads of a large store."""

from __future__ import annotations

import http.client
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pages_site import fill, site_on

import savegame
from savegame.model import Frame, ThreadKey
from savegame.stores.memory import MemoryStore
from savegame.vault import Vault
from savegame.web.thread_page import ROWS


def test_the_command_prints_a_link_serves_and_ends(tmp_path: Path) -> None:
    with savegame.open(tmp_path / "agents.db") as vault:
        fill(vault)
    command = [sys.executable, "-u", "-m", "savegame", "ui", "--no-open", "--store", str(tmp_path / "agents.db")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as ui:
        assert ui.stdout is not None
        link = next(line for line in ui.stdout if "http://127.0.0.1:" in line).split()[-1]
        authority = link.partition("#")[0].split("/")[2]
        connection = http.client.HTTPConnection(authority, timeout=60)
        connection.request("GET", "/")
        assert connection.getresponse().status == 200
        connection.close()
        ui.send_signal(signal.SIGINT)
        assert ui.wait(60) == 0


def test_the_command_refuses_an_address_that_others_can_reach(tmp_path: Path) -> None:
    savegame.open(tmp_path / "agents.db").close()
    command = [sys.executable, "-m", "savegame", "ui", "--host", "0.0.0.0", "--store", str(tmp_path / "agents.db")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == savegame.InvalidInputError.exit_code
    assert "other machines" in done.stderr


@pytest.mark.parametrize("store", ["file", "sqlite"])
def test_a_vault_that_is_only_read_is_shown(store: str, tmp_path: Path) -> None:
    address = f"{store}:{tmp_path / 'vault'}"
    with savegame.open(address) as vault:
        fill(vault)
    with savegame.open(address, read_only=True) as vault, site_on(vault, read_only=True) as site:
        for page, asked in (("threads", {}), ("hits", {"q": "parcel"}), ("thread", {"id": "support-42"}), ("runs", {})):
            assert site.get(page, **asked).status == 200
        while "Still counting" in (text := site.get("store").text):
            pass
        assert "Checkpoints per day" in text


class CountingStore(MemoryStore):
    """Counts the frames that were read, and the states that were brought back."""

    def __init__(self) -> None:
        super().__init__()
        self.read = self.brought = 0

    def frames(self, key: ThreadKey, **options: Any) -> list[Frame]:
        found = super().frames(key, **options)
        self.read += len(found)
        return found

    def chain(self, key: ThreadKey, seq: int, **options: Any) -> Any:
        self.brought += 1
        return super().chain(key, seq, **options)


@pytest.fixture
def long_thread() -> Iterator[tuple[Vault, CountingStore]]:
    store = CountingStore()
    with savegame.Vault(store) as vault:
        thread = vault.thread("long")
        for number in range(5000):
            thread.update(append={"messages": [{"role": "user", "content": f"number {number}"}]})
        yield vault, store


def test_a_page_of_a_long_thread_reads_a_page_of_it(long_thread: tuple[Vault, CountingStore]) -> None:
    vault, store = long_thread
    middle = vault.thread("long").load(2500)
    with site_on(vault) as site:
        site.get("threads")
        for asked in ({}, {"at": middle.id}, {"at": middle.id, "view": "changes"}, {"before": middle.id}, {"view": "state"}):
            store.read = store.brought = 0
            page = site.get("thread", id="long", **asked)
            assert page.text.count('<li class="row') == ROWS
            assert len(page.text) < 200_000
            assert store.read < 1300, asked
            assert store.brought < 10, asked


def test_a_second_look_at_many_threads_reads_only_what_changed() -> None:
    store = CountingStore()
    with savegame.Vault(store) as vault:
        for number in range(500):
            vault.thread(f"thread-{number:03}").save({"number": number})
        with site_on(vault) as site:
            while "of 500 read" in site.get("threads").text:
                pass
            vault.thread("thread-007").save({"number": "changed"}, label="new")
            store.brought = 0
            while "thread-007" not in (text := site.get("threads").text[:8000]) or "just now" not in text:
                pass
            assert store.brought < 10
