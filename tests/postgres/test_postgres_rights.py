"""Tables that one user makes and another uses: an error says which rights are missing, and with those it works."""

from __future__ import annotations

import re
import secrets
from urllib.parse import urlsplit

import pytest

import savegame
from savegame.errors import UnavailableError
from savegame.testing.postgres import PostgresServer

TABLES = "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA savegame TO {0}"
GRANTS = ("GRANT USAGE ON SCHEMA savegame TO {0}", TABLES, "GRANT USAGE ON ALL SEQUENCES IN SCHEMA savegame TO {0}")


@pytest.fixture
def app(url: str) -> str:
    """The address of a user with the rights on the tables that were there when the owner had migrated."""
    name, password = f"app_{secrets.token_hex(4)}", secrets.token_hex(8)
    savegame.open(url).close()
    for statement in (f"CREATE ROLE {name} LOGIN PASSWORD '{password}'", *GRANTS):
        PostgresServer(url).execute(statement.format(name))
    parts = urlsplit(url)
    return parts._replace(netloc=f"{name}:{password}@{parts.hostname}:{parts.port}").geturl()


def granted(url: str, app: str, told: UnavailableError, pattern: str) -> None:
    """Grant what an error asks for, in the words of the error."""
    found = re.search(pattern, str(told))
    assert found is not None, told
    statement = re.sub(r"\bs\b", "savegame", re.sub(r"\bu\b", str(urlsplit(app).username), found[0]))
    PostgresServer(url).execute(statement)


def said(vault: savegame.Vault, thread_id: str) -> None:
    vault.thread(thread_id).save({"messages": [{"role": "user", "content": "hello world"}]})


def test_who_may_not_make_the_search_index_is_told_what_to_grant(url: str, app: str) -> None:
    with savegame.open(app) as vault:
        said(vault, "t")
        with pytest.raises(UnavailableError) as told:
            vault.search("hello")
        granted(url, app, told.value, "GRANT CREATE ON SCHEMA s TO u")
        assert len(vault.search("hello").hits) == 1


def test_an_index_that_somebody_else_made_needs_rights_too(url: str, app: str) -> None:
    with savegame.open(app) as vault, savegame.open(url) as owner:
        said(vault, "t")
        assert len(owner.search("hello").hits) == 1
        with pytest.raises(UnavailableError) as told:
            vault.search("hello")
        granted(url, app, told.value, r"GRANT SELECT[\w, ]+ ON ALL TABLES IN SCHEMA s TO u")
        assert len(vault.search("hello").hits) == 1


def test_default_privileges_are_enough_for_an_index_that_comes_later(url: str, app: str) -> None:
    with savegame.open(app) as vault, savegame.open(url) as owner:
        PostgresServer(url).execute(TABLES.format(urlsplit(app).username).replace("GRANT", "REVOKE").replace(" TO ", " FROM "))
        with pytest.raises(UnavailableError) as told:
            said(vault, "t")
        granted(url, app, told.value, r"GRANT SELECT[\w, ]+ ON ALL TABLES IN SCHEMA s TO u")
        granted(url, app, told.value, r"ALTER DEFAULT PRIVILEGES IN SCHEMA s GRANT [\w, ]+ ON TABLES TO u")
        said(vault, "t")
        owner.search("hello")
        assert len(vault.search("hello").hits) == 1


def test_words_that_could_not_be_erased_are_told_of(url: str, app: str) -> None:
    with savegame.open(app) as vault, savegame.open(url) as owner:
        said(vault, "t")
        vault.thread("t").attach_subject("somebody")
        owner.search("hello")
        erased = vault.erase("somebody")
        assert (erased.threads, erased.complete) == (("t",), False)
        assert "search index" in erased.unreached[0]
