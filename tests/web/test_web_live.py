"""Pages that are asked for again and again: nothing is made twice, and nothing new is missed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pages_site import Answer, Site, converse, fill, one_call, site_on

import savegame
from savegame.model import Frame, ThreadKey
from savegame.stores.memory import MemoryStore
from savegame.vault import Vault


class CountingStore(MemoryStore):
    """Counts how often a history was read."""

    def __init__(self) -> None:
        super().__init__()
        self.histories = 0

    def frames(self, key: ThreadKey, **options: Any) -> list[Frame]:
        self.histories += bool(options.get("newest_first"))
        return super().frames(key, **options)


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


@pytest.fixture
def vault(store: CountingStore) -> Iterator[Vault]:
    with savegame.Vault(store) as opened:
        fill(opened)
        yield opened


@pytest.fixture
def site(vault: Vault) -> Iterator[Site]:
    with site_on(vault) as made:
        while "still being read" in made.get("threads").text:
            pass
        yield made


def again(site: Site, path: str, mark: str) -> Answer:
    return site.ask("GET", site.room + path, None, {"Cookie": site.cookie, "If-None-Match": mark})


def unchanged(site: Site, path: str) -> str:
    """The mark of a page once asking again for it finds nothing new: what was read beside it has settled."""
    answer = again(site, path, "")
    mark = answer.headers["etag"]
    while (answer := again(site, path, mark)).status != 304:
        mark = answer.headers["etag"]
    assert answer.headers["etag"] == mark
    assert not answer.text
    return mark


THREAD = "thread?id=support-42"
CHANGES: dict[str, tuple[list[str], Callable[[Vault], object]]] = {
    "a checkpoint": (["threads", THREAD], lambda vault: vault.thread("support-42").update(set={"x": 1})),
    "a label": ([THREAD], lambda vault: vault.thread("support-42").label("head", "here")),
    "a tag": (["threads", THREAD], lambda vault: vault.thread("support-42").tag("head", "odd")),
    "a rewind": (["threads", THREAD], lambda vault: vault.thread("support-42").rewind("before the voucher")),
    "a fork": (["threads", THREAD], lambda vault: vault.thread("support-42").fork("another")),
    "a deleted thread": (["threads"], lambda vault: vault.thread("plain").delete()),
    "a call that waits": (
        ["threads", THREAD, "runs"],
        lambda vault: converse(vault, "second", "Pay.", one_call("wire", iban="FR14", cents=1)),
    ),
    "an answer": (
        ["threads", THREAD, "runs"],
        lambda vault: vault.answer("invoice", next(call.key for call in vault.calls("invoice")), True),
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_a_page_shows_arrives_when_it_changes(site: Site, vault: Vault, change: str) -> None:
    paths, make = CHANGES[change]
    marks = {path: unchanged(site, path) for path in paths}
    make(vault)
    for path, mark in marks.items():
        while (answer := again(site, path, mark)).status == 304:
            pass
        assert answer.status == 200
        assert answer.headers["etag"] != mark


def test_a_run_that_holds_a_thread_arrives(site: Site, vault: Vault) -> None:
    marks = {path: unchanged(site, path) for path in ("threads", "thread?id=plain", "runs")}
    with vault.run("plain"):
        for path, mark in marks.items():
            while again(site, path, mark).status == 304:
                pass


def test_a_page_that_is_unchanged_is_not_made_again(site: Site, store: CountingStore) -> None:
    mark = unchanged(site, THREAD)
    before = store.histories
    polls = [again(site, THREAD, mark).status for _ in range(50)]
    assert polls == [304] * 50
    assert store.histories - before < 50  # it may be made once or twice though nothing happened, because ages pass
