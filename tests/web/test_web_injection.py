"""Stored text stays text: fifty injections in every field that is stored, on every page, compared with harmless ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files

import pytest
from pages_site import Site, site_on, skeleton

import savegame
from savegame.runs.ledger import CALL
from savegame.vault import Vault
from savegame.web.thread_page import ACTIONS, VIEWS

INJECTIONS = (
    "<script>alert(1)</script>",
    "<SCRIPT SRC=//evil.example/x.js></SCRIPT>",
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)>",
    "<svg><script>alert(1)</script></svg>",
    "<svg><animate onbegin=alert(1) attributeName=x>",
    "<math><mtext><table><mglyph><style><img src=x onerror=alert(1)>",
    "<iframe src=javascript:alert(1)>",
    "<iframe srcdoc='<script>alert(1)</script>'>",
    "<object data=javascript:alert(1)>",
    "<embed src=javascript:alert(1)>",
    "<a href=javascript:alert(1)>x</a>",
    "<form action=javascript:alert(1)><button>x</button></form>",
    "<button formaction=javascript:alert(1)>x</button>",
    "<input autofocus onfocus=alert(1)>",
    "<details open ontoggle=alert(1)>",
    "<video><source onerror=alert(1)>",
    "<audio src=x onerror=alert(1)>",
    "<body onload=alert(1)>",
    "<marquee onstart=alert(1)>",
    "<meta http-equiv=refresh content='0;url=//evil.example'>",
    "<base href=//evil.example/>",
    "<link rel=stylesheet href=//evil.example/x.css>",
    "<style>*{background:url(//evil.example)}</style>",
    "<template><script>alert(1)</script></template>",
    "<noscript><p title='</noscript><img src=x onerror=alert(1)>'>",
    "<xmp><p title='</xmp><svg onload=alert(1)>'>",
    "<div hx-get=/static/app.js hx-trigger=load>",
    "<div data-hx-post='label' data-hx-trigger='load'>",
    "<hx-partial hx-target=body><script>alert(1)</script></hx-partial>",
    "<div hx-on:click=alert(1)>",
    "<template hx type=partial hx-target=body>x</template>",
    '"><script>alert(1)</script>',
    "'><script>alert(1)</script>",
    '" onmouseover="alert(1)',
    "' onmouseover='alert(1)",
    "` onmouseover=`alert(1)",
    '" hx-trigger="load" x="',
    "</title><script>alert(1)</script>",
    "</textarea><script>alert(1)</script>",
    "</select><script>alert(1)</script>",
    "</code></pre></td></tr></table><script>alert(1)</script>",
    "--><script>alert(1)</script><!--",
    "<![CDATA[<script>alert(1)</script>]]>",
    "<!--#include file=x --><? x ?><% x %>",
    "{{ 7 * 7 }}{% raw %}${7*7}#{7*7}",
    "{{ ui.vault.delete_agent.__globals__ }}",
    "javascript:alert(1)",
    "data:text/html,<script>alert(1)</script>",
    "&lt;script&gt;alert(1)&lt;/script&gt;&#60;b&#62;",
    "\u202e<b>gnp.exe</b>\u2066",
)
HARMLESS = "a harmless text"


def keep(vault: Vault, text: str) -> None:
    """The text in every field that a vault stores."""
    file = {"attachment_type": "image", "name": text, "mime_type": text, "url": text, "size": 7}
    calls = [{"id": text, "name": text, "arguments": {text: text}}, {"id": text + "2", "name": text, "arguments": text}]
    messages = [
        {"role": "user", "content": text, "attachments": [file]},
        {"role": text, "content": [{"type": "text", "text": text}, {"type": "image", "source": {"data": text}}]},
        {"role": "assistant", "content": text, "tool_calls": calls},
        {"role": "tool", "tool_call_id": text, "content": text, "metadata": {"is_error": True}},
        {"role": "tool", "tool_call_id": text + "3", "content": {text: [text]}},
        text,
    ]
    details = {"description": text, "metadata": {text: text, "list": [text]}, "resume_hint": text, "external_id": text}
    thread = vault.thread(text, agent=text)
    thread.save({"messages": messages, text: {text: {text: text}}, "list": [text]}, **details)
    thread.save({"messages": messages, text: {text: {text: text + "!"}}}, label=text, tags=[text], status=f"failed({text})")
    thread.save({text: text}, label=text)
    kept = {"name": text, "arguments": {text: text}, "result": text, "error": text, "asked": text, "status": "waiting"}
    thread.put_records({(CALL, text): kept, (CALL, text + "2"): kept | {"status": "unknown"}})
    thread.fork(f"fork of {text}", at=2).save(f"stuck {text}", status=f"failed(stuck: {text})")
    vault.thread(f"talk {text}").save({"messages": [{"role": "user", "content": text}]})
    vault.stop(f"talk {text}", text)
    for name in ("talk", "mail for"):
        vault.send(f"{name} {text}", text, key=text)


def pages(site: Site, vault: Vault, text: str) -> Iterator[tuple[str, str]]:
    """Every page that shows what was kept, with all its views and forms."""
    points = list(vault.thread(text).history(branches=True))
    for asked in ({}, {"q": text}, {"agent": text}, {"tag": text}, {"status": text}):
        yield f"threads {asked and 'filtered'}", site.get("threads", **asked).text
    yield "hits", site.get("hits", q="harmless script alert").text
    for step, point in enumerate(points):
        for view in VIEWS:
            yield f"{view} at {step}", site.get("thread", id=text, at=point.id, view=view).text
        yield f"compared {step}", site.get("thread", id=text, at=point.id, view="changes", **{"with": points[0].id}).text
    for action in ACTIONS:
        yield action, site.get("thread", id=text, at=points[1].id, do=action).text
    yield "state", site.get("state", id=text, at=points[1].id).text
    yield "fork", site.get("thread", id=f"fork of {text}").text
    yield "inbox", site.get("thread", id=f"talk {text}").text
    yield "refused message", site.post("send", id=f"fork of {text}", content=text).text
    yield "refused stop", site.post("stop", id="no " + text, reason=text).text
    yield "runs", site.get("runs").text
    yield "store", site.get("store").text
    yield "refused fork", site.post("fork", id=text, at="head", name=text).text
    yield "refused label", site.post("label", id=text, at="nothing like " + text, label=text).text
    yield "not found", site.get("thread", id="no " + text).text


def shown(text: str) -> dict[str, str]:
    with savegame.open("memory:") as vault, site_on(vault) as site:
        keep(vault, text)
        while "Still counting" in site.get("store").text or "still being read" in site.get("threads").text:
            pass
        return dict(pages(site, vault, text))


@pytest.fixture(scope="module")
def harmless() -> dict[str, list[tuple[str, tuple[str, ...]]]]:
    return {page: skeleton(html) for page, html in shown(HARMLESS).items()}


def test_there_are_fifty() -> None:
    assert len(set(INJECTIONS)) >= 50


@pytest.mark.parametrize("text", INJECTIONS)
def test_an_injection_changes_no_element_of_any_page(text: str, harmless: dict[str, list[tuple[str, tuple[str, ...]]]]) -> None:
    found = shown(text)
    assert found.keys() == harmless.keys()
    for page, html in found.items():
        assert skeleton(html) == harmless[page], page
        links = re.findall(r'(?:href|src|action|hx-get)="([^"]*)"', html)
        assert not [link for link in links if not link.startswith(("/", "#"))], page


def test_templates_mark_nothing_as_safe_and_hold_no_script_or_style() -> None:
    for file in files("savegame.web").joinpath("templates").iterdir():
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"\|\s*safe|Markup|autoescape|<style|style=|\son\w+=|<script(?! src=)", text), file.name
        assert not re.search(r"=\{\{", text), f"{file.name}: an attribute without quotes"
