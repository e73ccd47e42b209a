"""The page in a real browser: by mouse, by keyboard alone, on a phone, live, accessible, and with hostile text in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from browsing import chromium
from pages_site import converse, fill, one_call
from playwright.sync_api import Browser, Page, expect
from test_web_injection import INJECTIONS, keep
from test_web_talking import paid, talk

import savegame
from savegame.model import ThreadKey
from savegame.vault import Vault
from savegame.web import Server
from savegame.web.thread_page import ACTIONS, VIEWS

Opener = Callable[..., Page]
SERIOUS = ("serious", "critical")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture
def vault(tmp_path: Path) -> Iterator[Vault]:
    with savegame.open(tmp_path / "vault.db") as opened:
        fill(opened)
        yield opened


@pytest.fixture
def server(vault: Vault) -> Iterator[Server]:
    with Server(vault, name="agents.db") as started:
        yield started


@pytest.fixture
def opened(browser: Browser, server: Server) -> Iterator[Opener]:
    """Opens the page with a link in a fresh browser; whatever the console complains about fails the test."""
    complaints: list[str] = []
    contexts = []

    def open_page(**options: Any) -> Page:
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
        page.goto(server.link())
        page.wait_for_url("**/threads")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not complaints


@pytest.fixture
def page(opened: Opener) -> Page:
    return opened(viewport={"width": 1280, "height": 800})


def go(page: Page, server: Server, path: str) -> None:
    page.goto(f"http://{server.authority}/{server.keys.room}/{path}")


def test_the_secret_leaves_the_address(page: Page, server: Server) -> None:
    assert "#" not in page.url
    page.goto(f"http://{server.authority}/")
    expect(page.locator("#door-says")).to_contain_text("Each link works once")


def test_by_mouse_find_walk_compare_fork_rewind_watch_and_approve(page: Page, vault: Vault) -> None:
    page.get_by_role("searchbox").fill("parcel")
    page.locator("#hits").get_by_role("link", name="support-42").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("support-42")

    page.locator("#timeline a.pick").filter(has_text="before the voucher").click()
    point = page.locator("#point")
    expect(point.get_by_role("heading", level=2)).to_contain_text("Step 2")
    expect(point).to_contain_text("Let me look.")
    expect(point).not_to_contain_text("A new parcel")
    page.go_back()
    expect(point).not_to_contain_text("Let me look.")
    page.go_forward()
    expect(point).to_contain_text("Let me look.")

    row = page.locator("#timeline .row").filter(has_text="Here is a voucher.")
    row.hover()
    row.get_by_role("link", name="Compare step 3").click()
    expect(point.locator(".compared")).to_contain_text("1 change")
    expect(point.locator(".diff .new")).to_contain_text("Here is a voucher.")

    point.get_by_role("link", name="Fork from here").click()
    point.get_by_label("Name of the new thread").fill("what if")
    point.get_by_role("button", name="Fork", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("what if")
    assert len(vault.thread("what if").state()["messages"]) == 2

    page.locator(".facts").get_by_role("link", name="support-42").click()
    page.locator("#timeline a.pick").filter(has_text="before the voucher").click()
    point.get_by_role("link", name="Rewind to here").click()
    expect(point).to_contain_text("1 checkpoint stays as a branch")
    point.get_by_role("button", name="Rewind", exact=True).click()
    expect(page.get_by_role("status").first).to_contain_text("The head was moved")
    assert vault.thread("support-42").load("head").label == "before the voucher"

    arrives_by_itself(page, vault)

    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Runs").click()
    card = page.locator(".card").filter(has_text="wire")
    expect(card).to_contain_text("DE02")
    card.get_by_role("button", name="Approve").click()
    approved(page, vault)


def test_from_the_search_by_keyboard_to_what_was_found(page: Page) -> None:
    for key in ("Enter", "ArrowDown"):
        page.keyboard.press("/")
        page.get_by_role("searchbox").fill("support")
        expect(page.locator("#results")).to_contain_text("1 thread")
        page.keyboard.press(key)
        expect(page.locator("#results a.row-link").first).to_be_focused()
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("searchbox")).not_to_be_focused()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("support-42")


def test_by_keyboard_alone_find_walk_compare_label_rewind_watch_fork_and_approve(page: Page, vault: Vault) -> None:
    keys = page.keyboard
    keys.press("/")
    keys.type("support")
    expect(page.locator("#results tbody tr")).to_have_count(1)
    tab_to(page, ".row-link")
    keys.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("support-42")
    page.wait_for_load_state()

    keys.press("j")
    expect(page.locator("#timeline a.pick").first).to_be_focused()
    keys.press("j")
    keys.press("j")
    keys.press("Enter")
    expect(page.locator("#timeline a.pick[aria-current]")).to_be_focused()
    expect(page.locator("#point h2")).to_contain_text("Step 2")
    keys.press("k")
    keys.press("c")
    expect(page.locator("#point .compared")).to_contain_text("1 change")

    tab_to(page, "#do-label")
    keys.press("Enter")
    expect(page.get_by_label("Label for this checkpoint")).to_be_focused()
    keys.press("Control+a")
    keys.type("by keyboard")
    keys.press("Enter")
    expect(page.get_by_role("status").first).to_contain_text("The label was changed")
    assert vault.thread("support-42").load("by keyboard").step == 2

    tab_to(page, "#do-rewind")
    keys.press("Enter")
    expect(page.locator("#point")).to_contain_text("1 checkpoint stays as a branch")
    expect(page.get_by_role("button", name="Rewind", exact=True)).to_be_focused()
    keys.press("Enter")
    expect(page.get_by_role("status").first).to_contain_text("The head was moved")
    assert vault.thread("support-42").load("head").label == "by keyboard"

    arrives_by_itself(page, vault)

    tab_to(page, "#do-fork")
    keys.press("Enter")
    expect(page.get_by_label("Name of the new thread")).to_be_focused()
    keys.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("support-42-fork")

    tab_to(page, "nav [href$=runs]")
    keys.press("Enter")
    page.wait_for_url("**/runs")
    tab_to(page, "[value=approve]")
    keys.press("Enter")
    approved(page, vault)


def tab_to(page: Page, css: str) -> None:
    """Press Tab until something like that has the focus, at most once around the page."""
    page.locator(css).first.wait_for()
    for _ in range(page.locator("a, button, input, select, summary, [tabindex]").count() + 2):
        if page.evaluate("css => document.activeElement.matches(css)", css):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"Tab never comes to {css}")


def arrives_by_itself(page: Page, vault: Vault) -> None:
    """A save to the thread that the page follows appears without a reload."""
    page.evaluate("window.stillHere = true")
    expect(page.locator(".live")).to_be_visible()
    vault.thread("support-42").update(append={"messages": [{"role": "user", "content": "Is it there yet?"}]})
    expect(page.locator("#timeline .row").first).to_contain_text("Is it there yet?")
    expect(page.locator("#point .message").last).to_contain_text("Is it there yet?")
    assert page.evaluate("window.stillHere")


def approved(page: Page, vault: Vault) -> None:
    """The call was let go on, and does."""
    expect(page.get_by_text("Answered, not resumed yet")).to_be_visible()
    assert converse(vault, "invoice", "", one_call("wire")) == "That is all."


def test_what_is_saved_meanwhile_arrives_without_a_reload(page: Page, server: Server, vault: Vault) -> None:
    go(page, server, "thread?id=support-42")
    arrives_by_itself(page, vault)
    go(page, server, "threads")
    page.evaluate("window.stillHere = true")
    vault.thread("brand new").save({"x": 1})
    expect(page.locator("#results")).to_contain_text("brand new")
    badge = page.locator("#waiting")
    expect(badge).to_have_text("2")
    converse(vault, "second invoice", "Pay.", one_call("wire", iban="FR14", cents=1))
    expect(badge).to_have_text("3")
    assert page.evaluate("window.stillHere")


def test_what_was_opened_and_typed_stays_while_new_things_arrive(page: Page, server: Server, vault: Vault) -> None:
    go(page, server, "runs")
    comment = page.locator(".card").filter(has_text="DE02").get_by_label("Comment")
    comment.fill("half a thou")
    converse(vault, "second invoice", "Pay.", one_call("wire", iban="FR14", cents=1))
    expect(page.locator(".card").filter(has_text="FR14")).to_be_visible()
    expect(comment).to_have_value("half a thou")

    go(page, server, "thread?id=order")
    call = page.locator("details.call").first
    call.locator("summary").click()
    vault.thread("order").update(append={"messages": [{"role": "user", "content": "And now?"}]})
    expect(page.locator("#timeline .row").first).to_contain_text("And now?")
    expect(call.locator("pre").first).to_be_visible()


def test_a_message_is_written_sent_and_taken_back(page: Page, server: Server, vault: Vault) -> None:
    go(page, server, "thread?id=order")
    field = page.get_by_label("Message to this thread")
    field.fill("half a thou")
    vault.thread("order").update(append={"messages": [{"role": "user", "content": "And now?"}]})
    expect(page.locator("#timeline .row").first).to_contain_text("And now?")
    expect(field).to_have_value("half a thou")
    field.press_sequentially("ght\nand a line")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("status").first).to_contain_text("The message is in the inbox")
    inbox = page.locator("#inbox")
    expect(inbox).to_contain_text("half a thought")
    expect(field).to_have_value("")
    assert [message.content for message in vault.inbox("order")] == ["And now?", "half a thought\nand a line"]
    inbox.get_by_role("listitem").filter(has_text="half a thought").get_by_role("button", name="Take back").click()
    expect(page.get_by_role("status").first).to_contain_text("The message was taken back")
    expect(inbox).not_to_contain_text("half a thought")
    page.evaluate("window.stillHere = true")
    with vault.run("order") as run:
        run.model(lambda _: "It is here.")
    expect(page.locator("#inbox")).to_have_count(0)
    expect(page.locator("#point .message").last).to_contain_text("It is here.")
    assert page.evaluate("window.stillHere")


def test_a_run_is_stopped_by_hand(page: Page, server: Server, vault: Vault) -> None:
    with vault.run("held") as run:
        run.user("Go on.")
        go(page, server, "thread?id=held")
        page.get_by_role("link", name="Stop the run").click()
        expect(page.get_by_label("Reason")).to_be_focused()
        page.keyboard.type("the customer called")
        page.keyboard.press("Enter")
        expect(page.get_by_role("status").first).to_contain_text("The thread was stopped")
        with pytest.raises(savegame.Stopped, match="the customer called"):
            run.model(lambda _: "never")
    expect(page.locator("#point")).to_contain_text("halted")
    vault.store.lease(ThreadKey(vault.namespace, "plain"), "somebody", 1)
    go(page, server, "runs")
    row = page.locator("tr").filter(has_text="plain")
    expect(row).to_contain_text("crashed")
    row.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("status").first).to_contain_text("The thread was stopped")
    expect(page.locator("tr").filter(has_text="plain")).to_have_count(0)
    assert vault.info("plain").status == "halted"  # type: ignore[union-attr]


def test_a_long_conversation_is_read_from_its_end(page: Page, server: Server, vault: Vault) -> None:
    thread = vault.thread("long")

    def said(text: str) -> None:
        thread.update(append={"messages": [{"role": "user", "content": text}]})

    for number in range(50):
        said(f"number {number} " + "and so on " * 60)
    go(page, server, "thread?id=long")
    message = page.locator("#view article")
    expect(message.last).to_be_in_viewport()
    page.locator("#timeline a.pick").nth(10).click()
    expect(message.last).to_contain_text("number 39")
    expect(message.last).to_be_in_viewport()

    go(page, server, "thread?id=long")
    said("this is new")
    expect(message.last).to_contain_text("this is new")
    expect(message.last).to_be_in_viewport()

    page.locator("#m30").scroll_into_view_if_needed()
    said("this is newer")
    expect(message.last).to_contain_text("this is newer")
    expect(page.locator("#m30")).to_be_in_viewport()
    expect(message.last).not_to_be_in_viewport()


def test_a_thread_that_is_deleted_meanwhile_is_said_to_be_and_stays_to_be_read(
    browser: Browser, server: Server, vault: Vault
) -> None:
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(server.link())
        page.wait_for_url("**/threads")
        go(page, server, "thread?id=support-42")
        vault.thread("support-42").delete()
        expect(page.locator("#lost")).to_contain_text("thread 'support-42' does not exist; it was deleted")
        expect(page.locator("#timeline")).to_contain_text("A new parcel is on its way.")
        expect(page.locator(".actions")).to_have_count(0)
        expect(page.locator(".live")).to_have_count(0)


def test_what_was_done_is_not_said_again_after_a_reload(page: Page, server: Server) -> None:
    go(page, server, "thread?id=support-42&done=rewind&undo=0")
    expect(page.get_by_role("status").first).to_contain_text("The head was moved")
    page.wait_for_url("**/thread?id=support-42")


def test_a_state_opens_place_by_place(page: Page, server: Server, vault: Vault) -> None:
    vault.thread("deep").save({"a": {"b": {"c": {"d": "at the bottom"}}}})
    go(page, server, "thread?id=deep&view=state")
    page.locator(".tree summary").filter(has_text="c").last.click()
    expect(page.get_by_text("at the bottom")).to_be_visible()


def test_the_check_shows_its_outcome(page: Page, server: Server) -> None:
    go(page, server, "store")
    page.get_by_role("button", name="Check integrity").click()
    expect(page.locator("#check")).to_contain_text("Intact")


def test_light_and_dark_are_remembered(page: Page) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.get_by_role("button", name="Light or dark").click()
    assert page.evaluate(ground) != light
    page.reload()
    assert page.evaluate(ground) != light


def all_paths(vault: Vault, thread: str) -> list[str]:
    points = list(vault.thread(thread).history(branches=True))
    asked: list[dict[str, str]] = [{"view": view} for view in VIEWS]
    asked += [{"at": points[-1].id, "do": action} for action in ACTIONS]
    asked += [{"at": points[0].id, "view": "changes", "with": points[-1].id}]
    threads = [f"thread?{urlencode({'id': thread, **more})}" for more in asked]
    return ["threads", f"threads?{urlencode({'q': thread})}", "runs", "store", *threads, "thread?id=not+there"]


def effect_paths(vault: Vault) -> list[str]:
    """Pages that name what stays in the world, and ask about what was done before."""
    first, _ = paid(vault)
    vault.thread("paid").rewind(first)
    with pytest.raises(savegame.Paused):
        talk(vault, "paid")
    return [f"thread?id=paid&at={first}&do={doing}" for doing in ("rewind", "fork")] + ["thread?id=paid&view=calls", "runs"]


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 390)])
def test_no_page_has_a_serious_accessibility_problem(
    opened: Opener, server: Server, vault: Vault, scheme: str, width: int
) -> None:
    page = opened(viewport={"width": width, "height": 844}, color_scheme=scheme, reduced_motion="reduce")
    axe = files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
    others = ["thread?id=order&view=calls", "thread?id=order", *effect_paths(vault)]
    for path in ["threads", *all_paths(vault, "support-42")[1:-1], *others]:
        go(page, server, path)
        page.evaluate(axe)
        found = page.evaluate("async () => (await axe.run()).violations")
        serious = [
            f"{path}: {one['id']}: {node['html'][:200]}: {node['failureSummary'][:300]}"
            for one in found
            if one["impact"] in SERIOUS
            for node in one["nodes"]
        ]
        assert not serious, "\n".join(serious)


def test_a_phone_never_scrolls_sideways(opened: Opener, server: Server, vault: Vault) -> None:
    call = {"id": "c", "name": "look_up_everything", "arguments": {"query": "every word " * 50}}
    said = [{"role": "user", "content": "w" * 5000}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    vault.thread("wide").save({"messages": said, "k" * 300: "v" * 3000})
    vault.send("wide", "w" * 5000)
    page = opened(viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    for path in [*all_paths(vault, "support-42")[:-1], *all_paths(vault, "wide")[2:-1], *effect_paths(vault)]:
        go(page, server, path)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path


def test_injections_stay_text_in_a_browser(browser: Browser) -> None:
    complaints: list[str] = []
    with savegame.open("memory:") as vault:
        for text in INJECTIONS:
            keep(vault, text)
        with Server(vault, name=INJECTIONS[0]) as server:
            page = browser.new_page()
            page.on("console", lambda said: complaints.append(said.text))
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("dialog", lambda dialog: complaints.append(dialog.message))
            page.on("request", lambda request: complaints.append(request.url) if server.authority not in request.url else None)
            page.goto(server.link())
            page.wait_for_url("**/threads")
            for number, text in enumerate(INJECTIONS):
                views = all_paths(vault, text)[4:-1]
                go(page, server, views[number % len(views)])
                shown = page.locator("h1").inner_text()
                assert re.sub(r"\s+", " ", shown) == re.sub(r"\s+", " ", text)
            for path in ("threads", "runs", "store"):
                go(page, server, path)
                expect(page.locator("main")).to_contain_text("<script>alert(1)</script>")
            page.context.close()
    assert not complaints
