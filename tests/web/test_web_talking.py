"""What a person tells a run on the page: messages, stop; and the effects that the page names before a thread goes back."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path
from typing import Any

import pytest
from pages_site import Site, site_on, texts
from test_web_pages import until

import savegame
from savegame.model import ThreadKey
from savegame.vault import Vault

tools = savegame.Toolbox()


@tools.tool
def refund(order: int) -> str:
    return f"refunded {order}"


def model(messages: list[dict[str, Any]]) -> Any:
    if messages[-1]["role"] == "tool":
        return "That is all."
    return {"role": "assistant", "tool_calls": [{"id": str(len(messages)), "name": "refund", "arguments": {"order": 1017}}]}


def talk(vault: Vault, thread_id: str, text: str | None = "Refund me.") -> str:
    with vault.run(thread_id, tools=tools) as run:
        if text:
            run.user(text)
        while not run.done:
            run.tools()
            run.model(model)
        return str(run.reply)


def paid(vault: Vault) -> tuple[str, str]:
    """A thread whose run refunded after its first checkpoint: the ids of that one and of the head."""
    first = vault.thread("paid").save({"messages": [{"role": "user", "content": "Hello"}]}, label="asked")
    talk(vault, "paid")
    return first.id, vault.thread("paid").load("head").id


def form_in(page: str) -> str:
    (found,) = re.findall(r'name="form" value="([^"]+)"', page)
    return str(found)


# -- messages --------------------------------------------------------------------------------------


def test_a_message_waits_in_the_inbox_and_is_taken_in(site: Site, vault: Vault) -> None:
    form = form_in(site.get("thread", id="order").text)
    done = site.post("send", id="order", form=form, content="And where\r\nis it now?")
    assert (done.status, "done=send" in done.url) == (303, True)
    page = site.get("thread", id="order").text
    assert "And where\nis it now?" in page[page.index('id="inbox"') :]
    with vault.run("order") as run:
        assert run.messages[-1]["content"] == "And where\nis it now?"
        assert 'id="inbox"' not in site.get("thread", id="order").text
        site.post("send", id="order", form=form_in(site.get("thread", id="order").text), content="Hello?")
        run.model(lambda messages: str(messages[-1]["content"]))
        assert run.reply == "Hello?", "a run that holds the thread does not matter"


def test_a_form_that_is_sent_twice_counts_once(quick_site: Site, quick_vault: Vault) -> None:
    def form() -> str:
        return form_in(quick_site.get("thread", id="order").text)

    first = form()
    assert form() == first, "so that a page that did not change is not sent again"
    assert "done=send" in quick_site.post("send", id="order", form=first, content="ok").url
    assert "done=sent" in quick_site.post("send", id="order", form=first, content="ok").url
    assert "done=send" in quick_site.post("send", id="order", form=first, content="another text").url
    assert "done=send" in quick_site.post("send", id="order", form=form(), content="ok").url, "said again on purpose"
    assert [message.content for message in quick_vault.inbox("order")] == ["And now?", "ok", "another text", "ok"]


def test_a_message_is_taken_back_unless_a_run_was_quicker(quick_site: Site, quick_vault: Vault) -> None:
    quick_vault.send("order", "Never mind.", key="k")
    assert 'value="k"' in quick_site.get("thread", id="order").text
    assert "done=unsend" in quick_site.post("unsend", id="order", key="k").url
    assert [message.key for message in quick_vault.inbox("order")] == ["sent"]
    late = quick_site.post("unsend", id="order", key="k")
    assert (late.status, "a run took this message in" in late.text) == (404, True)


@pytest.mark.parametrize(
    ("page", "fields", "status"),
    [
        ("send", {"id": "list", "content": "Hello"}, 400),
        ("send", {"id": "order", "content": ""}, 400),
        ("unsend", {"id": "order", "key": "x"}, 404),
        ("stop", {"id": "nobody"}, 404),
        ("stop", {"id": "nobody", "back": "runs"}, 404),
    ],
)
def test_a_wrong_form_says_what_is_wrong_and_changes_nothing(
    quick_site: Site, quick_vault: Vault, page: str, fields: dict[str, str], status: int
) -> None:
    quick_vault.thread("list").save([])
    before = quick_vault.fingerprints()
    answer = quick_site.post(page, **fields)
    assert answer.status == status
    assert 'role="alert"' in answer.text
    assert quick_vault.fingerprints() == before


def test_a_full_or_damaged_inbox_leaves_the_conversation(tmp_path: Path) -> None:
    path = tmp_path / "vault.db"
    with savegame.open(path) as vault, site_on(vault) as site:
        vault.thread("chat").save({"messages": [{"role": "user", "content": "Hello"}]})
        for number in range(25):
            vault.send("chat", f"number {number}")
        page = texts(site.get("thread", id="chat").text)
        assert ("number 19" in page, "number 20" in page, "And 5 more." in page) == (True, False, True)
        with vault.connection() as db:
            db.execute("UPDATE record SET value = zeroblob(length(value)) WHERE kind = 'inbox'")
        page = texts(site.get("thread", id="chat").text)
        assert "The inbox cannot be read: " in page
        assert "Hello" in page


def test_only_the_head_of_a_conversation_takes_messages(quick_site: Site, quick_vault: Vault) -> None:
    point = quick_vault.thread("support-42").load("before the voucher")
    assert 'id="send"' in quick_site.get("thread", id="support-42").text
    for asked in ({"at": point.id}, {"view": "changes"}, {"view": "calls"}):
        assert 'id="send"' not in quick_site.get("thread", id="support-42", **asked).text
    assert 'id="send"' not in quick_site.get("thread", id="plain").text


def test_a_page_that_is_read_only_shows_the_inbox_without_forms(quick_vault: Vault) -> None:
    quick_vault.send("order", "Hello?", key="k")
    talk(quick_vault, "order")
    quick_vault.send("order", "Still there?", key="k2")
    with site_on(quick_vault, read_only=True) as site:
        page = site.get("thread", id="order").text
        assert "Still there?" in page
        assert 'method="post"' not in page
        assert 'method="post"' not in site.get("runs").text


# -- stop ------------------------------------------------------------------------------------------


def test_a_run_is_stopped_from_its_page(site: Site, vault: Vault) -> None:
    assert 'id="do-stop"' not in site.get("thread", id="order").text, "it has ended"
    with vault.run("held") as run:
        run.user("Go on.")
        until(lambda: 'id="do-stop"' in site.get("thread", id="held").text)
        form = site.get("thread", id="held", at=vault.thread("held").load("head").id, do="stop").text
        assert "ends before its next call" in form
        done = site.post("stop", id="held", reason="the customer called")
        assert (done.status, "done=stop" in done.url) == (303, True)
        with pytest.raises(savegame.Stopped, match="the customer called"):
            run.model(lambda _: "never")
    assert "the customer called" in site.get("thread", id="held").text
    assert "done=ended" in site.post("stop", id="held").url


def test_runs_are_stopped_from_the_list_of_runs(site: Site, vault: Vault) -> None:
    with vault.run("held") as run:
        run.user("Go on.")
        until(lambda: "held" in texts(site.get("runs").text.partition("Running now")[2]))
        done = site.post("stop", id="held", back="runs")
        assert "/runs?done=stop" in done.url
        with pytest.raises(savegame.Stopped, match="stopped on the web page"):
            run.model(lambda _: "never")


def test_a_call_that_waits_is_answered_by_a_stop(site: Site, vault: Vault) -> None:
    until(lambda: 'id="do-stop"' in site.get("thread", id="invoice").text)
    assert "done=stop" in site.post("stop", id="invoice", reason="not this month").url
    (call,) = vault.calls("invoice")
    assert "not this month" in str(call.error)
    until(lambda: "DE02" not in site.get("runs").text)


# -- what should go on -----------------------------------------------------------------------------


def test_runs_are_listed_with_why_they_should_go_on(site: Site, vault: Vault) -> None:
    def row(name: str) -> str:
        found = re.search(rf"<tr>(?:(?!</tr>).)*<bdi>{name}</bdi>.*?</tr>", site.get("runs").text, re.DOTALL)
        return "" if found is None else texts(found[0])

    vault.send("order", "Are you there?")
    until(lambda: "mail" in row("order"))
    vault.store.lease(ThreadKey(vault.namespace, "plain"), "somebody", 1)
    until(lambda: "crashed" in row("plain"))
    vault.send("born of mail", "Hello")
    until(lambda: "mail" in row("born of mail"))
    with vault.run("asleep") as run:
        run.user("Remind me.")
        with pytest.raises(savegame.Paused):
            run.sleep(dt.timedelta(hours=6), name="reminder")
    until(lambda: "in 5 h" in row("asleep") or "in 6 h" in row("asleep"))
    assert 'id="do-stop"' in site.get("thread", id="asleep").text
    assert "done=stop" in site.post("stop", id="asleep", back="runs").url
    until(lambda: not row("asleep"))


# -- effects ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("doing", ["rewind", "fork"])
def test_effects_that_stay_in_the_world_are_named_before(site: Site, vault: Vault, doing: str) -> None:
    first, head = paid(vault)
    page = site.get("thread", id="paid", at=first, do=doing).text
    said = texts(page[page.index('<form class="act card"') :].partition("</form>")[0])
    for expected in (
        "1 effect stays in the world.",
        "refund",
        "1017",
        "A run asks before",
        f"vault.undo(&#39;paid&#39;, to=&#39;{first}&#39;",
    ):
        assert expected in said
    assert "in the world" not in texts(site.get("thread", id="paid", at=head, do=doing).text)


def test_left_effects_are_marked_among_the_calls(site: Site, vault: Vault) -> None:
    first, head = paid(vault)
    assert ">left<" not in site.get("thread", id="paid", view="calls").text
    site.post("rewind", id="paid", at=first, head=head)
    assert ">left<" in site.get("thread", id="paid", view="calls").text


def test_a_repeated_effect_is_answered_with_its_kept_result(site: Site, vault: Vault) -> None:
    first, head = paid(vault)
    site.post("rewind", id="paid", at=first, head=head)
    with pytest.raises(savegame.Paused) as caught:
        talk(vault, "paid")
    call = caught.value.call
    until(lambda: "Use the kept result" in site.get("runs").text)
    assert "refunded 1017" in texts(site.get("runs").text)
    assert "done=answer" in site.post("answer", id="paid", call=call.key, verdict="reuse").url
    assert talk(vault, "paid", None) == "That is all."
    assert len([one for one in vault.effects("paid") if one.attempt]) == 1
    (waiting,) = vault.calls("invoice")
    assert site.post("answer", id="invoice", call=waiting.key, verdict="reuse").status == 400
