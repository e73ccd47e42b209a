"""What is known of threads without reading their states: info, fingerprints, runs, noted."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import apsw

import savegame
from savegame import Retention, Vault
from savegame.model import ThreadKey


def test_info_is_what_the_listing_shows(vault: Vault) -> None:
    thread = vault.thread("t", agent="a")
    for number in range(3):
        thread.save(number, status="completed")
    thread.rewind(2)
    assert vault.info("t") == next(vault.threads())
    assert vault.info("nobody") is None


def test_info_tells_of_damage(tmp_path: Path) -> None:
    with savegame.open(tmp_path / "vault.db") as vault:
        head = vault.thread("t").save(1)
    db = apsw.Connection(str(tmp_path / "vault.db"))
    db.execute("UPDATE frame SET meta = zeroblob(length(meta)) WHERE id = ?", (bytes.fromhex(head.id),))
    db.close()
    with savegame.open(tmp_path / "vault.db") as vault:
        info = vault.info("t")
        assert info is not None
        assert info.damage is not None


def test_fingerprints_change_with_their_thread_and_only_with_it(vault: Vault) -> None:
    vault.thread("other").save(1)
    thread = vault.thread("t")
    changes = (
        lambda: thread.save(1),
        lambda: thread.save(2),
        lambda: thread.label("head", "x"),
        lambda: thread.tag("head", "y"),
        lambda: thread.rewind(1),
        lambda: thread.put_records({("kind", "name"): 7}),
        lambda: thread.delete(),
    )
    for change in changes:
        before = vault.fingerprints()
        assert vault.fingerprints() == before
        change()
        after = vault.fingerprints()
        assert {name for name in {*before, *after} if before.get(name) != after.get(name)} == {"t"}


def test_fingerprints_are_those_of_one_namespace(vault: Vault) -> None:
    vault.thread("t").save(1)
    assert Vault(vault.store, namespace="another").fingerprints() == {}


def test_runs_tell_who_holds_and_who_held(vault: Vault) -> None:
    with vault.run("t", agent="a", lease=dt.timedelta(minutes=5)) as run:
        run.user("hello")
        (held,) = vault.runs()
        assert (held.thread_id, held.agent_id, held.stale, held.takeovers) == ("t", "a", False, 0)
        assert held.expires_at > dt.datetime.now(dt.UTC)
        assert list(vault.stale()) == []
    assert list(vault.runs()) == []


def test_a_run_that_nobody_holds_any_more_is_stale_in_both_listings(vault: Vault) -> None:
    vault.thread("t").save(1)
    vault.store.lease(ThreadKey("default", "t"), "somebody", 1)
    (found,), (stale,) = vault.runs(), vault.stale()
    assert found.stale
    assert (found.thread_id, found.owner, found.expires_at) == (stale.thread_id, "somebody", stale.expired_at)


def test_noted_are_those_with_a_label_or_tags_on_every_branch(vault: Vault) -> None:
    thread = vault.thread("t")
    for number in range(5):
        thread.save(number)
    thread.label(2, "two")
    thread.tag(4, "four")
    thread.rewind(2)
    assert [(one.step, one.label, one.tags) for one in thread.noted()] == [(4, None, ("four",)), (2, "two", ())]
    assert list(vault.thread("nobody").noted()) == []


def test_what_retention_hides_is_not_noted() -> None:
    with savegame.open("memory:", retention=Retention(max_checkpoints=1, keep_labelled=False)) as vault:
        thread = vault.thread("t")
        thread.save(1, label="old")
        thread.save(2, label="new")
        assert [one.label for one in thread.noted()] == ["new"]
