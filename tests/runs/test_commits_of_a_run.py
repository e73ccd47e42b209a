"""What a run costs that uses neither mail, stop nor sleep and never went back: its commits and leases, counted one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from addresses import ALL, Addresses
from broken_stores import STORES, Mortal

from savegame import Paused, Toolbox, Vault
from savegame.store import Capability
from savegame.stores.memory import MemoryStore


class Counted(Mortal):
    """Notes each write, lease, renewal and transaction."""

    def begin(self) -> list[str]:
        noted: list[str] = []
        self.moment = lambda name: noted.append(name.removeprefix("after ")) if name.startswith("after ") else None
        return noted


@pytest.fixture(params=ALL)
def vault(request: pytest.FixtureRequest, address_of: Addresses) -> Iterator[Vault]:
    scheme, _, path = (address := address_of(request.param)).partition(":")
    kind: Any = type("CountedStore", (Counted, STORES.get(scheme, MemoryStore)), {})
    with Vault(kind() if scheme == "memory" else kind(address if scheme == "postgresql" else path)) as opened:
        yield opened


def toolbox(vault: Vault) -> Toolbox:
    tools = Toolbox()

    @tools.tool(read_only=True)
    def look(n: int) -> int:
        return n

    @tools.tool(idempotent=True)
    def pay(call: Any, n: int) -> str:
        return f"paid {n}"

    @tools.tool(idempotent=lambda n: f"coupon {n}")
    def coupon(n: int) -> str:
        return f"coupon {n}"

    @tools.tool
    def mail(n: int) -> str:
        return f"sent {n}"

    @tools.tool(ask=True)
    def wire(n: int) -> str:
        return f"wired {n}"

    if Capability.CONNECTION in vault.store.capabilities:

        @tools.tool(transaction=True)
        def note(call: Any, n: int) -> str:
            return f"noted {n}"

    return tools


def work(vault: Vault, tools: Toolbox, thread_id: str) -> None:
    script = [tool.name for tool in tools if tool.name != "wire"] + ["wire"]

    def llm(messages: list[dict[str, Any]]) -> Any:
        said = sum(message["role"] == "assistant" for message in messages)
        if said == len(script):
            return "Done."
        call = {"id": f"c{said}", "name": script[said], "arguments": {"n": said}}
        return {"role": "assistant", "content": "", "tool_calls": [call]}

    with vault.run(thread_id, tools=tools) as run:
        run.user("Go.", key="click")
        while not run.done:
            run.tools()
            run.model(llm)


REPLY = ["checkpoint"]
SETTLED = ["checkpoint and done"]


def test_a_run_makes_no_commit_more_than_it_has_messages_and_started_calls(vault: Vault) -> None:
    tools, noted = toolbox(vault), vault.store.begin()  # type: ignore[attr-defined]
    with pytest.raises(Paused) as paused:
        work(vault, tools, "t")
    noting = [*REPLY, *SETTLED, "transaction"] if "note" in tools else []
    assert noted == [
        "lease", "checkpoint",  # entered, the user's message
        *REPLY, *SETTLED,  # look
        *REPLY, *SETTLED,  # pay
        *REPLY, *SETTLED,  # coupon
        *REPLY, "started", *SETTLED,  # mail
        *noting,
        *REPLY, "waiting", "release",  # wire
    ]  # fmt: skip

    noted.clear()
    assert vault.answer("t", paused.value.call, True)
    assert noted == ["answer"]

    noted.clear()
    work(vault, tools, "t")
    assert noted == ["lease", "started", *SETTLED, *REPLY, "release"]

    noted.clear()
    work(vault, tools, "t")  # it is done: nothing but the lease
    assert noted == ["lease", "release"]


def test_a_step_is_one_commit(vault: Vault) -> None:
    with vault.run("t") as run:
        noted = vault.store.begin()  # type: ignore[attr-defined]
        assert [run.step("plan", lambda: 1), run.step("plan", lambda: 2)] == [1, 1]
        assert noted == ["step"]


def test_other_verbs_write_as_often_as_they_did(vault: Vault) -> None:
    work_done = pytest.raises(Paused)
    with work_done:
        work(vault, toolbox(vault), "t")
    noted = vault.store.begin()  # type: ignore[attr-defined]
    list(vault.stale())
    list(vault.calls("t"))
    assert noted == []
    vault.thread("t").fork("fork", at="head")
    assert len(noted) == 1
    noted.clear()
    vault.thread("t").rewind("head~2")
    assert len(noted) == 1
    noted.clear()
    with vault.run("t") as run:
        run.halt("enough")
    assert noted == ["lease", "checkpoint", "release"]


def test_what_is_counted_is_what_is_written(vault: Vault) -> None:
    """The control: a commit more would be seen."""
    noted = vault.store.begin()  # type: ignore[attr-defined]
    vault.thread("t").put_records({("step", "more"): 1})
    assert noted == ["step"]
