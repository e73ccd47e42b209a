"""What all tests share: the long campaigns run only when asked for, and only they draw new random examples.

The default run draws the same examples every time, so that it says something about the change that is being tested.
"""

from __future__ import annotations

import sys

import hypothesis
import pytest

hypothesis.settings.register_profile("steady", derandomize=True, database=None)
if "--campaign" not in sys.argv:
    hypothesis.settings.load_profile("steady")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--campaign", action="store_true", help="run the long crash, power-cut, fault and history campaigns too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--campaign"):
        return
    skip = pytest.mark.skip(reason="a long campaign: run with --campaign")
    for item in items:
        if item.get_closest_marker("campaign"):
            item.add_marker(skip)
