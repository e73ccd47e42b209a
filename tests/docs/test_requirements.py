"""docs/requirements.md is complete and true: every line once, with names that exist and tests that carry its marker."""

from __future__ import annotations

import ast
import importlib
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from savegame.testing import StoreContract

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "requirements.md"
TESTS = ROOT / "tests"

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
def marked() -> set[tuple[str, str]]:
    """Every test with each line that its markers name."""
    return {
        (f"{path.relative_to(TESTS)}::{node.name}", line.value)
        for path in TESTS.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.requirement"
        for line in decorator.args
        if isinstance(line, ast.Constant)
    }


def is_a_reason(text: str) -> bool:
    return len(re.sub(r"`[^`]*`", "", text).split()) >= 3


def test_every_line_is_there_once() -> None:
    assert len(asked()) == 505
    assert Counter(row.line for row in rows()) == Counter(asked())


def complaints(row: Row) -> Iterator[str]:
    if not row.asked:
        yield "nothing is asked"
    if not (row.names or is_a_reason(row.met)):
        yield "nothing meets it, and no reason is given"
    if not (row.tests or is_a_reason(row.shown)):
        yield "no test shows it, and no reason is given"
    for name in row.names:
        try:
            resolved(name)
        except ImportError:
            yield f"savegame has no {name}"


def test_every_line_says_what_meets_it_and_what_shows_it() -> None:
    assert [(row.line, wrong) for row in rows() for wrong in complaints(row)] == []


def test_every_line_names_the_tests_with_its_marker_and_no_others() -> None:
    """Except for tests of the store contract, which is shipped: tests/conftest.py marks those."""
    named = {(test, row.line) for row in rows() for test in row.tests}
    shipped = {(test, line) for test, line in named if test.startswith("testing/contract/")}
    assert named - shipped == marked()
    assert all(hasattr(StoreContract, test.partition("::")[2]) for test, _ in shipped)


def test_the_tests_of_the_five_systems_are_listed_by_name() -> None:
    listed = [
        (row.line[0], name)
        for row in rows()
        if (names := re.search(r"\((`\w+`(?:, `\w+`)*)\)$", row.asked))
        for name in re.findall(r"\w+", names[1])
    ]
    assert len(set(listed)) == len(listed)
    assert Counter(system for system, _ in listed) == {"A": 27, "B": 11, "C": 6, "D": 22, "E": 2}
