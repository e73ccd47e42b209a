"""The installed command, run as users and programs run it; whether what it prints has a shape."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ENTRY = Path(sys.executable).with_name("savegame")
UNWANTED = re.compile("SAVEGAME_|PYTHONDONTWRITEBYTECODE$")
"""Hundreds of processes need not compile the same files each."""
PLAIN = {name: value for name, value in os.environ.items() if not UNWANTED.match(name)} | {"PYTHONWARNINGS": "error"}


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        assert self.err == ""
        return json.loads(self.out)


def run(*arguments: object, **environment: str) -> Done:
    """The command to its end, its output piped."""
    command = [ENTRY, *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=PLAIN | environment, stdin=subprocess.DEVNULL, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Done(done.returncode, done.stdout, done.stderr)


def typed(
    *arguments: object,
    answer: str = "",
    meanwhile: Callable[[subprocess.Popen[bytes]], object] | None = None,
    **environment: str,
) -> Done:
    """The command on a terminal of its own, where somebody types an answer; everything shown is in `out`.

    `meanwhile` happens when the question is asked, before it is answered.
    """
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [ENTRY, *map(str, arguments)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=PLAIN | {"TERM": "xterm-256color"} | environment,
    ) as process:
        os.close(theirs)
        if meanwhile is None:
            os.write(ours, answer.encode())
        shown = b""
        with contextlib.suppress(OSError):  # how the other end of a terminal tells that it is closed
            while part := os.read(ours, 4096):
                shown += part
                if meanwhile is not None and b"[y/N]" in shown:
                    meanwhile(process)
                    meanwhile = None
                    os.write(ours, answer.encode())
        code = process.wait(120)
    os.close(ours)
    return Done(code, shown.decode(), "")


def fits(value: Any, shape: Any) -> bool:
    """Whether a value of JSON has a type, dicts of exactly the fields that their TypedDict names."""
    if shape is Any:
        return True
    if typing.is_typeddict(shape):
        fields = typing.get_type_hints(shape)
        return isinstance(value, dict) and value.keys() == fields.keys() and all(fits(value[n], t) for n, t in fields.items())
    origin, parts = typing.get_origin(shape), typing.get_args(shape)
    if origin in (types.UnionType, typing.Union):
        return any(fits(value, part) for part in parts)
    if origin is list:
        return isinstance(value, list) and all(fits(item, parts[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(fits(item, parts[1]) for item in value.values())
    if shape is float:
        return type(value) in (int, float)
    return type(value) is shape
