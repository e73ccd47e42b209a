"""Writes the pages of docs/reference/ from the code: `python docs/generate.py`. A test fails when one lags behind."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict

import typer

import savegame
from savegame import errors
from savegame.cli import json_output
from savegame.cli.app import build_app
from savegame.model import NEW_ID

REFERENCE = Path(__file__).resolve().parent / "reference"
WIDTH = 110
MADE = "<!-- Written by docs/generate.py; change the code, then run it again. -->"


def main() -> None:
    """Write every page."""
    for name, text in pages().items():
        (REFERENCE / name).write_text(text, encoding="utf-8")
        sys.stdout.write(f"{REFERENCE / name}\n")


def pages() -> dict[str, str]:
    """The text of every page by its file name."""
    return {"errors.md": errors_page(), "api.md": api_page(), "cli.md": cli_page()}


# -- errors ----------------------------------------------------------------------------------------


def errors_page() -> str:
    """The tree of errors, then each with its codes."""
    drawing = inspect.getdoc(errors) or ""
    tree = drawing[drawing.index("SavegameError") :].rpartition("\n\n")[0]
    lines = [
        "# Errors",
        MADE,
        "Everything that savegame raises on purpose is a `SavegameError`. The tree is grouped by what to do next.",
        f"```text\n{tree}\n```",
        "`kind` is a stable code: kinds are only ever added. `exit_code` is what the command line ends with, `http_status`\n"
        "what a web page answers with. Messages name the thing, the place and the next step; they may change.",
        "| error | kind | exit code | HTTP status | is also a |\n|---|---|---|---|---|\n"
        + "\n".join(map(_error_row, _errors())),
    ]
    for error in _errors():
        lines += [f"## {error.__name__}", _promise(error) + _attributes(error)]
    lines.append(
        "See [two writers](../guides/two-writers.md) and [durability](../concepts/durability.md) for what to do with them."
    )
    return "\n\n".join(lines) + "\n"


def _errors() -> Iterator[type[errors.SavegameError]]:
    """Every error class, parents before their children, in the order of the source."""
    for value in vars(errors).values():
        if isinstance(value, type) and issubclass(value, errors.SavegameError):
            yield value


def _error_row(error: type[errors.SavegameError]) -> str:
    parents = ", ".join(f"`{base.__name__}`" for base in error.__bases__)
    name = error.__name__
    return f"| [`{name}`](#{name.lower()}) | `{error.kind}` | {error.exit_code} | {error.http_status} | {parents} |"


def _attributes(error: type[errors.SavegameError]) -> str:
    if "__init__" not in vars(error):
        return ""
    instance = error("")
    names = ", ".join(f"`{name}`" for name in vars(instance))
    return f"\n\nAttributes: {names}."


# -- api -------------------------------------------------------------------------------------------


def api_page() -> str:
    """The public names with their signatures and the first line of what they promise."""
    things = {name: getattr(savegame, name) for name in savegame.__all__}
    order = ["open", "Vault", "Thread", "Checkpoint"]
    rest = [name for name in things if name not in order and not _is_error(things[name])]
    listed = ", ".join(f"`{name}`" for name in things if _is_error(things[name]))
    parts = [
        "# The public names",
        MADE,
        "`import savegame` gives these names. Parameters after `*` are given by name. Times are UTC; sizes are in bytes.",
        "`Ref` is what names a checkpoint of a thread: its id, a unique prefix of at least six characters, its label (the\n"
        'newest wins), `"head"` or `"head~n"`, a whole number (the step on the head\'s line), or a `Checkpoint`. An id comes\n'
        "first, then `head`, then labels, then prefixes. `Upcast` is a function of (fields, version) that gives fields.",
        f"The errors are on [a page of their own](errors.md): {listed}.",
    ]
    for name in [*order, *sorted(rest)]:
        parts += _entry(name, things[name])
    parts.append("What is passed to stores is described in [add a store](../guides/add-a-store.md).")
    return "\n\n".join(parts) + "\n"


def _is_error(thing: Any) -> bool:
    return isinstance(thing, type) and issubclass(thing, errors.SavegameError)


def _entry(name: str, thing: Any) -> Iterator[str]:
    yield f"## {name}"
    if not isinstance(thing, type):
        if callable(thing):
            yield _signature(f"savegame.{name}", thing)
            yield _promise(thing)
        else:
            yield f"`savegame.{name}` {_WHAT.get(name, '')}".rstrip()
        return
    if _shows_constructor(thing):
        yield _signature(f"savegame.{name}", thing)
    yield _promise(thing)
    if is_typeddict(thing):
        rows = "\n".join(f"| `{field}` | `{_hint(hint)}` |" for field, hint in get_type_hints(thing).items())
        yield "| detail | type |\n|---|---|\n" + rows.replace(" | None`", " or None`")
        return
    if issubclass(thing, Enum):
        yield "Values: " + ", ".join(f"`{member.value}`" for member in thing) + "."
    elif fields := _fields(thing):
        yield "Fields: " + ", ".join(f"`{field}`" for field in fields) + "."
    for method, member in _members(thing).items():
        if not method.startswith("_"):
            yield from _method(thing, method, member)


_WHAT = {"MISSING": "stands in a `Change` for a place that one of the two states does not have."}


def _members(cls: type) -> dict[str, Any]:
    """What a class and those of ours that it builds on define."""
    ours = [base for base in reversed(cls.__mro__) if base.__module__.partition(".")[0] == "savegame"]
    return {name: member for base in ours for name, member in vars(base).items()}


_MADE_BY_USERS = (
    "AgentState", "Attachment", "Conversation", "Message", "Retention", "Status", "Strategy", "ToolCall",
)  # fmt: skip


def _hint(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("collections.abc.", "").replace("typing.", "")


def _shows_constructor(cls: type) -> bool:
    return cls.__name__ in _MADE_BY_USERS


def _fields(cls: type) -> list[str]:
    if dataclasses.is_dataclass(cls):
        return [field.name for field in dataclasses.fields(cls) if not field.name.startswith("_")]
    return list(cls._fields) if issubclass(cls, tuple) else []  # type: ignore[attr-defined]


def _method(cls: type, name: str, member: Any) -> Iterator[str]:
    if isinstance(member, property):
        yield f"### {cls.__name__}.{name}"
        yield f"An attribute. {_promise(member)}"
    elif callable(member) or isinstance(member, (classmethod, staticmethod)):
        function = getattr(cls, name)
        if name in ("later", "of", "hides"):  # for the rooms inside
            return
        yield f"### {cls.__name__}.{name}"
        yield _signature(name, function)
        yield _promise(function)


def _signature(name: str, function: Callable[..., Any]) -> str:
    signature = inspect.signature(function)
    given = [p for p in signature.parameters.values() if p.name != "self"]
    texts: list[str] = []
    starred = False
    for parameter in given:
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            starred = True
            texts.append("*")
        starred = starred or parameter.kind is parameter.VAR_POSITIONAL
        texts.append(_parameter(parameter))
    answer = signature.return_annotation
    tail = "" if answer is signature.empty else f" -> {_plain(answer)}"
    line = f"{name}({', '.join(texts)}){tail}"
    if len(line) > WIDTH:
        line = f"{name}(\n" + "".join(f"    {text},\n" for text in texts) + f"){tail}"
    return f"```text\n{line}\n```"


def _parameter(parameter: inspect.Parameter) -> str:
    default = parameter.default
    if (callable(default) and hasattr(default, "__name__")) or default is NEW_ID:
        shown = "..."
    elif isinstance(default, Enum):
        shown = repr(default.value)
    else:
        shown = repr(default)
    typed = "" if parameter.annotation is parameter.empty else f": {_plain(parameter.annotation)}"
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    return f"{stars}{parameter.name}{typed}" + ("" if default is parameter.empty else f" = {shown}")


def _plain(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return text.replace("dt.", "datetime.")


def _promise(thing: Any) -> str:
    """A docstring, each paragraph on one line."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in (inspect.getdoc(thing) or "").split("\n\n"))


# -- command line ----------------------------------------------------------------------------------


def cli_page() -> str:
    """Every command with its options, from the same texts that `--help` shows, and what `--json` prints."""
    root: Any = typer.main.get_command(build_app())
    parts = [
        "# The command line",
        MADE,
        f"`savegame`: {root.help}",
        "`savegame --help` and `savegame COMMAND --help` show the same texts. `python -m savegame` is the same command.\n"
        "[The command line](../guides/command-line.md) explains how to name vaults, threads and checkpoints, and what scripts\n"
        "can rely on. An error is one line on standard error; the exit code is that of its [kind](errors.md).",
        _options(root),
    ]
    for name, command in _commands(root, ""):
        parts += [f"## savegame {name}", *_help(command), _options(command)]
        if name in json_output.OUTPUTS:
            parts.append(_printed(json_output.OUTPUTS[name]))
    parts += ["## What --json prints", _promise(json_output).partition("\n\n")[2]]
    for shape in _shapes():
        parts += [f"### {shape.__name__}", _promise(shape), _shape_fields(shape)]
    return "\n\n".join(parts) + "\n"


def _commands(group: Any, before: str) -> Iterator[tuple[str, Any]]:
    """Every command, those of groups by both names."""
    for name, command in group.commands.items():
        yield f"{before}{name}", command
        if hasattr(command, "commands"):
            yield from _commands(command, f"{before}{name} ")


def _help(command: Any) -> Iterator[str]:
    """What a command says of itself, its example as one can paste it."""
    for paragraph in (command.help or "").split("\n\n"):
        text = " ".join(paragraph.split())
        yield f"```sh\n{text.removeprefix('Example: ')}\n```" if text.startswith("Example: ") else text


def _options(command: Any) -> str:
    rows = []
    for parameter in command.params:
        if getattr(parameter, "hidden", False):
            continue
        if "--help" not in parameter.opts:
            given = ", ".join([*parameter.opts, *parameter.secondary_opts])
            argument = parameter.metavar if parameter.required else f"[{parameter.metavar}]"
            named = given if parameter.param_type_name == "option" else argument
            rows.append(f"| `{named}` | {' '.join((parameter.help or '').split())} |")
    rows.append("| `--help` | Show this message and exit. |")
    return "| argument or option | meaning |\n|---|---|\n" + "\n".join(rows)


def _printed(shape: json_output.Output) -> str:
    linked = f"[`{shape.of.__name__}`](#{shape.of.__name__.lower()})"
    how = {"one": f"one {linked}", "list": f"a list of {linked}", "lines": f"one {linked} on each line, as they come"}
    return f"`--json` prints {how[shape.how]}."


def _shapes() -> list[type]:
    return [value for value in vars(json_output).values() if is_typeddict(value)]


def _shape_fields(shape: type) -> str:
    rows = [f"| `{name}` | {_shape_type(kind)} |" for name, kind in get_type_hints(shape).items()]
    return "| field | type |\n|---|---|\n" + "\n".join(rows)


def _shape_type(kind: Any) -> str:
    """A type as readers of JSON call it."""
    if kind is type(None):
        return "null"
    if get_origin(kind) is UnionType:
        return " or ".join(map(_shape_type, get_args(kind)))
    if get_origin(kind) is list:
        return f"list of {_shape_type(get_args(kind)[0])}"
    if get_origin(kind) is dict:
        return f"object of {_shape_type(get_args(kind)[1])}"
    names = {str: "text", int: "whole number", float: "number", bool: "true or false", Any: "any value"}
    return names.get(kind) or f"[`{kind.__name__}`](#{kind.__name__.lower()})"


if __name__ == "__main__":
    main()
