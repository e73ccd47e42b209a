"""Which store to break: the schemes of those that outlive a process."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["file", "sqlite"])
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)
