"""The PostgreSQL store: the contract, what two stores see of each other, layouts, and writes whose reply was lost."""

from __future__ import annotations

import datetime as dt
import gc
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import psycopg
import pytest

import savegame
from savegame.errors import (
    ClosedError,
    ConflictError,
    InvalidInputError,
    TransactionFailed,
    UnavailableError,
    UnsupportedError,
)
from savegame.model import ThreadKey
from savegame.store import Append, DeleteThread, Layout, PutRecord, Store
from savegame.stores.postgres import PostgresStore, open_url
from savegame.stores.postgres.link import Link, Patience
from savegame.stores.postgres.work import _forget_marks
from savegame.testing import StoreContract
from savegame.testing.contract.helpers import at_once
from savegame.testing.faults import PATIENCE_S
from savegame.testing.postgres import PostgresServer
from savegame.testing.proxy import Proxy

A = ThreadKey("default", "a")
MINUTE = 60_000_000


class TestPostgresStore(StoreContract):
    @pytest.fixture
    def store(self, postgres_url: str) -> Iterator[Store]:
        self.url = postgres_url
        store = open_url(postgres_url)
        yield store
        store.close()

    def reopen(self, store: Store) -> Store:
        assert isinstance(store, PostgresStore)
        store.close()
        return open_url(self.url)


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresStore]:
    store = open_url(postgres_url)
    yield store
    store.close()


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[Proxy]:
    parts = urlsplit(postgres_url)
    with Proxy(parts.hostname or "", parts.port or 5432) as proxy:
        yield proxy


@pytest.fixture
def behind(postgres_url: str, proxy: Proxy) -> Iterator[PostgresStore]:
    """A store whose connections go through the proxy, with a thread that it remembers."""
    parts = urlsplit(postgres_url)
    address = parts._replace(netloc=f"{parts.username}:{parts.password}@127.0.0.1:{proxy.port}").geturl()
    store = open_url(f"{address}?deadline=3")
    store.commit([plain(store, 0)])
    yield store
    store.close()


def plain(store: Store, base: int, **more: object) -> Append:
    """What continues a thread at the frame `base`."""
    row = store.thread(A)
    head = row.head_id if row else None
    return Append(A, store.new_id(A), base, b"meta", b"%d." % (base + 1), expect=head, fresh=True)._replace(**more)  # type: ignore[arg-type]


def state(store: Store) -> bytes:
    row = store.thread(A)
    assert row is not None
    return b"".join(store.chain(A, row.head).deltas)


# -- what is remembered ----------------------------------------------------------------------------


def test_what_another_store_wrote_is_noticed(store: PostgresStore, postgres_url: str) -> None:
    """A store remembers rows; the database decides."""
    other = open_url(postgres_url)
    store.commit([plain(store, 0)])
    mine, late = plain(store, 1), plain(store, 1)
    assert other.commit([plain(other, 1)]) == [2]
    with pytest.raises(ConflictError):
        store.commit([late])
    other.commit([DeleteThread(A)])
    other.commit([plain(other, 0)])
    with pytest.raises(ConflictError):
        store.commit([mine])
    assert state(store) == b"1."
    other.close()


def test_what_a_lost_history_left_behind_fits_no_other(store: PostgresStore, postgres_url: str) -> None:
    """A backup that is restored, or a fail-over that loses commits: who remembers them must not go on from them."""
    other = open_url(postgres_url)
    store.commit([plain(store, 0)])
    with other.connection() as db:
        db.execute("CREATE SCHEMA backup")
        db.execute("CREATE TABLE backup.thread AS TABLE savegame.thread")
    store.commit([plain(store, 1)])
    with other.connection() as db:
        db.execute("DELETE FROM savegame.frame WHERE seq = 2")
        db.execute("DELETE FROM savegame.thread")
        db.execute("INSERT INTO savegame.thread TABLE backup.thread")
    remembered = store._committed._rows[A]
    other.commit([plain(other, 1)._replace(delta=b"theirs.")])
    with pytest.raises(ConflictError):
        store.commit([Append(A, store.new_id(A), 2, b"", b"3.", expect=remembered.head_id, fresh=True)])
    assert state(other) == b"1.theirs."
    other.close()


def test_the_head_counts_too_and_not_the_version_alone(store: PostgresStore) -> None:
    store.commit([plain(store, 0)])
    change = plain(store, 1)
    made = store._committed.plain_append(change)
    assert made is not None
    values = list(made[1])
    values[3] = "another head"
    assert store._ask("append", *values)[0][0] is None
    assert store._ask("append", *made[1])[0][0] is not None


def test_nothing_is_remembered_of_a_server_that_was_lost(behind: PostgresStore, proxy: Proxy) -> None:
    other = ThreadKey("default", "other")
    behind.commit([Append(other, "one", 0, b"", b"")])
    proxy.cut_all()
    assert behind.thread(A) is not None
    assert other not in behind._committed._rows


def test_what_was_rolled_back_is_not_remembered(store: PostgresStore) -> None:
    store.commit([plain(store, 0)])

    def fail() -> None:
        with store.connection():
            store.commit([plain(store, 1)])
            assert state(store) == b"1.2."
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert store.commit([plain(store, 1)]) == [2]
    assert state(store) == b"1.2."


def test_a_save_that_is_refused_inside_a_transaction_undoes_only_itself(store: PostgresStore) -> None:
    with store.connection() as db:
        db.execute("CREATE TABLE app (text text)")
        store.commit([plain(store, 0)])
        with pytest.raises(ConflictError):
            store.commit([PutRecord(A, "kind", "name", b""), plain(store, 1, expect="nobody")])
        db.execute("INSERT INTO app VALUES (%s)", ("kept",))
    with store.connection() as db:
        assert db.execute("SELECT text FROM app").fetchall() == [("kept",)]
    assert (state(store), store.records(A, "kind").items) == (b"1.", [])


def test_a_save_in_a_transaction_that_has_failed_does_no_harm(store: PostgresStore) -> None:
    change = plain(store, 0)
    with store.connection() as db:
        db.execute("SAVEPOINT mine")
        with pytest.raises(psycopg.Error):
            db.execute("SELECT nothing")
        with pytest.raises(TransactionFailed, match="a statement in the transaction had failed"):
            store.commit([change])
        db.execute("ROLLBACK TO mine")
        store.commit([change])
    assert state(store) == b"1."


def test_a_transaction_that_failed_inside_is_not_taken_for_done(store: PostgresStore) -> None:
    """PostgreSQL would answer its COMMIT with a roll-back, and no error."""

    def swallow() -> None:
        with store.connection() as db:
            store.commit([plain(store, 0)])
            with pytest.raises(psycopg.Error):
                db.execute("SELECT nothing")

    with pytest.raises(TransactionFailed, match="nothing of the transaction was written"):
        swallow()
    assert store.thread(A) is None


def test_a_transaction_that_was_ended_inside_is_an_error(store: PostgresStore) -> None:
    def end() -> None:
        with store.connection() as db:
            db.rollback()

    with pytest.raises(InvalidInputError, match="ROLLBACK"):
        end()


# -- lost replies ----------------------------------------------------------------------------------

QUICK, FULL = b"append_1", b'INSERT INTO "savegame".landed'
"""What is in the request that a plain append is, and in the one that any other write ends with."""


def appended(store: PostgresStore) -> None:
    assert store.commit([plain(store, 1)]) == [2]
    assert state(store) == b"1.2."


def recorded(store: PostgresStore) -> None:
    store.commit([PutRecord(A, "kind", "name", b"once", absent=True)])
    assert [record.value for record in store.records(A, "kind").items] == [b"once"]


def leased(store: PostgresStore) -> None:
    lease = store.lease(A, "me", MINUTE)
    row = store.thread(A)
    assert row is not None
    assert row.lease == lease


def borrowed(store: PostgresStore) -> None:
    with store.connection() as db:
        db.execute("CREATE TABLE app (number int)")
        store.commit([plain(store, 1)])
    assert state(store) == b"1.2."


@pytest.mark.parametrize(("write", "marker"), [(appended, QUICK), (recorded, FULL), (leased, FULL), (borrowed, FULL)])
def test_a_write_whose_reply_was_lost_is_found(
    write: Callable[[PostgresStore], None], marker: bytes, behind: PostgresStore, proxy: Proxy
) -> None:
    proxy.lose_reply(marker)
    write(behind)
    assert proxy.losses == 1
    assert list(behind.check("default")) == []


@pytest.mark.parametrize(("write", "marker"), [(appended, QUICK), (recorded, FULL), (leased, FULL)])
def test_a_write_that_never_arrived_is_made_again(
    write: Callable[[PostgresStore], None], marker: bytes, behind: PostgresStore, proxy: Proxy
) -> None:
    proxy.lose_request(marker)
    write(behind)
    assert proxy.losses == 1
    assert list(behind.check("default")) == []


def test_a_transaction_that_never_arrived_is_told_to_be_gone(behind: PostgresStore, proxy: Proxy) -> None:
    proxy.lose_request(FULL)
    with pytest.raises(UnavailableError, match="do it again") as raised:
        borrowed(behind)
    assert not raised.value.unknown
    assert state(behind) == b"1."


@pytest.mark.parametrize("marker", [QUICK, FULL])
def test_only_when_nobody_answers_is_the_outcome_unknown(marker: bytes, behind: PostgresStore, proxy: Proxy) -> None:
    change = plain(behind, 1, fresh=marker == QUICK)
    proxy.lose_reply(marker)
    proxy.refusing = True
    with pytest.raises(UnavailableError) as raised:
        behind.commit([change])
    assert (raised.value.unknown, raised.value.checkpoint_id) == (True, change.id)
    proxy.refusing = False
    assert behind.find("default", change.id) == (A, 2)


def test_a_warning_with_a_commit_is_looked_into(store: PostgresStore) -> None:
    """A cancelled wait for a standby is answered with success and a warning: here every new frame brings one."""
    with store.connection() as db:
        db.execute("CREATE TABLE versions (version bigint)")
        db.execute("""CREATE FUNCTION warn() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE WARNING 'canceling wait for synchronous replication'; RETURN NEW; END $$""")
        db.execute("""CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN INSERT INTO public.versions VALUES (NEW.version); RETURN NEW; END $$""")
        db.execute("""CREATE TRIGGER warn AFTER INSERT ON savegame.frame FOR EACH ROW EXECUTE FUNCTION warn()""")
    store.commit([plain(store, 0)])
    with store.connection() as db:
        db.execute("""CREATE TRIGGER note AFTER UPDATE ON savegame.thread FOR EACH ROW EXECUTE FUNCTION note()""")
    assert store.commit([plain(store, 1)]) == [2]
    with store.connection() as db:  # the outcome is known: no write can use the version that the append left
        assert db.execute("SELECT count(DISTINCT version) FROM versions").fetchall() == [(2,)]
    assert state(store) == b"1.2."


def test_what_was_given_up_cannot_happen_later(store: PostgresStore) -> None:
    """A statement still on its way when its write was found missing does nothing any more."""
    store.commit([plain(store, 0)])
    change = plain(store, 1)
    made = store._committed.plain_append(change)
    assert made is not None
    assert store._saving._find_out(change, 2, Patience(PATIENCE_S)) == 0
    assert store._ask("append", *made[1])[0][0] is None
    assert state(store) == b"1."


def test_marks_that_nobody_looks_for_any_more_are_removed_some_at_a_time(store: PostgresStore) -> None:
    store.commit([PutRecord(A, "kind", "name", b"")])
    with store.connection() as db:
        db.execute("""INSERT INTO savegame.landed SELECT '', '', int4send(n), true, now() - interval '2 hours'
            FROM generate_series(1, 1500) AS n""")
    counts = []
    for _ in range(3):
        store._read(_forget_marks)
        with store.connection() as db:
            counts += db.execute("SELECT count(*) FROM savegame.landed WHERE at < now() - interval '1 hour'").fetchall()
            kept = db.execute("SELECT count(*) FROM savegame.landed").fetchall()
    assert counts == [(500,), (0,), (0,)]
    assert kept > [(0,)]


# -- addresses and errors --------------------------------------------------------------------------


def test_what_a_url_says_reaches_libpq_as_it_is_written(postgres_url: str) -> None:
    for written, meant in (("a%20b", "a b"), ("a+b", "a+b")):
        store = open_url(f"{postgres_url}?application_name={written}&deadline=3")
        with store.connection() as db:
            assert db.execute("SHOW application_name").fetchall() == [(meant,)]
        store.close()


def test_a_deadline_ends_before_marks_are_removed(postgres_url: str) -> None:
    with pytest.raises(InvalidInputError, match="deadline="):
        open_url(f"{postgres_url}?deadline=inf")


def test_a_user_who_may_only_read_is_told_which_setting_says_so(store: PostgresStore, postgres_url: str) -> None:
    url = f"{postgres_url}?options=-c%20default_transaction_read_only%3Don"
    with pytest.raises(UnsupportedError, match="default_transaction_read_only"):
        open_url(url)
    open_url(url, read_only=True).close()


def test_tables_of_somebody_else_are_left_alone(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute("CREATE SCHEMA savegame")
        db.execute("CREATE TABLE savegame.thread (theirs int)")
        with pytest.raises(UnsupportedError, match="name another schema"):
            open_url(postgres_url)
        assert db.execute("SELECT relname FROM pg_class WHERE relnamespace = 'savegame'::regnamespace").fetchall() == [
            ("thread",)
        ]


def test_whatever_the_server_refuses_is_an_error_of_ours_with_its_words(store: PostgresStore) -> None:
    with store.connection() as db:
        db.execute("ALTER TABLE savegame.record ADD CONSTRAINT not_here CHECK (name <> 'x')")
    with pytest.raises(UnavailableError, match="not_here"):
        store.commit([PutRecord(A, "kind", "x", b"")])
    with store.connection(), pytest.raises(UnavailableError, match="not_here"):
        store.commit([PutRecord(A, "kind", "x", b"")])


def test_a_transaction_that_the_server_ended_is_told_to_be_gone(store: PostgresStore, postgres_url: str) -> None:
    def idle() -> None:
        with store.connection() as db:
            store.commit([plain(store, 0)])
            ((session,),) = db.execute("SELECT pg_backend_pid()").fetchall()
            db.execute("SET LOCAL idle_in_transaction_session_timeout = 1")
            while PostgresServer(postgres_url).execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", session):
                time.sleep(0.02)

    with pytest.raises(UnavailableError, match="do it again") as raised:
        idle()
    assert not raised.value.unknown
    assert store.thread(A) is None


def test_a_write_that_is_cancelled_says_nothing_beside_its_error(postgres_url: str) -> None:
    """Warnings are errors here, and what psycopg would say on stderr is one."""
    store = open_url(f"{postgres_url}?deadline=1")
    store.commit([plain(store, 0)])
    with psycopg.connect(postgres_url) as other:
        other.execute("SELECT * FROM savegame.thread FOR UPDATE")
        with pytest.raises(UnavailableError, match="longer than deadline="):
            store.commit([PutRecord(A, "kind", "name", b"")])
    gc.collect()
    store.close()


def test_compacting_inside_a_transaction_is_refused(store: PostgresStore) -> None:
    with store.connection(), pytest.raises(InvalidInputError, match="leave connection"):
        store.compact(lambda body: body, lambda done, total: None)


def test_a_connection_that_was_given_up_while_it_was_made_goes_silently() -> None:
    """Ctrl-C leaves one behind that psycopg had only begun with."""
    Link.__new__(Link).__del__()


def test_who_waits_for_a_connection_hears_that_the_store_was_closed(postgres_url: str) -> None:
    store = open_url(f"{postgres_url}?connections=2")
    told: list[str] = []

    def read() -> None:
        try:
            store.thread(A)
        except ClosedError as error:
            told.append(str(error))

    pool = store._work.pool
    links = [pool.take(Patience(PATIENCE_S)) for _ in range(2)]
    waiting = threading.Thread(target=read)
    waiting.start()
    waiting.join(0.2)
    store.close()
    waiting.join(PATIENCE_S)
    assert told
    for link in links:
        pool.give_back(link)


# -- layouts ---------------------------------------------------------------------------------------


def test_many_processes_may_make_the_tables_at_once(postgres_url: str) -> None:
    stores = at_once(*[lambda: open_url(postgres_url)] * 4)
    assert sorted(store.layout for store in stores if isinstance(store, PostgresStore)) == [Layout(0, 1), *[Layout(1, 1)] * 3]
    for store in stores:
        assert isinstance(store, PostgresStore)
        store.close()


def test_many_may_make_the_tables_where_transactions_see_only_what_was_there_before(postgres_url: str) -> None:
    """Each has begun, and waits for the others, before one of them makes the tables."""
    url = f"{postgres_url}?options=-c%20default_transaction_isolation%3Dserializable"
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    with psycopg.connect(postgres_url, autocommit=True) as db, ThreadPoolExecutor(3) as pool:
        db.execute("SELECT pg_advisory_lock(%s::bigint)", (zlib.crc32(b"savegame layout savegame"),))
        opened = [pool.submit(open_url, url) for _ in range(3)]
        deadline = time.monotonic() + PATIENCE_S
        while db.execute(waiting).fetchall() != [(3,)]:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        db.execute("SELECT pg_advisory_unlock_all()")
        stores = [one.result() for one in opened]
    assert sorted(store.layout for store in stores) == [Layout(0, 1), *[Layout(1, 1)] * 2]
    for number, store in enumerate(stores):
        assert store.commit([plain(store, number)]) == [number + 1]
        store.close()


def test_a_newer_layout_is_refused_and_left_alone(store: PostgresStore, postgres_url: str) -> None:
    with store.connection() as db:
        db.execute("INSERT INTO savegame.layout (version) VALUES (1000)")
    with pytest.raises(UnsupportedError, match="1000"):
        open_url(postgres_url)
    assert store._ask("layout") == [(1000,)]


def test_each_schema_is_a_store_of_its_own(store: PostgresStore, postgres_url: str) -> None:
    other = open_url(f"{postgres_url}?schema=Other-1")
    other.commit([plain(other, 0)])
    assert store.thread(A) is None
    other.close()
    for name in ("", 'x"; DROP SCHEMA savegame', "pg_x", "x" * 64, "$$"):
        with pytest.raises(InvalidInputError):
            PostgresStore(postgres_url, schema=name)


def test_a_text_that_cannot_be_kept_cannot_be_asked_for_either(store: PostgresStore) -> None:
    for text in ("\ud800", "a\0b"):
        with pytest.raises(InvalidInputError, match="cannot keep"):
            store.threads("default", after=text)


def test_names_that_no_index_can_hold_are_refused(store: PostgresStore) -> None:
    long = "".join(chr(0x10000 + number * 97 % 0x8000) for number in range(512))
    store.commit([Append(ThreadKey("default", long), "one", 0, b"", b"")])
    with pytest.raises(InvalidInputError, match="too long"):
        store.commit([PutRecord(ThreadKey("default", long), "kind", long, b"")])


# -- hints -----------------------------------------------------------------------------------------


def test_a_thread_that_is_not_there_yet_is_watched_as_soon_as_it_is(store: PostgresStore) -> None:
    store.await_change(A, 0.01)
    store.commit([plain(store, 0)])
    store.await_change(A, 0.01)
    with store.connection() as db:
        assert db.execute("SELECT watched > 0 FROM savegame.thread").fetchall() == [(True,)]


def test_a_connection_that_is_made_while_the_store_is_closed_is_closed_too(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several threads watch: when one loses the connection that all of them listen on, the next one makes another."""
    made: list[Link] = []
    connect = store._work.pool.connect

    def closed_meanwhile(patience: Patience, kind: type[Link]) -> Link:
        made.append(connect(patience, kind))
        store.close()
        return made[-1]

    monkeypatch.setattr(store._work.pool, "connect", closed_meanwhile)
    store._listener.wait(0.1)
    store._listener.wait(0.1)
    assert [link.closed for link in made] == [True]


def test_who_watches_hears_of_a_save_before_it_would_have_looked(postgres_url: str) -> None:
    with savegame.open(postgres_url) as vault, savegame.open(postgres_url) as elsewhere:
        thread = elsewhere.thread("a")
        thread.save(0)
        seen: list[int] = []

        def watch() -> None:
            for _ in vault.thread("a").watch(poll=dt.timedelta(seconds=PATIENCE_S * 10)):
                seen.append(1)
                return

        watcher = threading.Thread(target=watch)
        watcher.start()
        for number in range(int(PATIENCE_S * 20)):
            thread.save(number)
            watcher.join(0.05)
            if not watcher.is_alive():
                break
        assert seen == [1]
