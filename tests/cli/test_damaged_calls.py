"""`calls` and `stale` over a vault in which a thread is damaged: it is named, and the others are listed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from addresses import LASTING
from commands import run
from damage import spoil

import savegame


@pytest.mark.parametrize("store", LASTING)
def test_one_damaged_thread_does_not_hide_the_others(store: str, address_of: Callable[..., str]) -> None:
    tools = savegame.Toolbox()
    tools.tool(ask=True)(pay)
    asks = {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "name": "pay", "arguments": {}}]}
    with savegame.open(address_of(store)) as vault:
        for thread_id in ("hurt", "sound"):
            with vault.run(thread_id, tools=tools) as going:
                going.user("pay")
                going.model(lambda _: asks)
                with pytest.raises(savegame.Paused):
                    going.tools()
    assert spoil(address_of(store), "hurt", "call") == 1
    done = run("calls", "--json", "--store", address_of(store))
    assert done.code == 0
    assert '"thread_id": "sound"' in done.out
    assert '"thread_id": "hurt"' not in done.out
    assert "hurt" in done.err
    assert "damaged" in done.err
    assert run("calls", "sound", "--store", address_of(store)).code == 0
    assert run("calls", "hurt", "--store", address_of(store)).code == 8


def pay() -> int:
    return 1
