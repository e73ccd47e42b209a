"""docs/requirements.md is complete and true: every line is there once, every name and every test in it exists."""

from __future__ import annotations

import ast
import importlib
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "requirements.md"

LAST = {"W": 8, "A": 87, "B": 67, "C": 38, "D": 88, "E": 33, "X": 27, "Z": 66}
PARTS = {
    "C05": "abc", "C06": "abcde", "C09": "abcde",
    "D02": "abc", "D03": "ab", "D04": "ab", "D06": "ab", "D13": "abcdefghi", "D17": "abcdefghi", "D21": "abcdefg",
    "D23": "abcde", "D25": "abcdefghij", "D27": "abcde", "D43": "abcd", "D65": " abcdefghijklmn",
    "E01": "abcdefghijk", "E02": "abcdef", "E33": "abcdef",
}  # fmt: skip
"""Lines that were asked in parts; D65 is a line besides."""


def asked() -> list[str]:
    numbered = (f"{letter}{number:02}" for letter, last in LAST.items() for number in range(1, last + 1))
    return [f"{line}{part}".strip() for line in numbered for part in PARTS.get(line, " ")]


class Row(NamedTuple):
    line: str
    asked: str
    met: str
    shown: str

    @property
    def names(self) -> list[str]:
        """What meets it; what stands after the first semicolon is for people."""
        return re.findall(r"`([^`]+)`", self.met.split(";")[0])

    @property
    def tests(self) -> list[str]:
        return re.findall(r"`([^`]+)`", self.shown)


def rows() -> list[Row]:
    found = re.findall(r"^\| ([A-Z]\d\d[a-z]?) \| (.*) \| (.*) \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return [Row(*cells) for cells in found]


def resolved(name: str) -> object:
    """What a name below savegame names: modules first, then their attributes."""
    thing: object = importlib.import_module("savegame")
    path = "savegame"
    for part in name.split("."):
        path = f"{path}.{part}"
        if not hasattr(thing, part):
            importlib.import_module(path)
        thing = getattr(thing, part)
    return thing


@cache
def functions_in(file: str) -> frozenset[str]:
    path = ROOT / "src" / "savegame" / file if file.startswith("testing/") else ROOT / "tests" / file
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def is_a_reason(text: str) -> bool:
    return len(re.sub(r"`[^`]*`", "", text).split()) >= 3


def test_every_line_is_there_once() -> None:
    assert len(asked()) == 505
    assert Counter(row.line for row in rows()) == Counter(asked())


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.line)
def test_a_line_says_what_meets_it_and_what_shows_it(row: Row) -> None:
    assert row.asked
    assert row.names or is_a_reason(row.met), "nothing meets it, and no reason is given"
    for name in row.names:
        resolved(name)
    assert row.tests or is_a_reason(row.shown), "no test shows it, and no reason is given"
    for test in row.tests:
        file, name = test.split("::")
        assert name in functions_in(file), f"{file} has no {name}"


def test_every_defect_has_a_test_of_its_own_number() -> None:
    without = [
        row.line
        for row in rows()
        if row.line.startswith("Z") and not any(f"::test_{row.line.lower()}_" in test for test in row.tests)
    ]
    assert without == []
