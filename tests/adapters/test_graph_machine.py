"""Graphs on each store, driven step by step and compared with LangGraph's own saver."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from graph_machine import GraphMachine
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

import savegame
from savegame.testing.postgres import PostgresServer
from savegame.vault import Vault


class MemoryMachine(GraphMachine):
    def make_vault(self) -> Vault:
        return savegame.open("memory:")


class SQLiteMachine(GraphMachine):
    address: ClassVar[str] = "sqlite:{}/vault.db"

    def open(self) -> Vault:
        return savegame.open(self.address.format(self.directory), durability="process")

    def make_vault(self) -> Vault:
        self.directory = Path(tempfile.mkdtemp(prefix="savegame-graphs-"))
        return self.open()

    def reopen(self, vault: Vault) -> Vault | None:
        vault.close()
        return self.open()

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            if hasattr(self, "directory"):
                shutil.rmtree(self.directory)


class FileMachine(SQLiteMachine):
    address = "file:{}/vault"


class PostgresMachine(GraphMachine):
    """All runs share a database; each has a namespace of its own."""

    url: ClassVar[str]

    def open(self) -> Vault:
        return savegame.open(self.url, durability="process", namespace=self.namespace)

    def make_vault(self) -> Vault:
        self.namespace = uuid.uuid4().hex
        return self.open()

    def reopen(self, vault: Vault) -> Vault | None:
        vault.close()
        return self.open()


STEADY = settings(
    max_examples=20,
    stateful_step_count=12,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
FEW = settings(STEADY, max_examples=5)
LONG = settings(STEADY, max_examples=1000, stateful_step_count=30)

TestMemory = MemoryMachine.TestCase
TestMemory.settings = STEADY
TestSQLite = SQLiteMachine.TestCase
TestSQLite.settings = FEW
TestFile = FileMachine.TestCase
TestFile.settings = FEW
TestPostgres = PostgresMachine.TestCase
TestPostgres.settings = FEW


@pytest.fixture(scope="module", autouse=True)
def database(postgres_server: PostgresServer) -> Iterator[None]:
    with postgres_server.fresh_database() as url:
        PostgresMachine.url = url
        yield


@pytest.mark.campaign
@pytest.mark.timeout(0)
@pytest.mark.parametrize("machine", [MemoryMachine, FileMachine, SQLiteMachine, PostgresMachine])
def test_campaign(machine: type[GraphMachine]) -> None:
    run_state_machine_as_test(machine, settings=LONG)
