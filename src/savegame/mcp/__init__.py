"""`savegame mcp`: a vault for MCP clients, over standard input and output. Needs `pip install "savegame[mcp]"`.

`server.py` speaks the protocol, `tools.py` has the tools, `resources.py` the addresses of threads and checkpoints, `schemas.py`
the types of parameters and answers, `excerpts.py` shortens long values, `paging.py` long lists.
"""

from savegame.errors import UnsupportedError

try:
    import mcp as _sdk
except ImportError as error:
    raise UnsupportedError('the MCP server needs the SDK: pip install "savegame[mcp]"') from error

if not hasattr(_sdk, "UriTemplate"):
    raise UnsupportedError('the MCP server needs version 2 of the SDK: pip install --upgrade "savegame[mcp]"')

from savegame.mcp.server import serve, server_on

__all__ = ["serve", "server_on"]
