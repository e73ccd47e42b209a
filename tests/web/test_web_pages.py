"""What the pages show and do, on every store."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest
from pages_site import Site, converse, fill, one_call, site_on, texts

import savegame
from savegame.store import Capability
from savegame.vault import Vault
from savegame.web.thread_page import VIEWS


def until_checked(site: Site) -> str:
    """The outcome of the integrity check, once it is there."""
    while "Reading every byte" in (text := site.get("check").text):
        pass
    return text


def until(seen: Callable[[], bool]) -> None:
    """Wait for what a slow machine shows a moment later: lists are read in the background."""
    for _ in range(200):
        if seen():
            return
        time.sleep(0.05)
    assert seen()


def test_threads_are_listed_with_what_is_known_of_them(site: Site) -> None:
    page = texts(site.get("threads").text)
    for expected in ("support-42", "risky", "helper", "completed", "plain", "needs a person", "5 threads"):
        assert expected in page


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"q": "SUPPORT"}, {"support-42"}),
        ({"agent": "other"}, {"plain"}),
        ({"status": "completed"}, {"support-42", "order"}),
        ({"tag": "risky"}, {"support-42"}),
        ({"tag": "risky", "agent": "other"}, set()),
        ({"q": "nothing like that"}, set()),
    ],
)
def test_threads_are_filtered(quick_site: Site, asked: dict[str, str], found: set[str]) -> None:
    page = quick_site.get("threads", **asked).text
    rows = {name for name in ("support-42", "plain", "order", "invoice", "letter") if f"><bdi>{name}</bdi></a>" in page}
    assert rows == found


def test_threads_are_sorted_and_paged(quick_vault: Vault, quick_site: Site) -> None:
    for number in range(60):
        quick_vault.thread(f"many-{number:02}").save({"number": number})
    page = quick_site.get("threads", sort="id", q="many").text
    assert page.index("many-00") < page.index("many-49")
    assert "many-50" not in page
    following = quick_site.get("threads", sort="id", q="many", first=50).text
    assert "many-50" in following
    assert "many-49" not in following


def test_the_thread_whose_id_was_typed_comes_first(quick_vault: Vault, quick_site: Site) -> None:
    for name in ("my-support-42", "support-42-fork"):
        quick_vault.thread("support-42").fork(name)
    page = texts(quick_site.get("threads", q="Support-42").text.partition('id="results"')[2])
    assert page.index(" support-42 ") < page.index(" support-42-fork ") < page.index(" my-support-42 ")


def test_messages_are_searched(site: Site, vault: Vault) -> None:
    hits = site.get("hits", q="parcel").text
    if Capability.SEARCH not in vault.store.capabilities:
        assert "has no search" in hits
        return
    assert "<mark>parcel</mark>" in hits
    assert "support-42" in hits
    nothing = site.get("hits", q="voucher").text  # said on a branch only
    assert "No matches. Only the messages at the head of each thread are searched" in nothing


def test_a_thread_shows_its_timeline_and_the_conversation_at_its_head(site: Site) -> None:
    page = site.get("thread", id="support-42").text
    shown = texts(page)
    for expected in (
        "before the voucher",
        "Here is a voucher.",
        "A new parcel is on its way.",
        "1.2k tok",
        "cost 0.25",
        "head",
    ):
        assert expected in shown
    assert page.count('<li class="row') == 4
    assert 'class="lane lane-1"' in page, "the branch has a lane of its own"


def test_another_point_shows_what_was_there(site: Site, vault: Vault) -> None:
    point = vault.thread("support-42").load("before the voucher")
    page = site.get("thread", id="support-42", at=point.id).text
    point_shown = texts(page[page.index('<section id="point"') :])
    assert "Let me look." in point_shown
    assert "A new parcel" not in point_shown


def test_every_view_of_every_kind_of_thread_is_shown(quick_site: Site) -> None:
    for thread in ("support-42", "plain", "order", "invoice", "letter"):
        for view in VIEWS:
            assert quick_site.get("thread", id=thread, view=view).status == 200


def test_the_state_is_a_tree_that_opens_place_by_place(site: Site, vault: Vault) -> None:
    vault.thread("deep").save({"a": {"b": {"c": {"d": "at the bottom"}}}, "many": list(range(250)), 7: ("x",)})
    page = texts(site.get("thread", id="deep", view="state").text)
    assert "a dict of 1" in page
    assert "many list of 250" in page
    assert "at the bottom" not in page
    assert "at the bottom" in site.get("state", id="deep", at="head", place="0.0.0").text
    first, second = (texts(site.get("state", id="deep", at="head", place="1", first=first).text) for first in (0, 200))
    assert "99" in first
    assert "150 more" in first
    assert "249" in second
    assert "more" not in second
    for place in ("9", "0.0.0.0.0.0", "0.0.0.0", "1.7", "x", "-1", "0..1", "9" * 5000):
        assert site.get("state", id="deep", at="head", place=place).status == 400


def test_two_points_are_compared_by_path_whichever_was_chosen_first(site: Site, vault: Vault) -> None:
    thread = vault.thread("essay")
    first = thread.save({"title": "A quick draft", "words": 10, "old": 1})
    second = thread.save({"title": "A slow draft", "words": 10, "new": 2})
    for at, other in ((first, second), (second, first)):
        page = site.get("thread", id="essay", view="changes", at=at.id, **{"with": other.id}).text
        assert "3 changes" in texts(page)
        assert "<del>quick</del>" in page
        assert "<ins>slow</ins>" in page
        assert "words" not in texts(page[page.index('<table class="diff"') : page.index("</table>")])
    before = texts(site.get("thread", id="essay", view="changes", at=second.id).text)
    assert "3 changes" in before, "without another point the one before it is compared"


def test_attachments_are_shown_only_if_they_are_pictures(site: Site, vault: Vault) -> None:
    png = b"\x89PNG\r\n\x1a\n" + b"\0" * 20
    files = [
        {"attachment_type": "image", "name": "a.png", "mime_type": "image/png", "content": png},
        {"attachment_type": "image", "name": "b.svg", "mime_type": "image/png", "content": "<svg onload='alert(1)'/>"},
        {"attachment_type": "file", "name": "c.html", "mime_type": "text/html", "content": "<script>alert(1)</script>"},
        {"attachment_type": "file", "name": "d", "mime_type": "text/html", "url": "javascript:alert(1)"},
    ]
    vault.thread("files").update(append={"messages": [{"role": "user", "content": "see", "attachments": files}]})
    page = site.get("thread", id="files").text
    assert page.count('loading="lazy"') == 1
    assert 'href="javascript' not in page
    shown = [site.get("attachment", id="files", at="head", message=0, place=place) for place in range(3)]
    assert [answer.headers["content-type"] for answer in shown] == ["image/png", *["application/octet-stream"] * 2]
    assert [answer.headers["content-disposition"].partition(";")[0] for answer in shown] == ["inline", *["attachment"] * 2]
    assert all("sandbox" in answer.headers["content-security-policy"] for answer in shown)
    assert site.get("attachment", id="files", at="head", message=0, place=3).status == 404


def test_of_a_very_long_text_the_page_says_how_much_it_shows(quick_vault: Vault, quick_site: Site) -> None:
    calls = [{"id": "c1", "name": "put", "arguments": "y" * 300_000}]
    quick_vault.thread("long").save({"messages": [{"role": "assistant", "content": "x" * 500_000, "tool_calls": calls}]})
    page = quick_site.get("thread", id="long").text
    assert "Show the first 100,000 of 500,000 characters" in page
    assert "… and 400,000 more characters; use Export to get all" in page
    assert "… and 200,000 more characters; use Export to get all" in page


def test_keys_that_are_no_text_are_shown(site: Site, vault: Vault) -> None:
    call = {"id": "c", "name": "t", "arguments": {(1, 2): 3}}
    vault.thread("odd").save({"messages": [{"role": "assistant", "content": "", "tool_calls": [call]}]})
    assert "(1, 2)" in site.get("thread", id="odd").text
    vault.thread("odd").save({"a": 1})
    vault.thread("odd").save({"a": 1, "new": {(3, 4): 5}})
    assert "(3, 4)" in site.get("thread", id="odd", view="changes").text


def test_numbers_of_any_length_are_shown(quick_site: Site, quick_vault: Vault) -> None:
    long = 10**5000
    for number in (0, long):
        calls = [{"id": "c", "name": "t", "arguments": number}]
        files = [{"name": "f", "mime_type": "x", "size": number}]
        said = {"role": "user", "content": ["needle", number], "tool_calls": calls, "attachments": files}
        said |= {"tokens": number, "timestamp": number}
        quick_vault.thread("long").save({"messages": [said], "n": {number: number, (number,): {number}}})
    for view in VIEWS:
        assert quick_site.get("thread", id="long", view=view).status == 200
    assert hex(long) in quick_site.get("thread", id="long", view="state").text
    assert "needle" in quick_site.get("hits", q="needle").text


def test_a_thread_leads_to_its_forks_and_back(site: Site, vault: Vault) -> None:
    vault.thread("support-42").fork("another try")
    site.get("threads")
    page = site.get("thread", id="support-42").text
    assert "id=another+try" in page
    fork = site.get("thread", id="another try").text
    assert "id=support-42" in fork
    assert "fork of support-42" in texts(fork[fork.index('class="rows"') :])


# -- what can be done ------------------------------------------------------------------------------


def test_labels_and_tags_are_changed(site: Site, vault: Vault) -> None:
    thread = vault.thread("plain")
    assert "done=label" in site.post("label", id="plain", at="head", label=" fine ").url
    assert thread.load("fine").label == "fine"
    site.post("tag", id="plain", at="head", tags="a, b,,c")
    assert thread.load("head").tags == ("a", "b", "c")
    site.post("untag", id="plain", at="head", tag="b")
    assert thread.load("head").tags == ("a", "c")
    site.post("label", id="plain", at="head", label="")
    assert thread.load("head").label is None


def test_a_fork_is_made_and_shown(site: Site, vault: Vault) -> None:
    made = site.post("fork", id="support-42", at="before the voucher", name="what if")
    assert "what+if" in made.url
    assert len(vault.thread("what if").state()["messages"]) == 2
    refused = site.post("fork", id="support-42", at="head", name="what if")
    assert refused.status == 409
    assert "already exists" in texts(refused.text)
    assert 'value="what if"' in refused.text, "what was typed is still there"


def test_what_a_rewind_does_is_said_before_and_then_happens(site: Site, vault: Vault) -> None:
    thread = vault.thread("support-42")
    point, head = thread.load("before the voucher"), thread.load("head")
    said = texts(site.get("thread", id="support-42", at=point.id, do="rewind").text)
    assert "The head moves from step 3 to step 2 before the voucher" in said
    assert "1 checkpoint stays as a branch" in said
    done = site.post("rewind", id="support-42", at=point.id, head=head.id)
    assert done.status == 303
    assert vault.info("support-42").head == point.id  # type: ignore[union-attr]
    page = site.ask("GET", done.url, None, {"Cookie": site.cookie}).text
    assert f'at={head.id}&amp;do=rewind">Undo' in page


def test_a_rewind_is_refused_if_the_thread_went_on_meanwhile(site: Site, vault: Vault) -> None:
    thread = vault.thread("support-42")
    point, head = thread.load("before the voucher"), thread.load("head")
    newer = thread.update(append={"messages": [{"role": "user", "content": "wait"}]})
    refused = site.post("rewind", id="support-42", at=point.id, head=head.id)
    assert refused.status == 409
    assert newer.id in texts(refused.text)  # nowhere on the page but in what it says about the refusal
    assert thread.load("head").id == newer.id


def test_a_rewind_is_refused_while_a_run_holds_the_thread(site: Site, vault: Vault) -> None:
    point = vault.thread("order").load(1)
    with vault.run("order") as run:
        run.user("Where is it now?")
        head = vault.thread("order").load("head")
        until(lambda: "running" in texts(site.get("thread", id="order").text))
        assert "disabled>Rewind" in site.get("thread", id="order", at=point.id, do="rewind").text
        refused = site.post("rewind", id="order", at=point.id, head=head.id)
    assert refused.status == 409
    assert re.search(r"a run holds this thread \(\S+ process \d+\)", texts(refused.text))
    assert vault.thread("order").load("head").id == head.id


def test_a_call_is_approved_and_goes_on(site: Site, vault: Vault) -> None:
    (call,) = vault.calls("invoice")
    until(lambda: "wire" in texts(site.get("runs").text))
    fields = {"id": "invoice", "call": call.key}
    assert "done=answer" in site.post("answer", verdict="approve", **fields).url
    assert "done=answered" in site.post("answer", verdict="reject", **fields).url, "the first answer wins"
    until(lambda: "Answered, not resumed yet" in texts(site.get("runs").text))
    assert converse(vault, "invoice", "", one_call("wire")) == "That is all."
    assert "wired 1200 to DE02" in [call.result for call in vault.calls("invoice")]


@pytest.mark.parametrize(
    ("status", "answered", "held", "needed"),
    [
        ("waiting", False, True, "answer"), ("waiting", True, False, None), ("unknown", False, True, "outcome"),
        ("started", False, True, None), ("started", False, False, "outcome"), ("done", False, False, None),
    ],
)  # fmt: skip
def test_what_a_call_needs_of_a_person(status: str, answered: bool, held: bool, needed: str | None) -> None:
    call = savegame.CallEntry("key", "f", savegame.CallStatus(status), answered=answered)
    assert call.needs(held=held) == needed


def test_a_call_is_rejected_with_a_comment_that_the_model_reads(site: Site, vault: Vault) -> None:
    (call,) = vault.calls("invoice")
    site.post("answer", id="invoice", call=call.key, verdict="reject", comment="Not on a Sunday.")
    assert converse(vault, "invoice", "", one_call("wire")) == "That is all."
    assert "Not on a Sunday." in json.dumps(vault.thread("invoice").state()["messages"], default=str)


@pytest.mark.parametrize(
    ("outcome", "text", "result", "error"),
    [("text", "sent", "sent", None), ("json", '{"id": 7}', {"id": 7}, None), ("failed", "no route", None, "no route")],
)
def test_an_unknown_outcome_is_resolved(
    quick_site: Site, quick_vault: Vault, outcome: str, text: str, result: object, error: str | None
) -> None:
    (call,) = quick_vault.calls("letter")
    assert "Unknown outcome" in texts(quick_site.get("runs").text)
    assert quick_site.post("resolve", id="letter", call=call.key, outcome=outcome, text=text).status == 303
    (known,) = quick_vault.calls("letter")
    assert (known.result, known.error) == (result, error)
    assert "Unknown outcome" not in texts(quick_site.get("runs").text)
    again = quick_site.post("resolve", id="letter", call=call.key, outcome=outcome, text=text)
    assert again.status == 400
    assert "nothing to resolve" in again.text


@pytest.mark.parametrize(
    ("page", "fields", "status"),
    [
        ("answer", {"id": "invoice", "call": "x", "verdict": "approve"}, 404),
        ("answer", {"id": "invoice", "call": "x", "verdict": "maybe"}, 400),
        ("resolve", {"id": "letter", "call": "x", "outcome": "json", "text": "{"}, 400),
        ("resolve", {"id": "letter", "call": "x", "outcome": "maybe"}, 400),
        ("label", {"id": "plain"}, 400),
        ("label", {"id": "plain", "at": "head", "label": "x" * 600}, 400),
        ("tag", {"id": "plain", "at": "head", "tags": " , "}, 400),
        ("fork", {"id": "nobody", "at": "head", "name": "x"}, 404),
        ("rewind", {"id": "plain", "at": "head", "head": "x"}, 409),
    ],
)
def test_a_wrong_form_says_what_is_wrong_and_changes_nothing(
    quick_site: Site, quick_vault: Vault, page: str, fields: dict[str, str], status: int
) -> None:
    before = quick_vault.fingerprints()
    answer = quick_site.post(page, **fields)
    assert answer.status == status
    assert 'role="alert"' in answer.text
    assert quick_vault.fingerprints() == before


def test_pages_of_what_is_not_there_say_so(quick_site: Site) -> None:
    for asked in ({"id": "nobody"}, {"id": "plain", "at": "nothing-like-that"}):
        page = quick_site.get("thread", **asked)
        assert page.status == 404
        assert "does not exist" in page.text
        assert "history()" not in page.text
        assert "Nothing was changed" not in page.text
    assert quick_site.get("thread").status == 400
    assert quick_site.get("threads", first="x").status == 400
    assert quick_site.ask("GET", f"{quick_site.room}threads?q=a&q=b", None, {"Cookie": quick_site.cookie}).status == 400


def test_runs_are_listed_with_who_holds_them(site: Site, vault: Vault) -> None:
    with vault.run("held", agent="worker") as run:
        run.user("go on")
        until(lambda: "held" in texts(site.get("runs").text.partition("Running now")[2]))
        assert "running" in texts(site.get("thread", id="held").text)
    until(lambda: "No runs at the moment" in texts(site.get("runs").text))


def test_calls_are_drawn_as_a_waterfall(site: Site) -> None:
    page = site.get("thread", id="order", view="calls").text
    assert '<rect class="bar done"' in page
    assert "lost in transit" in page


def test_an_exported_thread_can_be_imported(site: Site, vault: Vault, tmp_path: Path) -> None:
    path = tmp_path / "export.jsonl"
    path.write_text(site.get("export", id="support-42").text, encoding="utf-8")
    with savegame.open("memory:") as other:
        assert other.import_(path) == 4
        assert other.thread("support-42").state() == vault.thread("support-42").state()


# -- the store -------------------------------------------------------------------------------------


def test_the_store_shows_sizes_counts_and_plots(site: Site) -> None:
    while "Still counting" in (page := site.get("store").text):
        pass
    for expected in ("Checkpoints per day", "Tokens per day", "Cost per day", "Largest states", "support-42", "3.6k", "0.75"):
        assert expected in texts(page)


def test_the_search_index_is_told_beside_the_size_of_the_store(vault: Vault, site: Site) -> None:
    vault.search("parcel")
    while "Still counting" in (page := site.get("store").text):
        pass
    assert ("Plus the search index" in page) == bool(vault.stats().sizes.get("search"))
    assert ">search</th>" not in page


def test_the_check_tells_that_the_store_is_intact(site: Site) -> None:
    site.post("check")
    assert "Intact" in until_checked(site)


def harm(path: Path, sql: str, what: object) -> None:
    db = apsw.Connection(str(path))
    db.execute(sql, (what,))
    db.close()


def test_what_is_damaged_is_told_and_the_rest_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "vault.db"
    with savegame.open(path) as vault:
        thread = vault.thread("hurt")
        first, hurt, last = (thread.save({"messages": [{"role": "user", "content": f"number {n}"}]}) for n in range(3))
    harm(path, "UPDATE frame SET delta = zeroblob(length(delta)) WHERE id = ?", bytes.fromhex(hurt.id))
    with savegame.open(path) as vault, site_on(vault) as site:
        assert "hurt" in site.get("threads").text
        page = site.get("thread", id="hurt", at=last.id)
        assert page.status == 200
        assert 'role="alert"' in page.text
        assert f"at={first.id}" in page.text[page.text.index("newest point that still loads") :]
        assert "number 0" in site.get("thread", id="hurt", at=first.id).text
        site.post("check")
        assert "problem" in until_checked(site)


def test_a_damaged_point_takes_no_preview_from_the_others(tmp_path: Path) -> None:
    path = tmp_path / "vault.db"
    with savegame.open(path) as vault:
        thread = vault.thread("hurt")
        saved = [thread.save({"messages": [{"role": "user", "content": f"number {n}"}]}) for n in range(4)]
    harm(path, "UPDATE frame SET delta = zeroblob(length(delta)) WHERE id = ?", bytes.fromhex(saved[2].id))
    with savegame.open(path) as vault, site_on(vault) as site:
        page = texts(site.get("thread", id="hurt", at=saved[0].id).text)
        assert "user: number 1" in page
        assert "user: number 2" not in page


def test_a_branch_that_is_damaged_leaves_the_line_of_the_head(tmp_path: Path) -> None:
    path = tmp_path / "vault.db"
    with savegame.open(path) as vault:
        fill(vault)
        voucher = next(point for point in vault.thread("support-42").history(branches=True) if point.seq == 3)
        first = vault.thread("support-42").load(1)
    harm(path, "UPDATE frame SET meta = zeroblob(length(meta)) WHERE id = ?", bytes.fromhex(voucher.id))
    with savegame.open(path) as vault, site_on(vault) as site:
        page = site.get("thread", id="support-42")
        assert page.status == 200
        said = texts(page.text)
        assert "Shown without branches: " in said
        assert "other" in [used.key for used in vault.usage()]
        assert "assistant: A new parcel is on its way." in said
        assert "before the voucher" in said
        assert "My parcel never came." in texts(site.get("thread", id="support-42", at=first.id).text)
        assert "2 checkpoints stay as a branch" in texts(site.get("thread", id="support-42", at=first.id, do="rewind").text)


def test_a_line_that_is_damaged_is_shown_as_far_as_it_can_be_read_and_left_by_a_rewind(tmp_path: Path) -> None:
    path = tmp_path / "vault.db"
    with savegame.open(path) as vault:
        saved = [vault.thread("hurt").save({"messages": [{"role": "user", "content": f"number {n}"}]}) for n in range(4)]
    harm(path, "UPDATE frame SET meta = zeroblob(length(meta)) WHERE id = ?", bytes.fromhex(saved[1].id))
    with savegame.open(path) as vault, site_on(vault) as site:
        page = texts(site.get("thread", id="hurt").text)
        assert "step 4 head" in page
        assert "step 3 manual" in page
        asked = {"id": "hurt", "at": saved[0].id}
        assert "They cannot be counted" in texts(site.get("thread", **asked, do="rewind").text)
        assert site.post("rewind", **asked, head=saved[3].id).status == 303
        assert "number 0" in site.get("thread", id="hurt").text


def test_the_store_is_counted_past_a_damaged_thread(tmp_path: Path) -> None:
    path = tmp_path / "vault.db"
    with savegame.open(path) as vault:
        fill(vault)
        threads = vault.stats().threads
    harm(path, "UPDATE thread SET sum = sum + 1 WHERE id = ?", "plain")
    with savegame.open(path) as vault, site_on(vault) as site:
        while "Still counting" in (page := site.get("store").text):
            pass
        assert "1 thread is damaged and not counted" in page
        assert vault.stats().threads == threads - 1
        assert "Checkpoints per day" in page


def test_a_page_that_is_known_already_is_not_sent_again(quick_site: Site, quick_vault: Vault) -> None:
    first = quick_site.get("thread", id="plain")
    headers = {"Cookie": quick_site.cookie, "If-None-Match": first.headers["etag"]}
    path = quick_site.path("thread", {"id": "plain"})
    assert (again := quick_site.ask("GET", path, None, headers)).status == 304
    assert not again.text
    quick_vault.thread("plain").update(set={"done": True})
    assert quick_site.ask("GET", path, None, headers).status == 200
