"""The user at the other end of a local connection, where the system exposes it (Linux).

A link that opens a browser appears on a command line, which every user of the machine can read. Such a link works for one
user only, so others can neither use it nor use it up.
"""

from __future__ import annotations

import ipaddress
import os
import sys
from pathlib import Path
from typing import Final

_ESTABLISHED: Final = "01"
_TABLES: Final = {4: Path("/proc/net/tcp"), 6: Path("/proc/net/tcp6")}


def myself() -> int | None:
    """The user of this process; None where the system does not expose the owners of connections."""
    return os.getuid() if _TABLES[4].exists() else None


def user_of(peer: tuple[str, int], ours: tuple[str, int]) -> int | None:
    """The user whose process connected from `peer` to `ours`, or None if unknown.

    Only for connections that are open at both ends: the kernel lists closed ones under root.
    """
    ends = [_kernel_form(*peer), _kernel_form(*ours)]
    try:
        lines = _TABLES[ipaddress.ip_address(peer[0]).version].read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return None
    rows = map(str.split, lines)
    return next((int(fields[7]) for fields in rows if fields[1:4] == [*ends, _ESTABLISHED] and fields[9] != "0"), None)


def _kernel_form(host: str, port: int) -> str:
    """One end of a connection as the kernel writes it: words of four bytes in the order of this machine."""
    packed = ipaddress.ip_address(host).packed
    words = (int.from_bytes(packed[place : place + 4], sys.byteorder) for place in range(0, len(packed), 4))
    return "".join(f"{word:08X}" for word in words) + f":{port:04X}"
