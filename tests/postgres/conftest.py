"""Servers to break: private ones, and a proxy in front of one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from savegame.testing.postgres import Cluster
from savegame.testing.proxy import Proxy


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A server that flushes what it writes, as real ones do."""
    with Cluster(fsync="on") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[Cluster]:
    """One that the tests of a module share: none of them stops it."""
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def proxy(shared_cluster: Cluster) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", shared_cluster.port) as proxy:
        yield proxy


@pytest.fixture
def url(shared_cluster: Cluster) -> Iterator[str]:
    """An empty database."""
    with shared_cluster.fresh_database() as url:
        yield url


@pytest.fixture
def proxied(url: str, shared_cluster: Cluster, proxy: Proxy) -> str:
    """The same database, through the proxy."""
    return url.replace(f":{shared_cluster.port}/", f":{proxy.port}/")
