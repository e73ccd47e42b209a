"""A vault and os.fork: both sides go on, nothing is lost on either, and neither hangs.

Each test plays in a fresh interpreter: forking the test runner itself would bring its threads into it.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
from addresses import IN_DATABASES

import savegame
from savegame.testing.faults import PATIENCE_S

HEAD = """
import os, signal, sys, threading, time, warnings
import savegame
from savegame.errors import ClosedError, SavegameError

warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns about forking with threads: that is what this is about
path = sys.argv[1]

def in_child(work):
    pid = os.fork()
    if pid:
        return pid
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(10)                                       # a child that hangs is ended, and counts as failed
    try:
        work()
        os._exit(0)
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(1)

def wait(*pids):
    for pid in pids:
        _, status = os.waitpid(pid, 0)
        assert status == 0, "the child hung" if os.WIFSIGNALED(status) else "the child failed"
"""


def play(path: str, script: str) -> None:
    """Run a script on a vault's path; whatever it asserts must hold."""
    text = HEAD + textwrap.dedent(script)
    done = subprocess.run([sys.executable, "-c", text, path], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr[-3000:]


def assert_sound(path: str) -> None:
    with savegame.open(path) as vault:
        assert vault.verify().ok
        vault.thread("afterwards").save(1)


def test_parent_and_child_both_go_on_saving(path: str) -> None:
    play(
        path,
        """
        vault = savegame.open(path)
        thread = vault.thread("shared")
        thread.save({"items": []})

        def work(who):
            for number in range(40):
                vault.thread("shared").update(append={"items": [[who, number]]})
                vault.thread(f"own {who}").save(number)

        pids = [in_child(lambda who=who: work(who)) for who in (1, 2, 3)]
        work(0)
        wait(*pids)
        items = vault.thread("shared").state()["items"]
        assert sorted(items) == [[who, number] for who in range(4) for number in range(40)], len(items)
        assert all(vault.thread(f"own {who}").step is None and vault.thread(f"own {who}").state() == 39 for who in range(4))
        assert vault.verify().ok
        """,
    )
    assert_sound(path)


def test_the_childs_handle_knows_what_the_parent_saved_and_the_other_way_round(path: str) -> None:
    play(
        path,
        """
        vault = savegame.open(path)
        thread = vault.thread("t")
        thread.save(1)

        def work():
            assert thread.state() == 1
            thread.save(2)
            vault.close()

        wait(in_child(work))
        try:
            thread.save(3)
            raise SystemExit("the child's save was overwritten")
        except savegame.ConflictError:
            pass
        assert thread.state() == 2
        thread.save(3)
        vault.close()
        """,
    )
    assert_sound(path)


def test_forking_while_other_threads_save(path: str) -> None:
    play(
        path,
        """
        vault = savegame.open(path)
        stop = threading.Event()
        saved = [0] * 4

        def save(number):
            while not stop.is_set():
                vault.thread(f"busy {number}").update(append={"items": [saved[number]]})
                vault.thread("shared").update(append={"items": ["parent"]})
                saved[number] += 1

        workers = [threading.Thread(target=save, args=(number,), daemon=True) for number in range(4)]
        for worker in workers:
            worker.start()
        for number in range(20):
            time.sleep(0.005)

            def work():
                vault.thread("shared").update(append={"items": [f"child {number}"]})
                vault.thread("busy 0").state()
                vault.thread(f"child {number}").save(number)

            wait(in_child(work))
        stop.set()
        for worker in workers:
            worker.join()
        items = vault.thread("shared").state()["items"]
        assert items.count("parent") == sum(saved)
        for number in range(20):
            assert items.count(f"child {number}") == 1
            assert vault.thread(f"child {number}").state() == number
        for number in range(4):
            assert vault.thread(f"busy {number}").state()["items"] == list(range(saved[number]))
        assert vault.verify().ok
        """,
    )
    assert_sound(path)


def test_forking_while_other_threads_read(path: str) -> None:
    play(
        path,
        """
        vault = savegame.open(path)
        for number in range(30):
            vault.thread("t").update(append={"items": [number]})
        stop = threading.Event()

        def read():
            while not stop.is_set():
                assert vault.thread("t").state()["items"][:30] == list(range(30))
                list(vault.thread("t").history(limit=5))

        workers = [threading.Thread(target=read, daemon=True) for _ in range(4)]
        for worker in workers:
            worker.start()
        for number in range(20):
            def work():
                vault.thread("t").update(append={"items": [f"child {number}"]})
            wait(in_child(work))
            vault.thread("t").update(append={"items": ["parent"]})
        stop.set()
        for worker in workers:
            worker.join()
        items = vault.thread("t").state()["items"]
        assert items.count("parent") == 20 and len(items) == 70, items
        assert vault.verify().ok
        """,
    )
    assert_sound(path)


def test_multiprocessing_with_fork(path: str) -> None:
    play(
        path,
        """
        import multiprocessing
        vault = savegame.open(path)
        vault.thread("shared").save({"items": []})

        def work(who):
            for number in range(20):
                vault.thread("shared").update(append={"items": [[who, number]]})

        context = multiprocessing.get_context("fork")
        children = [context.Process(target=work, args=(who,)) for who in range(4)]
        for child in children:
            child.start()
        work(4)
        for child in children:
            child.join(60)
            assert child.exitcode == 0
        items = vault.thread("shared").state()["items"]
        assert sorted(items) == [[who, number] for who in range(5) for number in range(20)]
        assert vault.verify().ok
        """,
    )
    assert_sound(path)


def test_a_child_of_a_child(path: str) -> None:
    play(
        path,
        """
        vault = savegame.open(path)
        vault.thread("t").save([0])

        def grandchild():
            vault.thread("t").update(set={(0,): 2})

        def child():
            vault.thread("t").update(set={(0,): 1})
            wait(in_child(grandchild))
            assert vault.thread("t").state() == [2]

        wait(in_child(child))
        assert vault.thread("t").state() == [2]
        """,
    )
    assert_sound(path)


@pytest.mark.parametrize("store", IN_DATABASES)
def test_forking_inside_connection_refuses_in_the_child(path: str) -> None:
    play(
        path,
        """
        vault = savegame.open(path)
        vault.thread("t").save(0)
        vault.thread("t").state()                          # an idle reader is there too
        with vault.connection() as db:
            db.execute("CREATE TABLE own (x INTEGER)")
            vault.thread("t").save(1, force=True)

            def work():
                for use in (
                    lambda: vault.thread("t").save(2),
                    lambda: vault.thread("t").state(),
                    lambda: vault.verify(),
                    lambda: vault.thread("t").delete(),
                    lambda: vault.connection().__enter__(),
                ):
                    try:
                        use()
                    except ClosedError:
                        continue
                    raise AssertionError("the child's handle did not refuse")

            wait(in_child(work))
            db.execute("INSERT INTO own VALUES (1)")
            vault.thread("t").save(2, force=True)
        with vault.connection() as db:
            assert db.execute("SELECT x FROM own").fetchall() == [(1,)]
        assert [entry.load().state for entry in vault.thread("t").history()] == [2, 1, 0]
        assert vault.verify().ok
        """,
    )
    assert_sound(path)


@pytest.mark.parametrize("store", IN_DATABASES)
def test_a_child_that_leaves_the_parents_connection_block_commits_nothing(path: str) -> None:
    """The parent's transaction is the parent's: a child that falls out of the block must not write it."""
    play(
        path,
        """
        vault = savegame.open(path)
        vault.thread("t").save(0)
        pid = None
        with vault.connection() as db:
            db.execute("CREATE TABLE own (x INTEGER)")
        try:
            with vault.connection() as db:
                db.execute("INSERT INTO own VALUES (1)")
                pid = os.fork()
                if pid:
                    _, status = os.waitpid(pid, 0)
                    assert os.waitstatus_to_exitcode(status) == 7, status
                    raise KeyError("the parent changes its mind")
        except ClosedError:
            os._exit(7 if pid == 0 else 8)                 # the child is told
        except KeyError:
            pass
        if pid == 0:
            os._exit(9)                                    # the child believed that it committed
        with vault.connection() as db:
            assert db.execute("SELECT count(*) FROM own").fetchall() == [(0,)]
        assert vault.verify().ok
        """,
    )
    assert_sound(path)


def test_two_threads_that_fork_at_once_leave_nothing_locked(path: str) -> None:
    play(
        path,
        """
        vaults = [savegame.open(f"{path}{number}" if "://" not in path else path) for number in range(2)]
        done = []

        def fork_often():
            for _ in range(40):
                pid = os.fork()
                if not pid:
                    os._exit(0)
                os.waitpid(pid, 0)
            done.append(1)

        forkers = [threading.Thread(target=fork_often, daemon=True) for _ in range(2)]
        for forker in forkers:
            forker.start()
        while any(forker.is_alive() for forker in forkers) and len(done) < 2:
            for vault in vaults:
                vault.thread("t").update(append={"list": [1]})
        assert len(done) == 2
        for vault in vaults:
            vault.thread("t").update(append={"list": [2]})
        """,
    )


@pytest.mark.parametrize("store", ["sqlite"])
def test_an_interrupt_while_a_fork_waits_leaves_nothing_locked(path: str) -> None:
    """Python ignores what is raised there, and forks all the same."""
    play(
        path,
        """
        vault, memory = savegame.open(path), savegame.open("memory:")
        for each in (vault, memory):
            each.thread("t").save({"list": [1]})
        busy, over = threading.Event(), threading.Event()

        def hold():
            with vault.connection():
                busy.set()
                over.wait(10)

        def strike():
            for _ in range(3):
                time.sleep(0.05)                           # by now it waits; if not, this test has seen less
                os.kill(os.getpid(), signal.SIGINT)
            over.set()

        holder = threading.Thread(target=hold)
        holder.start()
        busy.wait()
        sys.unraisablehook = lambda ignored: None
        threading.Thread(target=strike).start()
        pid = 0
        while not pid:
            try:
                pid = in_child(lambda: [each.thread("t").update(append={"list": [2]}) for each in (vault, memory)])
            except KeyboardInterrupt:
                pass
        holder.join()
        wait(pid)
        used = threading.Thread(target=lambda: [each.thread("t").update(append={"list": [3]}) for each in (vault, memory)])
        used.daemon = True
        used.start()
        used.join(10)
        assert not used.is_alive()
        assert vault.thread("t").state() == {"list": [1, 2, 3]}
        assert memory.thread("t").state() == {"list": [1, 3]}
        """,
    )
    assert_sound(path)


def test_a_vault_in_memory_goes_on_in_the_child() -> None:
    play(
        "memory:",
        """
        vault = savegame.open(path)
        vault.thread("t").save({"n": 0})
        inside = threading.Event()

        def write():
            with vault.store._locked():
                inside.set()
                time.sleep(0.3)

        threading.Thread(target=write).start()
        inside.wait()
        wait(in_child(lambda: vault.thread("t").save({"n": 1})))
        """,
    )


def test_the_garbage_collector_works_in_the_child(path: str) -> None:
    play(
        path,
        """
        import gc
        import savegame.encoding.tree as tree
        vault = savegame.open(path)
        vault.thread("t").save({"list": [1]})
        inside, decoded = threading.Event(), tree._decode

        def slow(*args):
            inside.set()
            time.sleep(0.3)
            return decoded(*args)

        tree._decode = slow
        loader = threading.Thread(target=vault.thread("t").latest)
        loader.start()
        inside.wait()
        assert not gc.isenabled()

        def collected():
            assert gc.isenabled()

        wait(in_child(collected))
        loader.join()
        assert gc.isenabled()
        """,
    )
