"""Every store, driven step by step against a plain model."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

import savegame
from savegame.testing import VaultMachine
from savegame.testing.postgres import PostgresServer
from savegame.vault import Vault


class MemoryMachine(VaultMachine):
    def make_vault(self) -> Vault:
        return savegame.open("memory:")


class SQLiteMachine(VaultMachine):
    def make_vault(self) -> Vault:
        self.directory = Path(tempfile.mkdtemp(prefix="savegame-machine-"))
        return savegame.open(self.directory / "vault.db", durability="process")

    def reopen(self, vault: Vault) -> Vault | None:
        vault.close()
        return savegame.open(self.directory / "vault.db", durability="process")

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            if hasattr(self, "directory"):
                shutil.rmtree(self.directory)


class FileMachine(SQLiteMachine):
    def make_vault(self) -> Vault:
        self.directory = Path(tempfile.mkdtemp(prefix="savegame-machine-"))
        return savegame.open(f"file:{self.directory}/vault", durability="process")

    def reopen(self, vault: Vault) -> Vault | None:
        vault.close()
        return savegame.open(f"file:{self.directory}/vault", durability="process")


class SmallCacheMachine(SQLiteMachine):
    """A cache that holds a state now and then, bodies never compressed."""

    def make_vault(self) -> Vault:
        self.directory = Path(tempfile.mkdtemp(prefix="savegame-machine-"))
        return savegame.open(self.directory / "vault.db", durability="process", cache_bytes=4096, compress=False)


class PostgresMachine(VaultMachine):
    """All runs share a database; each has a namespace of its own."""

    url: ClassVar[str]

    def make_vault(self) -> Vault:
        self.namespace = uuid.uuid4().hex
        return savegame.open(self.url, durability="process", namespace=self.namespace)

    def reopen(self, vault: Vault) -> Vault | None:
        vault.close()
        return savegame.open(self.url, durability="process", namespace=self.namespace)


HURRIED = settings(
    max_examples=40,
    stateful_step_count=25,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
LONG = settings(HURRIED, max_examples=2000, stateful_step_count=60)

FEWER = settings(HURRIED, max_examples=15)
"""For where each step waits for a disk or a server: what does not depend on the store is tried in memory."""

TestMemory = MemoryMachine.TestCase
TestMemory.settings = HURRIED
TestSQLite = SQLiteMachine.TestCase
TestSQLite.settings = FEWER
TestFile = FileMachine.TestCase
TestFile.settings = FEWER
TestPostgres = PostgresMachine.TestCase
TestPostgres.settings = FEWER
TestSmallCache = SmallCacheMachine.TestCase
TestSmallCache.settings = FEWER


@pytest.fixture(scope="module", autouse=True)
def database(postgres_server: PostgresServer) -> Iterator[None]:
    with postgres_server.fresh_database() as url:
        PostgresMachine.url = url
        yield


@pytest.mark.campaign
@pytest.mark.timeout(0)
@pytest.mark.parametrize("machine", [MemoryMachine, FileMachine, SQLiteMachine, PostgresMachine, SmallCacheMachine])
def test_campaign(machine: type[VaultMachine]) -> None:
    run_state_machine_as_test(machine, settings=LONG)
