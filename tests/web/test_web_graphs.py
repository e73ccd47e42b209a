"""LangGraph threads on the page: what their nodes ask, subgraphs below their graphs, changes without bookkeeping."""

from __future__ import annotations

import html
from collections.abc import Iterator

import pytest
from graphs import chat, config, human, team, trip
from langgraph.types import Command
from pages_site import Site, site_on, texts

from savegame.vault import Vault


@pytest.fixture
def empty_site(quick_vault: Vault) -> Iterator[Site]:
    with site_on(quick_vault) as made:
        yield made


def test_what_a_graph_asks_is_answered_on_the_page(quick_vault: Vault, empty_site: Site) -> None:
    graph = trip(quick_vault)
    graph.invoke({"log": []}, config("t"))
    (call,) = quick_vault.calls("t")
    page = empty_site.get("runs")
    assert "1 waiting for a person" in page.text
    assert "The graph asks for an answer." in texts(page.text)
    assert "where to?" in page.text
    assert 'value="approve"' not in page.text
    refused = empty_site.post("answer", id="t", call=call.key, verdict="json", value="Rome")
    assert refused.status == 400
    assert "not JSON" in html.unescape(refused.text)
    assert empty_site.post("answer", id="t", call=call.key, verdict="json", value='"Rome"').url.endswith("done=answer")
    assert empty_site.post("answer", id="t", call=call.key, verdict="text", value="Bonn").url.endswith("done=answered")
    assert "Answered, not resumed yet" in empty_site.get("runs").text
    graph.invoke(None, config("t"))
    assert "The graph asks: when?" in texts(empty_site.get("runs").text)
    assert "The graph asks: when?" in texts(empty_site.get("thread", id="t", view="calls").text)
    (call,) = quick_vault.calls("t")
    empty_site.post("answer", id="t", call=call.key, verdict="text", value="May")
    assert graph.invoke(None, config("t")) == {"log": ["Rome May", "booked"]}
    assert empty_site.post("answer", id="t", call=call.key, verdict="text", value="late").status == 400
    assert "0 waiting for a person" in empty_site.get("runs").text


def test_an_answer_to_a_subgraph_leaves_the_list_of_what_waits(quick_vault: Vault, empty_site: Site) -> None:
    team(quick_vault).invoke({"log": []}, config("t"))
    assert "1 waiting for a person" in empty_site.get("runs").text, "once, though two threads have it"
    (call,) = quick_vault.calls("t")
    quick_vault.answer("t", call, "yes")
    page = empty_site.get("runs").text
    assert "0 waiting for a person" in page
    assert "Answered, not resumed yet" in page


def test_threads_of_subgraphs_are_below_their_graph(quick_vault: Vault, empty_site: Site) -> None:
    team(quick_vault).invoke({"log": []}, config("t"))
    quick_vault.thread("z").save(1)
    page = empty_site.get("threads", sort="id").text
    (child,) = (info.id for info in quick_vault.threads() if info.child_of == "t")
    below = page.index('class="row-link below"')
    assert page.index("<bdi>t</bdi>") < below < page.index("<bdi>z</bdi>")
    assert f'title="{child}"' in page
    assert "<bdi>helper:" in page
    own = empty_site.get("thread", id=child)
    assert own.status == 200
    assert "subgraph of t" in " ".join(texts(own.text).split())


def test_changes_are_of_messages_and_the_rest_is_a_line(quick_vault: Vault, empty_site: Site) -> None:
    chat(quick_vault).invoke(human("hello"), config("t"))
    page = empty_site.get("thread", id="t", view="changes").text
    assert "channel_values.messages[1]" in page
    assert "versions_seen" not in page
    assert "bookkeeping fields of LangGraph. Show them" in texts(page)
    whole = empty_site.get("thread", id="t", view="changes", all="yes").text
    assert "versions_seen" in whole
    assert "bookkeeping" not in whole
    assert "assistant: You said: hello" in html.unescape(empty_site.get("thread", id="t").text), "in the timeline"


def test_a_head_that_waits_is_halted(quick_vault: Vault, empty_site: Site) -> None:
    trip(quick_vault).invoke({"log": []}, config("t"))
    page = empty_site.get("thread", id="t").text
    assert page.count('class="status halted" title="ask waits for a person"') == 3, "above, in the timeline and at the point"


def test_a_graph_is_rewound_and_forked_on_the_page(quick_vault: Vault, empty_site: Site) -> None:
    graph = team(quick_vault)
    graph.invoke({"log": []}, config("t"))
    done = graph.invoke(Command(resume="yes"), config("t"))
    start = next(found.id for found in quick_vault.thread("t").history() if found.kind == "__start__")
    head = next(quick_vault.thread("t").history(limit=1)).id
    empty_site.post("fork", id="t", name="what-if", at=start)
    empty_site.post("rewind", id="t", at=start, head=head)
    for thread_id in ("t", "what-if"):
        assert graph.get_state(config(thread_id)).next == ("helper",)
        assert graph.invoke(None, config(thread_id))["__interrupt__"]
        assert graph.invoke(Command(resume="yes"), config(thread_id)) == done
