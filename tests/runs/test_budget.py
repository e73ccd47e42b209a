"""A run's budget: it halts before the next call of the model, and a crash gives no second budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from faces import Face, entered, look

import savegame
from savegame import Budget, InvalidInputError, Run, Toolbox, Vault
from savegame.stores.memory import MemoryStore


@pytest.fixture
def address(tmp_path: Path) -> Path:
    return tmp_path / "vault.db"


@pytest.fixture
def tools() -> Toolbox:
    box = Toolbox()

    @box.tool(idempotent=True)
    def look_up(call: Any, order: int) -> str:
        call.spend(tokens_used=5, cost=0.25)
        return f"order {order}"

    return box


def asks(tokens: int) -> dict[str, Any]:
    call = {"id": "c1", "name": "look_up", "arguments": {"order": 7}}
    return {"role": "assistant", "content": "", "tool_calls": [call], "usage": {"total_tokens": tokens}}


def cost(amount: float) -> Any:
    return lambda _: (None, amount)


@pytest.mark.parametrize(
    "how", [{}, {"tokens": 0}, {"cost": 0}, {"tokens": -1}, {"tokens": 1.5}, {"cost": "1"}, {"tokens": True}]
)
def test_a_budget_is_positive(how: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"[Bb]udget"):
        Budget(**how)


def test_a_budget_is_frozen_and_nothing_else_is_one() -> None:
    with pytest.raises(AttributeError):
        Budget(tokens=1).tokens = 2  # type: ignore[misc]
    with savegame.open("memory:") as vault, pytest.raises(InvalidInputError, match=r"budget must be a Budget\("):
        vault.run("t", budget=100)  # type: ignore[arg-type]


def test_it_halts_before_the_next_call_of_the_model(face: type[Face], address: Path, tools: Toolbox) -> None:
    with entered(face, address, tools=tools, budget=Budget(tokens=35)) as one:
        one.user("hi")
        one.model(asks(10))
        one.tools()
        one.model(asks(20))
        assert not one.run.done
        one.tools()  # 40 are spent: the calls of the last reply are still made
        assert one.run.messages[-1]["content"] == "order 7"
        assert one.model("never") is None
        assert one.run.done
        status = one.run.checkpoint.status
        assert (str(status), status.reason) == ("halted", "budget: 40 of 35 tokens spent")
        newest = one.run.checkpoint
        assert one.model("never") is None
        assert one.stream(one.source(["never"])) == []
        assert one.run.checkpoint == newest
    assert look(address, lambda vault: vault.info("t").status.reason) == "budget: 40 of 35 tokens spent"
    assert look(address, lambda vault: list(vault.stale())) == []


def test_a_limit_that_is_reached_exactly(face: type[Face], address: Path, tools: Toolbox) -> None:
    with entered(face, address, tools=tools, budget=Budget(tokens=15)) as one:
        one.user("hi")
        one.model(asks(10))
        one.tools()
        assert one.model("never") is None
    with entered(face, address, "other", tools=tools, budget=Budget(tokens=16)) as one:
        one.user("hi")
        one.model(asks(10))
        one.tools()
        assert one.model("once more") == "once more"


def test_money(face: type[Face], address: Path, tools: Toolbox) -> None:
    with entered(face, address, tools=tools, budget=Budget(tokens=10_000, cost=1.0)) as one:
        one.user("hi")
        one.model(asks(1), usage=cost(0.5))
        one.tools()
        one.stream(one.source([asks(1)]), usage=cost(0.25))
        one.tools()
        assert one.stream(one.source(["never"])) == []
        assert one.run.checkpoint.status.reason == "budget: a cost of 1.25 of 1 spent"


def test_several_questions_in_one_run_share_its_budget(face: type[Face], address: Path) -> None:
    with entered(face, address, budget=Budget(tokens=100)) as one:
        for number in range(3):
            one.user(f"question {number}")
            assert one.model({"role": "assistant", "content": "yes", "usage": {"total_tokens": 40}}) == "yes"
        one.user("one more")
        assert one.model("never") is None
        one.user("please")
        assert one.model("never") is None
        assert one.run.checkpoint.status.reason == "budget: 120 of 100 tokens spent"


@pytest.mark.parametrize("end", ["completed", "halted", "over budget"])
def test_a_new_run_on_a_thread_that_had_ended_has_a_new_budget(
    face: type[Face], address: Path, tools: Toolbox, end: str
) -> None:
    with entered(face, address, tools=tools, budget=Budget(tokens=20)) as one:
        one.user("hi")
        one.model(asks(10))
        one.tools()
        if end == "halted":
            one.halt("enough")
        else:
            one.model({"role": "assistant", "content": "yes", "usage": {"total_tokens": 100}})
        if end == "over budget":
            one.user("more")
            assert one.model("never") is None
    with entered(face, address, tools=tools, budget=Budget(tokens=20)) as one:
        one.user("more")
        one.model(asks(10))
        one.tools()
        assert one.model("yes") == "yes"


class CrashError(Exception):
    pass


def test_a_crash_gives_no_second_budget(face: type[Face], address: Path, tools: Toolbox) -> None:
    def crash(number: int) -> None:
        with entered(face, address, tools=tools, budget=Budget(tokens=55)) as one:
            if not number:
                one.user("hi")
            one.tools()
            one.model(asks(14))
            raise CrashError

    for number in range(3):
        with pytest.raises(CrashError):
            crash(number)
    with entered(face, address, tools=tools, budget=Budget(tokens=55)) as one:
        one.tools()
        assert one.model("never") is None
        assert one.run.checkpoint.status.reason == "budget: 57 of 55 tokens spent"


def test_what_another_line_spent_and_what_a_fork_copies_do_not_count(address: Path, tools: Toolbox) -> None:
    with savegame.open(address) as vault:
        with vault.run("t", tools=tools) as run:
            run.user("hi")
            asked = run.checkpoint
            run.model(lambda _: asks(50))
            run.tools()
            answered = run.checkpoint
        assert asked is not None
        assert answered is not None
        vault.thread("t").fork("fork", at=answered.id)
        vault.thread("t").rewind(asked.id)
        for thread in ("t", "fork"):
            with vault.run(thread, tools=tools, budget=Budget(tokens=50)) as run:
                assert run.model(lambda _: "yes") == "yes"


class CountingStore(MemoryStore):
    """Counts commits and reads of frames."""

    commits = frames_read = 0

    def commit(self, *given: Any, **named: Any) -> Any:
        self.commits += 1
        return super().commit(*given, **named)

    def frames(self, *given: Any, **named: Any) -> Any:
        self.frames_read += 1
        return super().frames(*given, **named)


@pytest.mark.parametrize("streams", [False, True])
def test_what_a_run_writes_and_reads(tools: Toolbox, streams: bool) -> None:
    """A stream, a prompt and a budget cost no commit; without a budget nothing is read for one."""

    def ask(run: Run, reply: Any) -> None:
        if streams:
            list(run.stream(lambda _: [reply], system="Be brief."))
        else:
            run.model(lambda _: reply)

    counts = []
    for how in ({}, {"budget": Budget(tokens=1000)}, {"agent": "helper"}):
        store = CountingStore()
        with Vault(store) as vault:
            with vault.run("t", tools=tools, **how) as run:  # type: ignore[arg-type]
                run.user("hi")
            store.commits = store.frames_read = 0
            with vault.run("t", tools=tools, **how) as run:  # type: ignore[arg-type]
                ask(run, asks(10))
                run.tools()
                ask(run, "yes")
            counts.append((store.commits, store.frames_read))
    assert counts == [(3, 3), (3, 4), (3, 3)]


def test_a_transaction_that_fails_spends_nothing(address: Path) -> None:
    box = Toolbox()

    @box.tool(transaction=True)
    def broken(call: Any) -> str:
        call.spend(tokens_used=100)
        raise ValueError("no")

    reply = {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "name": "broken", "arguments": {}}]}
    with savegame.open(address) as vault, vault.run("t", tools=box, budget=Budget(tokens=150)) as run:
        run.user("hi")
        run.model(lambda _: reply)
        run.tools()
        assert vault.thread("t").latest().tokens_used == 100  # type: ignore[union-attr]
        assert run.model(lambda _: "yes") == "yes"
