"""What holds for every module of the package, read from its source: whose privates it uses, how long it is, and the like.

The tables of exceptions only shrink.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import savegame

PACKAGE = Path(savegame.__file__).parent
LONGEST_MODULE = 500
MOST_PARAMETERS = 7

# What still breaks a rule. These tables only shrink.
USES_PRIVATES = {
    "adapters/langgraph.py",  # the serializer of LangGraph's own base class
    "testing/faults.py",  # takes the flush away from a store, to show that the power-cut test would notice
}
TOO_MANY_PARAMETERS = {"opening.py: open_vault"}  # savegame.open: as many as a vault has options
DEFINED_AGAIN = {"BUSY_MS"}  # of a file of LangGraph, in its adapter

PUBLIC_ALL_THE_SAME = {"_replace", "_asdict", "_fields", "_make", "_getframe", "_exit"}
"""Of named tuples, sys and os."""
VERBS = {"Vault", "AsyncVault", "Thread", "AsyncThread", "Run", "AsyncRun", "Toolbox", "Tool", "Tools"}
"""Public classes, and the tools for models: their verbs may take as many parameters as a caller can use."""


@cache
def modules() -> dict[str, tuple[str, ast.Module]]:
    paths = sorted(PACKAGE.rglob("*.py"))
    texts = {path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    return {name: (text, ast.parse(text)) for name, text in texts.items()}


def functions(tree: ast.AST, owner: str = "") -> Iterator[tuple[str, str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function with the class that it stands in."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield owner, node.name, node
        yield from functions(node, node.name if isinstance(node, ast.ClassDef) else owner)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name not in PUBLIC_ALL_THE_SAME


def own_names(tree: ast.Module) -> set[str]:
    """What a module may take apart: its own private attributes, wherever it sets or defines them."""
    own = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_own(node.value):
            own.add(node.attr)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            own.add(node.target.id)
    return own


def is_own(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in {"self", "cls"}


def foreign_privates(tree: ast.Module) -> Iterator[str]:
    own = own_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and not is_own(node.value) and node.attr not in own:
            yield ast.unparse(node)
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names if is_private(alias.name))


def test_no_module_uses_the_privates_of_another() -> None:
    found = {name for name, (_, tree) in modules().items() if any(foreign_privates(tree))}
    assert found <= USES_PRIVATES, {name: sorted(set(foreign_privates(modules()[name][1]))) for name in found - USES_PRIVATES}


def test_a_module_of_more_than_500_lines_says_why_in_its_first() -> None:
    long = {name: text for name, (text, _) in modules().items() if text.count("\n") > LONGEST_MODULE}
    assert [name for name, text in long.items() if "(Over 500 lines: " not in text.partition("\n")[0]] == []


def test_a_function_has_seven_parameters_at_most() -> None:
    found = {
        f"{name}: {owner}.{function}".replace(": .", ": ")
        for name, (_, tree) in modules().items()
        for owner, function, node in functions(tree)
        if len([*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]) - bool(owner) > MOST_PARAMETERS
        if not (owner in VERBS and not is_private(function)) and not name.startswith("cli/")
    }
    assert found <= TOO_MANY_PARAMETERS


def test_a_constant_is_defined_once() -> None:
    """Two of one name that differ are a trap, two that are equal a repetition; `SQL` is in each store what its files say."""
    names = Counter(
        target.id
        for _, tree in modules().values()
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and target.id.isupper() and len(target.id) > 1 and not is_private(target.id)
    )
    assert {name for name, count in names.items() if count > 1} - {"SQL"} == DEFINED_AGAIN


def test_a_class_name_has_one_meaning() -> None:
    trees = [tree for _, tree in modules().values()]
    names = Counter(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []


def test_no_name_is_a_participle() -> None:
    """Functions are verbs, values nouns: these five were most of those that were neither."""
    trees = {name: tree for name, (_, tree) in modules().items() if not name.startswith("adapters/")}
    found = {
        f"{name}: {bound}"
        for name, tree in trees.items()
        for node in ast.walk(tree)
        for bound in (getattr(node, "name", None), getattr(node, "arg", None), getattr(node, "id", None))
        if isinstance(bound, str) and bound.strip("_") in {"told", "said", "made", "shown", "kept"}
    }
    assert found == {"mcp/excerpts.py: shown"}  # a field of answers to models
