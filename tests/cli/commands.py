"""The installed command, run as users and programs run it; whether what it prints has a shape."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import pty
import re
import socket
import subprocess
import sys
import tempfile
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


WARM = """
import gc, importlib, json, os, pkgutil, socket, sys
import pydantic.type_adapter, savegame.cli, savegame.stores.file, savegame.stores.postgres, savegame.stores.sqlite
import savegame.adapters.langgraph_import
for module in pkgutil.iter_modules(savegame.cli.__path__, "savegame.cli."):
    importlib.import_module(module.name)
gc.freeze()
line = socket.socket(fileno=int(sys.argv[1]))
while True:
    asked, fds, _, _ = socket.recv_fds(line, 1, 2)
    if not asked:
        os._exit(0)
    while not asked.endswith(b"\\n"):
        asked += line.recv(1 << 16)
    if (child := os.fork()) == 0:
        break
    for fd in fds:
        os.close(fd)
    line.sendall(b"%d\\n" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
line.close()
os.dup2(fds[0], 1)
os.dup2(fds[1], 2)
directory, *sys.argv = json.loads(asked)
os.chdir(directory)
savegame.cli.main()
"""
"""A process that has imported the command and forks for each call: as real as a new one, at a tenth of its price."""


@functools.cache
def warm() -> socket.socket:
    """The line to that process, which ends with this one."""
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-c", WARM, str(theirs.fileno())]
        nowhere = subprocess.DEVNULL
        process = subprocess.Popen(command, stdin=nowhere, stdout=nowhere, env=PLAIN, pass_fds=[theirs.fileno()])
    atexit.register(process.wait, 60)
    atexit.register(ours.close)  # first: the last one registered is the first one called
    ours.settimeout(120)
    return ours


def run(*arguments: object, cwd: Path | None = None, **environment: str) -> Done:
    """The command to its end, its output to files. With an environment of its own it is started afresh."""
    command = [ENTRY, *map(str, arguments)]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        if environment:
            started = subprocess.Popen(
                command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=PLAIN | environment
            )
            code = started.wait(120)
        else:
            asked = json.dumps([str(cwd or Path.cwd()), *map(str, command)]).encode()
            socket.send_fds(warm(), [asked + b"\n"], [out.fileno(), err.fileno()])
            code = int(warm().recv(16))
        shown = [(stream.seek(0), stream.read().decode())[1] for stream in (out, err)]
    assert "Traceback" not in shown[1], shown[1]
    return Done(code, *shown)


def typed(
    *arguments: object,
    answer: str = "",
    meanwhile: Callable[[subprocess.Popen[bytes]], object] | None = None,
    **environment: str,
) -> Done:
    """The command on a terminal of its own, where an answer is typed; everything shown is in `out`.

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
