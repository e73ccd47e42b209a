"""What is wrong with a server, a database or a login is said in one sentence, with the next step and without the password."""

from __future__ import annotations

import re
import secrets
from urllib.parse import urlsplit

import pytest

import savegame
from savegame.errors import SavegameError, StoreNotFound, UnavailableError, UnsupportedError
from savegame.testing.postgres import Cluster, free_port
from savegame.testing.proxy import Proxy


def refused(url: str, error: type[SavegameError], *words: str) -> str:
    """What `open` says; it must be of that kind, have those words in it, and keep the password to itself."""
    with pytest.raises(error) as told:
        savegame.open(url)
    text = str(told.value)
    assert all(word in text for word in words), text
    password = urlsplit(url).password
    assert password not in text
    assert password not in repr(told.value.__cause__)
    return text


def with_login(url: str, user: str, password: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=f"{user}:{password}@{parts.hostname}:{parts.port}").geturl()


@pytest.fixture
def somebody(shared_cluster: Cluster) -> tuple[str, str]:
    """A user without any right."""
    name, password = f"user_{secrets.token_hex(4)}", secrets.token_hex(8)
    shared_cluster.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{password}'")
    return name, password


def test_a_wrong_password(url: str) -> None:
    refused(with_login(url, "postgres", "not-the-password"), UnavailableError, "password", "postgres")


def test_a_database_that_is_not_there(shared_cluster: Cluster) -> None:
    refused(shared_cluster.url("nothing_here"), StoreNotFound, "nothing_here", "createdb")


def test_a_right_that_is_missing(url: str, somebody: tuple[str, str], shared_cluster: Cluster) -> None:
    database = urlsplit(url).path[1:]
    told = refused(with_login(url, *somebody), UnavailableError, somebody[0])
    grant = re.search(r'GRANT .*? TO "[^"]+"', told)
    assert grant is not None
    shared_cluster.execute(grant[0], database=database)
    with savegame.open(with_login(url, *somebody)) as vault:
        vault.thread("t").save("as told")


def test_a_right_that_is_missing_on_tables_that_are_there(url: str, somebody: tuple[str, str], shared_cluster: Cluster) -> None:
    savegame.open(url).close()
    refused(with_login(url, *somebody), UnavailableError, somebody[0], "GRANT")


def test_a_standby_that_only_reads(shared_cluster: Cluster) -> None:
    with savegame.open(shared_cluster.url()) as vault:
        vault.thread("t").save("on the primary")
    with shared_cluster.standby() as standby:
        refused(f"{standby.url()}?deadline=1", UnavailableError, "standby", "primary", "read_only=True")
        with savegame.open(standby.url(), read_only=True) as vault:
            assert vault.thread("t").state() == "on the primary"


def test_a_server_that_is_too_old(proxied: str, proxy: Proxy, shared_cluster: Cluster) -> None:
    """The real one, whose greeting is changed on the way."""
    ((version, number),) = shared_cluster.execute(
        "SELECT current_setting('server_version'), current_setting('server_version_num')"
    )
    old = {version.encode(): b"12" + version.encode()[2:], number.encode(): b"12" + number.encode()[2:]}
    proxy.rewrite = lambda reply: re.sub(b"|".join(map(re.escape, old)), lambda found: old[found[0]], reply)
    refused(proxied, UnsupportedError, "12", "13")


def test_a_database_that_is_not_in_utf_8(shared_cluster: Cluster) -> None:
    shared_cluster.execute("CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'")
    refused(shared_cluster.url("latin"), UnsupportedError, "LATIN1", "UTF8")


def test_a_schema_that_is_newer_than_the_library(url: str, shared_cluster: Cluster) -> None:
    with savegame.open(url) as vault:
        vault.thread("t").save("kept")
    database = urlsplit(url).path[1:]
    shared_cluster.execute(
        "INSERT INTO savegame.layout (version) SELECT max(version) + 1 FROM savegame.layout", database=database
    )
    refused(url, UnsupportedError, "has format 2", "install a newer savegame")
    shared_cluster.execute(
        "DELETE FROM savegame.layout WHERE version = (SELECT max(version) FROM savegame.layout)", database=database
    )
    with savegame.open(url) as vault:
        assert vault.thread("t").state() == "kept"
        assert vault.verify().ok


def test_no_server() -> None:
    refused(f"postgresql://postgres:secret-word@127.0.0.1:{free_port()}/postgres?deadline=1", UnavailableError, "127.0.0.1")


def test_a_host_that_nobody_knows() -> None:
    refused("postgresql://postgres:secret-word@nowhere.invalid/postgres?deadline=1", UnavailableError, "nowhere.invalid")
