"""run.stream: pieces as they come, the whole kept once at the end, and nothing of a stream that was cut, however it was."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from faces import FACES, Face, LoopFace, entered, look

import savegame
from savegame import InvalidInputError, Message, Stopped, Toolbox, UnavailableError
from savegame.model import ThreadKey
from savegame.stores.file import FileStore
from savegame.vault import Vault

PIECES = ["It ", "", "is ", "lost."]
CALL = {"id": "c1", "name": "refund", "arguments": {"order": 7}}
ASKS = {"role": "assistant", "content": "I refund it.", "tool_calls": [CALL], "usage": {"total_tokens": 9}}


@pytest.fixture
def address(tmp_path: Path) -> Path:
    return tmp_path / "vault.db"


@pytest.fixture
def tools() -> Toolbox:
    box = Toolbox()

    @box.tool
    def refund(order: int) -> str:
        return f"refunded {order}"

    return box


def steps(address: Path) -> list[str]:
    """The kinds of what was saved, oldest first."""
    found: list[str] = look(address, lambda vault: [str(one.kind) for one in vault.thread("t").history(newest_first=False)])
    return found


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "stream" in record.getMessage()]


def test_texts_become_the_reply(face: type[Face], address: Path, caplog: pytest.LogCaptureFixture) -> None:
    with entered(face, address) as one:
        one.user("where is it?")
        shown: list[Any] = []
        assert one.stream(one.source(PIECES, shown)) == PIECES
        assert (one.run.reply, one.run.done) == ("It is lost.", True)
        assert [message["content"] for message in shown[0]] == ["where is it?"]
    assert steps(address) == ["manual", "llm_response"]
    assert warnings_in(caplog) == []


def test_a_message_at_the_end_is_the_reply(face: type[Face], address: Path, tools: Toolbox) -> None:
    for number, last in enumerate((ASKS, Message.from_dict(ASKS), {"choices": [{"message": ASKS}], "usage": ASKS["usage"]})):
        with entered(face, address, f"t{number}", tools=tools) as one:
            one.user("refund order 7")
            assert one.stream(one.source(["I ", last])) == ["I "]
            assert not one.run.done
            if not isinstance(last, Message):
                assert one.run.checkpoint.tokens_used == 9
            one.tools()
            assert one.run.messages[-1]["content"] == "refunded 7"
            assert one.stream(one.source(["Done."]), usage=lambda reply: (len(reply), 0.5)) == ["Done."]
            assert (one.run.checkpoint.tokens_used, one.run.checkpoint.cost) == (5, 0.5)
            assert one.run.done


def test_a_message_without_pieces(face: type[Face], address: Path) -> None:
    with entered(face, address) as one:
        one.user("hi")
        assert one.stream(one.source([{"role": "assistant", "content": "Hello."}])) == []
        assert one.run.reply == "Hello."


def test_the_options_of_model(face: type[Face], address: Path) -> None:
    with entered(face, address) as one:
        one.user("old " * 200)
        one.model("old reply " * 200)
        one.user("hi")
        shown: list[Any] = []
        one.stream(one.source(["Hello."], shown), system="Be brief.", budget=20)
        assert [message["content"] for message in shown[0]] == ["Be brief.", "hi"]


# -- cut -------------------------------------------------------------------------------------------


def nothing_kept(one: Face, before: Any) -> None:
    assert one.run.checkpoint == before
    assert not one.run.done
    assert len(one.run.messages) == 1
    assert one.run.alive


@pytest.mark.parametrize("place", range(len(PIECES) + 1))
def test_cut_by_an_exception(face: type[Face], address: Path, place: int, caplog: pytest.LogCaptureFixture) -> None:
    with entered(face, address) as one:
        one.user("where is it?")
        before = one.run.checkpoint
        cut = [*PIECES[:place], ConnectionError("reset"), *PIECES[place:]]
        with pytest.raises(ConnectionError):
            one.stream(one.source(cut))
        nothing_kept(one, before)
        assert warnings_in(caplog) == [
            f"thread 't': a stream was cut (ConnectionError), pieces so far: {place}; nothing of it was kept"
        ]
        assert one.stream(one.source(PIECES)) == PIECES
    assert steps(address) == ["manual", "llm_response"]


@pytest.mark.parametrize("place", range(1, len(PIECES) + 1))
def test_left_by_its_reader(face: type[Face], address: Path, place: int, caplog: pytest.LogCaptureFixture) -> None:
    with entered(face, address) as one:
        one.user("where is it?")
        before = one.run.checkpoint
        assert one.stream(one.source(PIECES), leave=place) == PIECES[:place]
        gc.collect()
        nothing_kept(one, before)
        assert warnings_in(caplog) == [
            f"thread 't': a stream was cut (its reader left), pieces so far: {place}; nothing of it was kept"
        ]
        assert one.model("It is lost.") == "It is lost."
    assert steps(address) == ["manual", "llm_response"]


def test_a_stream_that_is_never_begun_asks_nothing(face: type[Face], address: Path) -> None:
    with entered(face, address) as one:
        one.user("hi")
        shown: list[Any] = []
        stream = one.run.stream(one.source(["a"], shown))
        del stream
        assert shown == []
        assert one.model("Hello.") == "Hello."


def test_the_models_generator_is_closed(face: type[Face], address: Path) -> None:
    closed: list[int] = []

    def llm(_: Any) -> Any:
        try:
            yield from PIECES
        finally:
            closed.append(1)

    with entered(face, address) as one:
        one.user("hi")
        one.stream(llm, leave=2)
        assert closed == [1]


KILLED = """
import os, signal, sys
from faces import FACES, entered

def cut(messages):
    for number, piece in enumerate({pieces!r}):
        if number == {place}:
            os.kill(os.getpid(), signal.SIGKILL)
        yield piece
    os.kill(os.getpid(), signal.SIGKILL)

async def cut_on_a_loop(messages):
    for piece in cut(messages):
        yield piece

with entered(FACES[{face!r}], {address!r}) as one:
    one.user("where is it?")
    one.stream(cut_on_a_loop if {face!r} == "loop" else cut)
"""


@pytest.mark.parametrize("name", FACES)
@pytest.mark.parametrize("place", range(len(PIECES) + 1))
def test_killed_at_every_piece(name: str, address: Path, place: int) -> None:
    script = textwrap.dedent(KILLED).format(pieces=PIECES, place=place, face=name, address=str(address))
    done = subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parent, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert steps(address) == ["manual"]
    assert look(address, lambda vault: [run.thread_id for run in vault.stale()]) == ["t"]
    with entered(FACES[name], address) as one:
        assert one.stream(one.source(PIECES)) == PIECES
    assert steps(address) == ["manual", "llm_response"]


@pytest.mark.parametrize("place", range(len(PIECES)))
def test_cancelled_at_every_piece(address: Path, place: int, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with savegame.open_async(address) as vault, vault.run("t") as run:
            await run.user("hi")
            waiting = asyncio.Event()

            async def llm(_: Any) -> Any:
                for number, piece in enumerate(PIECES):
                    if number == place:
                        waiting.set()
                        await asyncio.Event().wait()
                    yield piece

            async def read() -> list[str]:
                return [piece async for piece in run.stream(llm)]

            task = asyncio.create_task(read())
            await waiting.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert len(run.messages) == 1
            assert [piece async for piece in run.stream(lambda _: PIECES)] == PIECES
        row = await_row(address)
        assert row.lease is None or not row.lease.expires

    def await_row(address: Path) -> Any:
        return look(address, lambda vault: vault.store.thread(ThreadKey("default", "t")))

    asyncio.run(main())
    assert warnings_in(caplog) == [
        f"thread 't': a stream was cut (CancelledError), pieces so far: {place}; nothing of it was kept"
    ]


def test_cancelled_while_a_thread_reads(address: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A thread cannot be stopped: the lease is not given back but runs out, as for tools."""
    reading, go_on = threading.Event(), threading.Event()
    ended: list[int] = []

    def llm(_: Any) -> Any:
        yield "a"
        reading.set()
        ended.append(go_on.wait(30))
        yield "b"

    async def main() -> None:
        async with savegame.open_async(address) as vault:

            async def agent() -> None:
                async with vault.run("t") as run:
                    await run.user("hi")
                    async for _ in run.stream(llm):
                        pass

            task = asyncio.create_task(agent())
            assert await asyncio.to_thread(reading.wait, 30)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            row = await vault.call(lambda sync: sync.store.thread(ThreadKey("default", "t")))
            assert row is not None
            assert row.lease is not None
            assert row.lease.expires > await vault.call(lambda sync: sync.store.clock())
            go_on.set()

    asyncio.run(main())
    assert warnings_in(caplog) == ["thread 't': a stream was cut (CancelledError), pieces so far: 1; nothing of it was kept"]
    assert steps(address) == ["manual"]


# -- refused ---------------------------------------------------------------------------------------

WRONG = {
    "None": ["a", None],
    "a number": ["a", 7],
    "bytes": ["a", b"b"],
    "text after the message": ["a", {"role": "assistant", "content": "a"}, "b"],
    "two messages": [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "a"}],
    "a call in another form": ["a", {"role": "assistant", "content": [{"functionCall": {"name": "refund"}}]}],
    "half a call": ["a", ASKS | {"finish_reason": "length"}],
    "a chunk": [{"choices": [{"delta": {"content": "a"}}]}],
}


@pytest.mark.parametrize("pieces", WRONG.values(), ids=WRONG.keys())
def test_a_piece_that_is_neither_text_nor_the_message(face: type[Face], address: Path, pieces: list[Any]) -> None:
    with entered(face, address) as one:
        one.user("hi")
        before = one.run.checkpoint
        with pytest.raises(InvalidInputError, match="the reply was not saved") as caught:
            one.stream(one.source([*pieces, "never read"]))
        assert caught.value.reply == pieces
        nothing_kept(one, before)
        assert one.model("Hello.") == "Hello."


def test_a_stream_without_a_piece(face: type[Face], address: Path) -> None:
    with entered(face, address) as one:
        one.user("hi")
        with pytest.raises(InvalidInputError, match="ended without a piece"):
            one.stream(one.source([]))
        assert not one.run.done


@pytest.mark.parametrize("whole", ["text", {"role": "assistant", "content": "a"}, 7, None])
def test_a_function_that_does_not_stream(face: type[Face], address: Path, whole: Any) -> None:
    with entered(face, address) as one:
        one.user("hi")
        with pytest.raises(InvalidInputError, match=r"pieces of text one by one, not \w+; use run\.model") as caught:
            one.stream(lambda _: whole)
        assert caught.value.reply is whole
        assert not one.run.done


def test_asynchronous_functions_need_an_asynchronous_run(address: Path) -> None:
    async def pieces(_: Any) -> Any:
        yield "a"

    async def later(_: Any) -> Any:
        return ["a"]

    with entered(Face, address) as one:
        one.user("hi")
        for llm in (pieces, later):
            with pytest.raises(
                InvalidInputError, match=r"asynchronous: it returned .* open the vault with savegame\.open_async"
            ):
                one.stream(llm)
        assert not one.run.done


def test_a_stream_waits_for_the_calls_of_the_last_reply(face: type[Face], address: Path, tools: Toolbox) -> None:
    with entered(face, address, tools=tools) as one:
        one.user("hi")
        one.model(ASKS)
        with pytest.raises(InvalidInputError, match=r"call run\.tools\(\)"):
            one.stream(one.source(["a"]))


def test_a_reply_to_a_conversation_that_went_on(address: Path) -> None:
    with entered(Face, address) as one:
        one.user("hi")
        stream = one.run.stream(one.source(["Hel", "lo."]))
        next(stream)
        one.user("wait")
        with pytest.raises(InvalidInputError, match="went on while the stream was read") as caught:
            list(stream)
        assert caught.value.reply == "Hello."
        assert not one.run.done


def test_a_save_while_the_stream_is_read_does_not_matter(address: Path) -> None:
    with entered(Face, address) as one:
        one.user("hi")
        for piece in one.run.stream(lambda _: PIECES):
            one.run.state["so_far"] = one.run.state.get("so_far", "") + piece
            one.run.save()
        assert one.run.reply == one.run.state["so_far"] == "It is lost."


def test_a_run_that_has_ended_ends_the_stream(address: Path) -> None:
    with savegame.open(address) as vault:
        with vault.run("t") as run:
            run.user("hi")
            stream = run.stream(lambda _: PIECES)
            next(stream)
        with pytest.raises(savegame.ClosedError):
            next(stream)


class FullStore(FileStore):
    full = False

    def commit(self, *given: Any, **named: Any) -> Any:
        if self.full:
            raise UnavailableError("the disk is full")
        return super().commit(*given, **named)


def test_a_reply_that_the_store_cannot_take_is_not_asked_for_again(tmp_path: Path) -> None:
    store = FullStore(str(tmp_path / "store"))
    with Vault(store) as vault, vault.run("t") as run:
        run.user("hi")
        store.full = True
        with pytest.raises(UnavailableError):
            list(run.stream(lambda _: PIECES))
        store.full = False
        assert list(run.stream(lambda _: ["again"])) == []
        assert run.reply == "It is lost."


def test_the_value_of_the_generator_is_that_of_model(address: Path) -> None:
    def through(run: Any) -> Any:
        found = yield from run.stream(lambda _: PIECES)
        values.append(found)

    values: list[Any] = []
    with entered(Face, address) as one:
        one.user("hi")
        assert list(through(one.run)) == PIECES
        assert values == ["It is lost."]


def test_a_stream_of_one_thread_does_not_log_into_another(
    face: type[Face], address: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with entered(face, address, "a/ü") as one:
        one.user("hi")
        one.stream(one.source(PIECES), leave=1)
        gc.collect()
    assert warnings_in(caplog)[0].startswith("thread 'a/ü'")


def test_two_streams_at_once_give_one_reply(address: Path) -> None:
    async def main() -> None:
        async with savegame.open_async(address) as vault, vault.run("t") as run:
            await run.user("hi")
            both = asyncio.Barrier(2)

            async def llm(_: Any) -> Any:
                yield "Hel"
                await both.wait()
                yield "lo."

            async def read() -> list[str]:
                return [piece async for piece in run.stream(llm)]

            found = await asyncio.gather(read(), read(), return_exceptions=True)
            assert sorted(type(one).__name__ for one in found) == ["InvalidInputError", "list"]
            assert [message["content"] for message in run.messages] == ["hi", "Hello."]

    asyncio.run(main())


# -- a stream that is stopped ----------------------------------------------------------------------


@pytest.mark.parametrize("pause", [0.02, 0.7], ids=["quick pieces", "slow pieces"])
def test_a_stop_ends_a_stream_without_waiting_for_its_end(face: type[Face], address: Path, pause: float) -> None:
    came: list[int] = []

    async def slowly(_: Any) -> Any:
        for number in range(2000):
            await asyncio.sleep(pause)
            came.append(number)
            yield f"{number} "

    def plainly(_: Any) -> Any:
        for number in range(2000):
            time.sleep(pause)
            came.append(number)
            yield f"{number} "

    with savegame.open(address) as other, pytest.raises(Stopped), entered(face, address) as one:  # noqa: PT012 - it leaves the run
        one.user("tell me everything")
        stopping = threading.Timer(0.3, other.stop, ("t", "enough"))
        stopping.start()
        one.stream(slowly if face is LoopFace else plainly)
    stopping.join()
    assert len(came) < 2000
    assert steps(address) == ["manual", "manual"]
    status = look(address, lambda vault: repr(vault.thread("t").latest().status))
    assert status == "halted(enough)"
