"""What pages say while a store is slow, silent or broken."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from pages_site import Site, fill, site_on, texts

import savegame
from savegame.errors import UnavailableError
from savegame.model import Problem, ThreadKey
from savegame.stores.memory import MemoryStore
from savegame.testing.postgres import Cluster
from savegame.vault import Vault


class TroubledStore(MemoryStore):
    """Raises what it is given, and does not answer until it is told to: not at all, or not about ledgers."""

    def __init__(self) -> None:
        super().__init__()
        self.error: Exception | None = None
        self.refused = 0
        self.answers, self.ledgers = threading.Event(), threading.Event()
        self.answers.set()
        self.ledgers.set()

    def heads(self, *args: Any, **options: Any) -> Any:
        self._trouble()
        return super().heads(*args, **options)

    def thread(self, key: ThreadKey) -> Any:
        self._trouble()
        return super().thread(key)

    def check(self, namespace: str, thread_id: str | None = None) -> Iterator[Problem]:
        self._trouble()
        return super().check(namespace, thread_id)

    def records(self, *args: Any, **options: Any) -> Any:
        self.ledgers.wait()
        return super().records(*args, **options)

    def fingerprints(self, keys: Any) -> list[bytes]:
        return [b"never changed"] * len(keys)

    def _trouble(self) -> None:
        self.answers.wait()
        if self.error is not None:
            self.refused += 1
            raise self.error


def settle(site: Site) -> None:
    """Until everything was read once."""
    while " so far" in (page := site.get("threads").text) or "still being read" in page:
        pass


@pytest.fixture
def store() -> TroubledStore:
    return TroubledStore()


@pytest.fixture
def site(store: TroubledStore) -> Iterator[Site]:
    with savegame.Vault(store) as vault:
        fill(vault)
        with site_on(vault, patience=2) as made:
            settle(made)
            yield made
            store.error = None
            store.answers.set()


def test_what_nobody_expected_is_a_page_that_says_so(site: Site, store: TroubledStore) -> None:
    store.error = ZeroDivisionError("odd")
    page = site.get("thread", id="plain")
    assert page.status == 500
    assert "internal error" in page.text
    assert "Nothing was changed" not in page.text


def test_a_check_that_ends_early_is_not_running_for_ever(site: Site, store: TroubledStore) -> None:
    store.error = ZeroDivisionError("odd")
    site.post("check")
    while "Reading every byte" in (text := site.get("check").text):
        pass
    assert "the check failed" in text


@pytest.mark.parametrize("error", [UnavailableError("the server is gone"), ZeroDivisionError("the server is gone")])
def test_pages_say_since_when_and_why_they_are_old(site: Site, store: TroubledStore, error: Exception) -> None:
    assert "Out of date" not in site.get("threads").text
    store.error = error
    while "Out of date" not in (page := site.get("threads").text):
        pass
    assert "UTC: the server is gone" in texts(page)
    assert "support-42" in page
    store.error = None
    while "Out of date" in site.get("threads").text:
        pass


def test_the_log_says_once_what_every_attempt_meets(site: Site, store: TroubledStore, caplog: pytest.LogCaptureFixture) -> None:
    store.error = UnavailableError("the server is gone")
    attempts = store.refused
    while store.refused < attempts + 3:
        site.get("threads")
    said = [record for record in caplog.records if "the server is gone" in record.getMessage()]
    assert len(said) == 1


def test_a_silent_store_does_not_keep_a_page_waiting(site: Site, store: TroubledStore) -> None:
    store.answers.clear()
    page = site.get("thread", id="plain")
    assert page.status == UnavailableError.http_status
    assert "did not answer" in page.text
    store.answers.set()
    while site.get("thread", id="plain").status != 200:
        pass


def test_a_postgresql_that_was_stopped_is_told_of_and_noticed_when_it_is_back() -> None:
    with Cluster() as cluster, savegame.open(f"{cluster.url()}?deadline=4") as vault:
        fill(vault)
        with site_on(vault, patience=2) as site:
            settle(site)
            cluster.stop()
            for page in ("threads", "runs", "store"):
                while "Out of date" not in (text := texts(site.get(page).text)):
                    pass
                assert re.search(r"last read \d.* UTC: \w", text)
            assert "support-42" in site.get("threads").text
            assert site.get("thread", id="support-42").status == UnavailableError.http_status
            cluster.start()
            for page in ("threads", "runs", "store"):
                while "Out of date" in site.get(page).text:
                    pass
            while site.get("thread", id="support-42").status != 200:
                pass


def test_a_list_of_many_threads_is_whole_before_their_calls_are_read(store: TroubledStore) -> None:
    with Vault(store) as vault:
        for number in range(1000):
            vault.thread(f"thread-{number:04}").save({"number": number})
        store.ledgers.clear()
        with site_on(vault) as site:
            while " so far" in (page := site.get("threads").text):
                pass
            assert "1,000 threads; tags and calls are still being read" in page
            assert "thread-0999" in page
            assert "No thread matches" in site.get("threads", q="zebra").text
            assert "No matches so far" in site.get("threads", tag="zebra").text
            store.ledgers.set()
            while "still being read" in site.get("threads").text:
                pass
            assert "No thread" in site.get("threads", tag="zebra").text


def test_nothing_is_said_to_be_missing_before_all_was_read(store: TroubledStore) -> None:
    with Vault(store) as vault:
        fill(vault)
        store.answers.clear()
        with site_on(vault) as site:
            page = site.get("threads", q="support").text
            assert "No matches so far" in page
            assert "Nothing saved yet" not in page
            store.answers.set()
            while "support-42</bdi>" not in site.get("threads", q="support").text:
                pass
