"""What the source never does: build objects or SQL from data."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import savegame

SOURCES = sorted(Path(savegame.__file__).parent.rglob("*.py"))
FORBIDDEN_MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "dill",
    "cloudpickle",
    "marshal",
    "shelve",
    "yaml",
    "jsonpickle",
    "code",
    "imp",
}
STATEMENTS = {"execute", "executemany", "executescript", "pragma", "all_rows", "one_row"}
FORBIDDEN_CALLS = {"eval", "exec", "__import__", "compile"}
IMPORTS_BY_NAME = {
    "savegame/opening.py": "the stores that a URL names, from our own table and from entry points",
    "cli/app.py": "the file of the command that is typed, from its table of commands",
}


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def problems(tree: ast.AST, name: str) -> Iterator[str]:
    for node in ast.walk(tree):
        where = f"{name}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import):
            yield from (f"{where}: imports {a.name}" for a in node.names if a.name.split(".")[0] in FORBIDDEN_MODULES)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").split(".")[0] in FORBIDDEN_MODULES:
            yield f"{where}: imports from {node.module}"
        elif isinstance(node, ast.Call):
            yield from _call_problems(node, name, where)


def _call_problems(node: ast.Call, name: str, where: str) -> Iterator[str]:
    called = node.func.id if isinstance(node.func, ast.Name) else node.func.attr if isinstance(node.func, ast.Attribute) else ""
    if isinstance(node.func, ast.Name) and called in FORBIDDEN_CALLS:
        yield f"{where}: calls {called}"
    if called == "import_module" and name not in IMPORTS_BY_NAME and not isinstance(node.args[0], ast.Constant):
        yield f"{where}: imports a module by name"
    runs = called == "run" and ast.unparse(node.func) in ("db.run", "self._writer.run")
    if (runs or called in STATEMENTS) and node.args:
        place = 1 if called in ("all_rows", "one_row") else 0
        if len(node.args) > place and not _is_fixed(node.args[place]):
            yield f"{where}: {called} gets a statement that was built: {ast.unparse(node.args[place])}"


def _is_fixed(statement: ast.expr) -> bool:
    """A constant or one of two, a plain name, a lookup in SQL, one with its row of values repeated, or psycopg's quoting."""
    if isinstance(statement, ast.IfExp):
        return _is_fixed(statement.body) and _is_fixed(statement.orelse)
    if isinstance(statement, ast.Call) and isinstance(statement.func, ast.Attribute) and statement.func.attr == "format":
        return bool(re.fullmatch(r"SQL\(('[^']*'|\"[^\"]*\")\)\.format\(Identifier\(\w+\)\)", ast.unparse(statement)))
    if isinstance(statement, ast.Call) and isinstance(statement.func, ast.Name) and statement.func.id == "repeated":
        return isinstance(statement.args[0], ast.Constant)
    if isinstance(statement, (ast.Constant, ast.Name)):
        return True
    return isinstance(statement, ast.Subscript) and isinstance(statement.value, ast.Name) and statement.value.id == "SQL"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_the_source(path: Path) -> None:
    assert list(problems(parsed(path), f"{path.parent.name}/{path.name}")) == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_no_text_that_looks_like_sql_is_put_together(path: Path) -> None:
    verbs = ("SELECT ", "INSERT ", "UPDATE ", "DELETE FROM", "CREATE ", "DROP ", "PRAGMA ", "ATTACH ", "VACUUM")
    for node in ast.walk(parsed(path)):
        pieces: list[ast.expr] = []
        if isinstance(node, ast.JoinedStr):
            pieces = node.values
        elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mod)):
            pieces = [node.left]
        texts = [piece.value for piece in pieces if isinstance(piece, ast.Constant) and isinstance(piece.value, str)]
        assert not [text for text in texts if text.lstrip().startswith(verbs)], f"{path.name}:{node.lineno}"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "wrong",
    [
        "import pickle",
        "from yaml import safe_load",
        "eval(text)",
        "exec(text)",
        "__import__(name)",
        "import_module(stored)",
        'db.execute(f"SELECT {x}")',
        'db.execute("SELECT %s" % x)',
        'db.execute("SELECT " + x)',
        'db.execute("SELECT {}".format(x))',
        'all_rows(db, "a" + x)',
    ],
)
def test_the_check_sees_what_is_wrong(wrong: str) -> None:
    """The negative control."""
    assert list(problems(ast.parse(wrong), "some.py"))
