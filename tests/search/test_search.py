"""What `vault.search` finds, what it never leaves behind, and what happens to its index."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, MessagesState, StateGraph

from savegame.adapters.langgraph import SavegameSaver
from savegame.encoding.foreign import Foreign
from savegame.errors import ClosedError, InvalidInputError, UnsupportedError
from savegame.index import Entry
from savegame.search.catching_up import Hits
from savegame.stores.fts import FtsIndex
from savegame.stores.sqlite import SQLiteStore
from savegame.vault import Vault

Opener = Callable[..., Vault]
SECRET = "xylophonist"


def say(vault: Vault, thread_id: str, *texts: Any, agent: str | None = None) -> None:
    vault.thread(thread_id, agent=agent).update(append={"messages": [{"role": "user", "content": text} for text in texts]})


def found(vault: Vault, query: str, **options: Any) -> list[str]:
    return [hit.thread_id for hit in vault.search(query, **options)]


@pytest.fixture
def chats(vault: Vault) -> Vault:
    say(vault, "order", "Please refund my order", "Now, please!", agent="shop")
    say(vault, "résumé", "Ein Café in Zürich öffnet", agent="guide")
    say(vault, "chinese", "我要申请退款，谢谢")
    vault.thread("no messages").save({"plan": "refund"})
    return vault


# -- what is found ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("refund", ["order"]),
        ("REFUN", ["order"]),
        ("order please", ["order"]),
        ("order zürich", []),
        ('"refund my"', ["order"]),
        ('"refund order"', []),
        ('"refund my or"', []),
        ("退款", ["chinese"]),
        ("款退", []),
        ("cafe ZURICH", ["résumé"]),
        ("efund", ["order"]),
        ("y ord", ["order"]),
        (", please!", ["order"]),
        ("，", ["chinese"]),
        ("nowhere", []),
    ],
)
def test_words_and_pieces_of_any_script_are_found(chats: Vault, query: str, wanted: list[str]) -> None:
    assert found(chats, query) == wanted


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("ขอเงินคืนด้วยครับ", "เงินคืน"),
        ("返金をお願いします", "返金"),
        ("キャンセルしたい", "ｷｬﾝｾﾙ"),
        ("환불신청을 하고 싶어요", "신청"),
        ("छूट हिन्दी में", "हिन्दी"),
        ("ຂໍເງິນຄືນ", "ເງິນຄືນ"),
        ("ငွေပြန်အမ်း", "ပြန်"),
        ("សុំសងប្រាក់វិញ", "សងប្រាក់"),
        ("Возврат денег", "ВОЗВРАТ"),
        ("ｒｅｆｕｎｄ", "refund"),
        ("cafe\u0301 noir", "café"),
        ("rolled 🎲 twice", "🎲"),
    ],
)
def test_scripts_without_spaces_are_found_in_the_middle(vault: Vault, text: str, query: str) -> None:
    say(vault, "it", text)
    say(vault, "other", "nothing of that kind")
    assert found(vault, query) == ["it"]


HOSTILE = (
    '"', '""', "'", "*", "a*", "(", "NEAR(a b)", "a AND", "NOT a", "text: a", "^a", "a\0b", "{a}", "-a", "＂a＂ OR b", "\ud800",
    "a " * 1000, "退" * 10_000, " ".join(f"w{n}" for n in range(100)), '"' * 999,
)  # fmt: skip


@pytest.mark.parametrize("query", HOSTILE, ids=range(len(HOSTILE)))
def test_any_input_is_only_text(vault: Vault, query: str) -> None:
    say(vault, "t", "zebra")
    assert found(vault, query) == []


@pytest.mark.parametrize("query", ['say "hi" (now)', "f(x) AND *y", "a\0b c++", "don't"])
def test_signs_are_found_as_they_stand(vault: Vault, query: str) -> None:
    say(vault, "t", f"before {query} after")
    assert found(vault, query) == ["t"]


def test_an_empty_query_finds_every_thread_with_a_message_newest_first(chats: Vault) -> None:
    assert found(chats, "") == found(chats, "  ") == ["chinese", "résumé", "order"]


# -- inside words ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("world", ["under", "whole"]),
        (" world", ["whole"]),
        ("WORLD", ["under", "whole"]),
        ("50%", ["signs"]),
        ("5%", []),
        ("%", ["signs"]),
        ("a_b", ["signs"]),
        ("a b", []),
        ('"x*"', ["signs"]),
        ("x*", ["signs"]),
        ("\\", ["signs"]),
        ("lo wo", ["whole"]),
        ("straße", ["german"]),
        ("STRASSE", ["german"]),
        ("cafe", []),
        ("CAFÉ", ["german"]),
        ("nowhere", []),
    ],
)
def test_a_substring_is_found_inside_words_and_its_signs_mean_nothing(vault: Vault, query: str, wanted: list[str]) -> None:
    say(vault, "whole", "Hello world")
    say(vault, "german", "Ein Café in der Hauptstraße")
    say(vault, "signs", '50% of a_b, "x*" and C:\\')
    say(vault, "under", "The Underworld")
    assert found(vault, query, match="substring") == wanted
    assert found(vault, query, match="words") == found(vault, query)
    assert found(vault, "world") == ["whole"], "words alone, where a message has them"


def test_a_substring_is_shown_where_it_stands(vault: Vault) -> None:
    say(vault, "t", "first cafe, then " + "words " * 40 + "a\nCAFÉ, straße", "un-CAFÉ-like", agent="x")
    (hit,) = vault.search("fé, Strasse", match="substring", agent="x")
    assert (hit.message, hit.matches, hit.score) == (0, 1, 0.0)
    assert "a CA[FÉ, straße]" in hit.snippet
    assert vault.search("a\nc", match="substring")[0].snippet.endswith("[a C]AFÉ, straße")
    assert vault.search("café", match="substring", markers=("<", ">"))[0].matches == 2
    assert vault.search("café", match="substring", agent="y").hits == ()
    assert found(vault, "", match="substring") == ["t"]
    assert found(vault, "café", match="substring", limit=0) == []


@pytest.mark.parametrize("wrong", ["", "word", "Words", None, 1, ["words"]])
def test_another_match_is_refused_and_the_choices_are_named(vault: Vault, wrong: Any) -> None:
    with pytest.raises(InvalidInputError, match="one of: words, substring"):
        vault.search("x", match=wrong)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(st.text(st.sampled_from("aBß%_*\"' \n\0é\u0301İ退"), max_size=8), min_size=1, max_size=8),
    queries=st.lists(st.text(st.sampled_from("abSs%_*\"' é退"), max_size=3), min_size=1, max_size=8),
)
def test_substrings_are_found_exactly(vault: Vault, texts: list[str], queries: list[str]) -> None:
    for number in range(8):
        said = [{"role": "user", "content": text} for text in texts[number : number + 1]]
        vault.thread(f"t{number}").save({"messages": said})
    for query in queries:
        wanted = {f"t{number}" for number, text in enumerate(texts) if query.casefold() in text.casefold()}
        assert set(found(vault, query, match="substring", limit=None)) == wanted


def test_better_hits_come_first_and_newer_ones_among_equals(vault: Vault) -> None:
    say(vault, "long", "a refund " + "and much else " * 50)
    say(vault, "old", "a refund")
    say(vault, "new", "a refund")
    hits = vault.search("refund")
    assert [hit.thread_id for hit in hits] == ["new", "old", "long"]
    assert hits[0].score == hits[1].score > hits[2].score > 0


def test_limits_are_kept(chats: Vault) -> None:
    assert found(chats, "", limit=2) == ["chinese", "résumé"]
    assert found(chats, "", limit=None) == found(chats, "")
    assert found(chats, "please", limit=0) == []
    assert found(chats, "", limit=10**30) == found(chats, "")
    for wrong in (-1, "5", 1.5, True):
        with pytest.raises(InvalidInputError, match="limit must be a whole number"):
            chats.search("please", limit=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="query"):
        chats.search(7)  # type: ignore[arg-type]


def test_agents_and_namespaces_are_kept_apart(opened: Opener) -> None:
    vault = opened()
    say(vault, "mine", "refund", agent="me")
    say(vault, "yours", "refund", agent="you")
    assert found(vault, "refund", agent="me") == ["mine"]
    assert found(vault, "refund", agent="nobody") == []
    assert set(found(vault, "refund")) == {"mine", "yours"}
    say(vault, "yours", "more", agent="me")
    assert set(found(vault, "refund", agent="me")) == {"mine", "yours"}
    assert found(vault, "refund", agent="you") == []
    tenant = Vault(vault.store, namespace="tenant")
    assert found(tenant, "refund") == []
    say(tenant, "mine", "refund")
    assert [hit.agent_id for hit in tenant.search("refund")] == [None]


def test_only_the_head_is_searched(vault: Vault) -> None:
    thread = vault.thread("t")
    first = thread.save({"messages": ["before"]})
    thread.save({"messages": ["after"]})
    assert (found(vault, "before"), found(vault, "after")) == ([], ["t"])
    thread.rewind(first.id)
    assert (found(vault, "before"), found(vault, "after")) == (["t"], [])


@pytest.mark.parametrize(
    "message",
    [
        "a plain needle",
        ("user", "needle"),
        {"role": "user", "content": [{"type": "text", "text": "a needle"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "name": "f", "arguments": {"deep": [{"x": "needle"}]}}],
        },
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '{"x": "needle"}'}}]},
        {"role": "tool", "tool_call_id": "1", "content": {"found": ["needle"]}},
        {"type": "function_call_output", "output": "needle"},
        {"role": "user", "parts": [{"content": "needle"}]},
        Foreign("json", json.dumps({"type": "human", "content": "a needle \ud800"}).encode()),
    ],
    ids=range(9),
)
def test_what_a_message_says_is_searched_in_every_shape(vault: Vault, message: Any) -> None:
    vault.thread("plain").save({"messages": [{"role": "user", "content": "x"}, message]})
    vault.thread("langgraph").save({"channel_values": {"messages": [message]}})
    assert set(found(vault, "needle")) == {"plain", "langgraph"}


def test_a_number_of_any_length_does_not_keep_a_vault_from_being_searched(vault: Vault) -> None:
    say(vault, "long", ["needle", 10**5000])
    say(vault, "short", "needle 1234")
    assert set(found(vault, "needle")) == {"long", "short"}


def test_what_only_programs_read_is_not_searched(vault: Vault) -> None:
    picture = "iVBOR" + "w0KGgo" * 200
    vault.thread("t").save({"messages": [{"role": "user", "id": "needle", "content": [{"type": "needle", "data": picture}]}]})
    assert found(vault, "needle") == found(vault, "iVBOR") == []


def test_messages_of_langgraph_threads_are_searched(vault: Vault) -> None:
    graph = StateGraph(MessagesState)
    graph.add_node("answer", lambda state: {"messages": [AIMessage("Your money is on its way")]})
    graph.add_edge(START, "answer")
    chat = graph.compile(checkpointer=SavegameSaver(vault))
    chat.invoke({"messages": [HumanMessage("I want a refund")]}, {"configurable": {"thread_id": "t"}})
    (hit,) = vault.search("money way")
    assert (hit.message, hit.role, hit.snippet) == (1, "ai", "Your [money] is on its [way]")
    assert vault.search("refund")[0].role == "human"


@dataclass
class Chat:
    messages: list[dict[str, str]] = field(default_factory=list)


def test_objects_are_searched_by_their_fields(vault: Vault) -> None:
    vault.thread("t", type=Chat).save(Chat([{"role": "user", "content": "needle"}]))
    assert found(vault, "needle") == ["t"]


# -- what a hit looks like -------------------------------------------------------------------------


def test_a_hit_tells_where(chats: Vault) -> None:
    say(chats, "order", "The refund will be refunded, " + "so to say " * 40)
    (hit,) = chats.search("refund order")
    assert (hit.thread_id, hit.agent_id, hit.message, hit.role, hit.matches) == ("order", "shop", 0, "user", 1)
    assert hit.snippet == "Please [refund] my [order]"
    assert hit.checkpoint_id == chats.thread("order").load("head").id
    (hit,) = chats.search("refund")
    assert (hit.message, hit.matches) == (0, 2)
    assert chats.search("cafe", markers=("<b>", "</b>"))[0].snippet == "Ein <b>Café</b> in Zürich öffnet"
    assert chats.search("退款")[0].snippet == "我要申请[退款]，谢谢"
    assert chats.search("efun")[0].snippet == "Please r[efun]d my order"


def test_a_snippet_is_the_stretch_with_most_of_the_words(vault: Vault) -> None:
    say(vault, "t", "alpha " + "filler " * 40 + "alpha\nand beta\tat last " + "filler " * 40)
    (hit,) = vault.search("beta alpha")
    assert "[alpha] and [beta] at last" in hit.snippet
    assert hit.snippet.startswith("… filler")
    assert hit.snippet.endswith("filler …")
    assert len(hit.snippet) < 100
    say(vault, "chinese", "前" * 500 + "退款" + "后" * 500)
    assert len(vault.search("退款")[0].snippet) < 100


def test_a_word_without_end_is_cut(vault: Vault) -> None:
    say(vault, "t", f"before {'ü' * 10_000} after")
    (hit,) = vault.search("ü")
    assert hit.snippet.startswith("before [üüü")
    assert hit.snippet.endswith("] …")
    assert len(hit.snippet) < 100


# -- catching up -----------------------------------------------------------------------------------


def test_progress_is_told_and_only_what_changed_is_indexed(vault: Vault) -> None:
    for number in range(450):
        vault.thread(f"t{number}").save({"messages": [f"refund {number}"]})
    told: list[tuple[int, int]] = []
    vault.search("refund", progress=lambda done, total: told.append((done, total)))
    assert told == [(200, 450), (400, 450), (450, 450)]
    told.clear()
    vault.search("refund", progress=lambda done, total: told.append((done, total)))
    assert told == []
    say(vault, "t7", "changed")
    assert found(vault, "changed", progress=lambda done, total: told.append((done, total))) == ["t7"]
    assert told == [(1, 1)]


def test_messages_that_move_keep_their_words(vault: Vault) -> None:
    thread = vault.thread("t")
    thread.save({"messages": ["first", "twice", "second", "twice", "third"]})
    vault.search("first")
    thread.save({"messages": ["summary", "twice", "third", "third"]})
    assert [(hit.message, hit.matches) for query in ("summary", "twice", "third") for hit in vault.search(query)] == [
        (0, 1),
        (1, 1),
        (2, 2),
    ]
    assert found(vault, "first") == found(vault, "second") == []


def test_an_interrupted_indexing_goes_on_where_it_stopped(vault: Vault) -> None:
    for number in range(300):
        vault.thread(f"t{number:03}").save({"messages": [f"refund {number}"]})

    def interrupted(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        vault.search("refund", progress=interrupted)
    told: list[tuple[int, int]] = []
    assert len(vault.search("refund", limit=None, progress=lambda done, total: told.append((done, total)))) == 300
    assert told == [(100, 100)]


KILLED = """
import os, signal, sys, savegame
savegame.open(sys.argv[1]).search("refund", progress=lambda done, total: os.kill(os.getpid(), signal.SIGKILL))
"""


def test_a_killed_indexing_goes_on_where_it_stopped(on_disk: Opener, tmp_path: Path) -> None:
    vault = on_disk()
    for number in range(300):
        vault.thread(f"t{number:03}").save({"messages": [f"refund {number}"]})
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "vault.db")], timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    told: list[tuple[int, int]] = []
    assert len(vault.search("refund", limit=None, progress=lambda done, total: told.append((done, total)))) == 300
    assert told == [(100, 100)]


def test_a_damaged_thread_is_named_and_the_others_are_found(on_disk: Opener, caplog: pytest.LogCaptureFixture) -> None:
    vault = on_disk()
    say(vault, "sound", "refund")
    say(vault, "broken", "refund")
    with vault.connection() as db:
        db.execute("UPDATE frame SET delta = zeroblob(length(delta)) WHERE key = (SELECT max(key) FROM frame)")
    with caplog.at_level(logging.WARNING, "savegame"):
        hits = vault.search("refund")
    assert [hit.thread_id for hit in hits] == ["sound"]
    assert hits.skipped == ("broken",)
    assert "'broken' is not searched" in caplog.text


SEARCHER = """
import sys, savegame
with savegame.open(sys.argv[1]) as vault:
    for _ in range(5):
        assert len(vault.search("refund", limit=None)) >= 300
"""


def test_many_processes_and_threads_index_at_once(on_disk: Opener, tmp_path: Path) -> None:
    vault = on_disk()
    for number in range(300):
        vault.thread(f"t{number}").save({"messages": [f"refund {number}"]})
    command = [sys.executable, "-c", SEARCHER, str(tmp_path / "vault.db")]
    others = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    results: list[Hits] = []
    threads = [threading.Thread(target=lambda: results.append(vault.search("refund", limit=None))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(20):
        say(vault, f"late {number}", "refund")
    for thread in threads:
        thread.join()
    assert [other.communicate(timeout=120)[1] for other in others] == [""] * 3
    assert [len(hits) >= 300 for hits in results] == [True] * 3
    assert len(vault.search("refund", limit=None)) == 320


# -- what is removed is gone -----------------------------------------------------------------------


def remains(directory: Path) -> list[str]:
    """The files beside a vault that still hold the secret."""
    return [path.name for path in directory.iterdir() if SECRET[1:].encode() in path.read_bytes()]


def words_in(path: Path) -> set[str]:
    """The words of an index, whole: in its file they are kept without what they have in common."""
    db = apsw.Connection(str(path))
    db.execute("CREATE VIRTUAL TABLE temp.all_words USING fts5vocab(main, word, row)")
    found = {row[0] for row in db.execute("SELECT term FROM all_words").fetchall()}
    db.close()
    return found


def deleted(vault: Vault) -> None:
    vault.thread("t").delete()


def discarded(vault: Vault) -> None:
    vault.thread("t").rewind("head~1", discard=True)


def removed(vault: Vault) -> None:
    vault.thread("t").remove("head")


def pruned(vault: Vault) -> None:
    vault.thread("t").save({"messages": ["harmless"]})  # the index still has the message of the head before
    vault.thread("t").prune(keep=1)


def searched_and_pruned(vault: Vault) -> None:
    vault.thread("t").save({"messages": ["harmless"]})
    assert found(vault, SECRET) == []
    vault.thread("t").prune(keep=1)


@pytest.mark.parametrize("times", [1, 300], ids=["word by word", "all at once"])
@pytest.mark.parametrize("way", [deleted, discarded, removed, pruned, searched_and_pruned], ids=lambda way: way.__name__)
def test_removed_words_are_in_no_file(on_disk: Opener, tmp_path: Path, way: Callable[[Vault], None], times: int) -> None:
    vault = on_disk(compress=False)
    for number in range(50):
        say(vault, f"other {number}", "xylophones and xylophone players", f"thread {number}")
    vault.thread("t").save({"messages": ["harmless"]})
    say(vault, "t", *[f"a {SECRET} wants refund {number}" for number in range(times)])
    assert found(vault, SECRET) == ["t"]
    assert "vault.db-search" in remains(tmp_path)
    assert SECRET in words_in(tmp_path / "vault.db-search")
    way(vault)
    assert remains(tmp_path) == []
    assert SECRET not in words_in(tmp_path / "vault.db-search")
    assert found(vault, SECRET) == []
    assert found(vault, "harmless") == ([] if way is deleted else ["t"])
    assert len(found(vault, "xylophone", limit=None)) == 50


class LateStore(SQLiteStore):
    """Its index writes only after `meanwhile` was called: what happens between reading a thread and indexing it."""

    meanwhile: Callable[[], object]

    def index(self) -> FtsIndex:
        store = self

        class Late(FtsIndex):
            def put(self, entries: Iterable[Entry]) -> None:
                store.meanwhile()
                super().put(entries)

        return Late(self.path + "-search")


def test_what_is_deleted_while_it_is_being_indexed_is_in_no_file(tmp_path: Path) -> None:
    store = LateStore(str(tmp_path / "vault.db"))
    with Vault(store, compress=False) as vault:
        say(vault, "t", SECRET)
        say(vault, "other", "refund")
        store.meanwhile = vault.thread("t").delete
        assert found(vault, "") == ["other"]
        assert remains(tmp_path) == []


def test_removing_makes_no_index(on_disk: Opener, tmp_path: Path) -> None:
    vault = on_disk()
    say(vault, "t", "refund")
    vault.thread("t").delete()
    assert not (tmp_path / "vault.db-search").exists()


# -- the index itself ------------------------------------------------------------------------------


def test_the_index_is_a_private_file_beside_the_vault(on_disk: Opener, tmp_path: Path) -> None:
    vault = on_disk()
    say(vault, "t", "refund")
    assert vault.stats().sizes["search"] == 0
    vault.search("refund")
    path = tmp_path / "vault.db-search"
    assert path.stat().st_mode & 0o777 == 0o600
    before = vault.stats()
    assert before.sizes["search"] == path.stat().st_size
    vault.backup(str(tmp_path / "copy.db"))
    assert not (tmp_path / "copy.db-search").exists()
    vault.drop_search_index()
    vault.drop_search_index()
    assert not path.exists()
    assert vault.stats().sizes == {**before.sizes, "search": 0}
    assert found(vault, "refund") == ["t"]


def test_a_dropped_index_is_made_anew(chats: Vault) -> None:
    before = chats.search("refund")
    chats.drop_search_index()
    assert chats.stats().sizes["search"] == 0
    assert chats.search("refund") == before


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def scrambled(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:4096] + bytes(byte ^ 0x55 for byte in data[4096:]))


def headless(path: Path) -> None:
    path.write_bytes(b"\0" * 60 + path.read_bytes()[60:])


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def of_another_version(path: Path) -> None:
    db = apsw.Connection(str(path))
    db.pragma("user_version", 99)
    db.close()


@pytest.mark.parametrize("harm", [cut, scrambled, headless, emptied, of_another_version], ids=lambda harm: harm.__name__)
def test_a_damaged_index_is_built_anew(
    on_disk: Opener, tmp_path: Path, caplog: pytest.LogCaptureFixture, harm: Callable[[Path], None]
) -> None:
    vault = on_disk()
    for number in range(50):
        say(vault, f"t{number}", f"refund {number}")
    vault.search("refund")
    harm(tmp_path / "vault.db-search")
    with caplog.at_level(logging.WARNING, "savegame"):
        assert len(vault.search("refund", limit=None)) == 50
    assert ("rebuilding it" in caplog.text) is (harm is not emptied)
    assert len(vault.search("refund", limit=None)) == 50


@pytest.mark.parametrize("harm", [cut, scrambled, headless], ids=lambda harm: harm.__name__)
def test_words_leave_a_damaged_index_too(on_disk: Opener, tmp_path: Path, harm: Callable[[Path], None]) -> None:
    vault = on_disk(compress=False)
    say(vault, "t", SECRET)
    vault.search(SECRET)
    harm(tmp_path / "vault.db-search")
    vault.thread("t").delete()
    assert remains(tmp_path) == []


@pytest.mark.parametrize("kind", ["text", "database"])
def test_a_file_that_is_not_ours_is_refused_and_kept(
    on_disk: Opener, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    vault = on_disk()
    say(vault, "t", "refund")
    path = tmp_path / "vault.db-search"
    if kind == "text":
        path.write_text("a diary\n" * 100)
    else:
        db = apsw.Connection(str(path))
        db.execute("CREATE TABLE diary (x)")
        db.close()
    before = path.read_bytes()
    with pytest.raises(UnsupportedError, match="move it away"):
        vault.search("refund")
    with pytest.raises(UnsupportedError, match="move it away"):
        vault.drop_search_index()
    with caplog.at_level(logging.WARNING, "savegame"):
        assert vault.thread("t").delete()
    assert "move it away" in caplog.text
    assert path.read_bytes() == before


@pytest.mark.parametrize("indexed", [True, False], ids=["with an index", "without"])
def test_a_read_only_vault_is_searched_and_nothing_is_written(on_disk: Opener, tmp_path: Path, indexed: bool) -> None:
    writer = on_disk()
    say(writer, "t", "refund")
    if indexed:
        writer.search("refund")
    say(writer, "late", "refund")
    reader = on_disk(read_only=True)
    before = {path: path.read_bytes() for path in tmp_path.glob("*-search*")}
    told: list[tuple[int, int]] = []
    assert set(found(reader, "refund", progress=lambda done, total: told.append((done, total)))) == {"t", "late"}
    assert told == [(1, 1) if indexed else (2, 2)]
    assert {path: path.read_bytes() for path in tmp_path.glob("*-search*")} == before
    if indexed:
        with pytest.raises(UnsupportedError, match="read_only"):
            reader.drop_search_index()


def test_a_closed_vault_is_not_searched(opened: Opener) -> None:
    vault = opened()
    say(vault, "t", "refund")
    vault.search("refund")
    vault.close()
    with pytest.raises(ClosedError):
        vault.search("refund")
    with pytest.raises(ClosedError):
        vault.drop_search_index()


def test_a_child_of_a_fork_searches(vault: Vault) -> None:
    say(vault, "t", "refund")
    vault.search("refund")
    child = os.fork()
    if not child:
        os._exit(0 if found(vault, "refund") == ["t"] else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert found(vault, "refund") == ["t"]
