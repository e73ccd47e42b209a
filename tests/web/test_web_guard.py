"""Who may talk to the page: every route of the table against every kind of request that must not pass."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from urllib.parse import urlencode

import pytest
from pages_site import NO_HTTP, Answer, Site, fill, site_on

import savegame
from savegame.errors import InvalidInputError, UnavailableError
from savegame.opening import shown_address
from savegame.vault import Vault
from savegame.web import Server, serve
from savegame.web.app import PAGES, STATIC, PageRoute
from savegame.web.guard import HEADERS, MOST_BODY

GOOD: dict[str, dict[str, str]] = {
    "GET threads": {},
    "GET hits": {"q": "parcel"},
    "GET thread": {"id": "support-42"},
    "GET state": {"id": "plain", "at": "head"},
    "GET attachment": {"id": "files", "at": "head"},
    "GET export": {"id": "support-42"},
    "POST label": {"id": "support-42", "at": "head", "label": "new"},
    "POST tag": {"id": "support-42", "at": "head", "tags": "new"},
    "POST untag": {"id": "support-42", "at": "before the voucher", "tag": "risky"},
    "POST fork": {"id": "support-42", "at": "head", "name": "made"},
    "POST rewind": {"id": "support-42", "at": "before the voucher"},
    "POST send": {"id": "support-42", "content": "Hello?", "form": "x"},
    "POST unsend": {"id": "order", "key": "sent"},
    "POST stop": {"id": "invoice", "reason": "enough"},
    "GET runs": {},
    "POST answer": {"id": "invoice", "verdict": "approve"},
    "POST resolve": {"id": "letter", "outcome": "text", "text": "sent"},
    "GET store": {},
    "GET check": {},
    "POST check": {},
}
"""What makes each page and action succeed."""

SECRETS = ("parcel", "support-42", "tidy up", "DE02", "invoice", "savegame-export")
"""What is stored and no refusal may tell."""

HOSTILE: dict[str, Callable[[Site], dict[str, str]]] = {
    "another host": lambda site: {"Host": "evil.example"},
    "a rebound name": lambda site: {"Host": f"evil.example:{site.server.authority.rpartition(':')[2]}"},
    "localhost, which anybody may be": lambda site: {"Host": f"localhost:{site.server.authority.rpartition(':')[2]}"},
    "no port": lambda site: {"Host": "127.0.0.1"},
    "another port": lambda site: {"Host": "127.0.0.1:1"},
    "no host": lambda site: {"Host": ""},
    "another origin": lambda site: {"Origin": "http://evil.example"},
    "another port's origin": lambda site: {"Origin": "http://127.0.0.1:1"},
    "our origin as https": lambda site: {"Origin": f"https://{site.server.authority}"},
    "our origin as a beginning": lambda site: {"Origin": f"{site.origin}.evil.example"},
    "no origin's origin": lambda site: {"Origin": "null"},
    "another site": lambda site: {"Sec-Fetch-Site": "cross-site"},
    "a page on another port": lambda site: {"Sec-Fetch-Site": "same-site"},
    "an unknown site": lambda site: {"Sec-Fetch-Site": "elsewhere"},
}
WITHOUT_SESSION: dict[str, Callable[[Site], dict[str, str]]] = {
    "no cookie": lambda site: {"Cookie": ""},
    "a wrong cookie": lambda site: {"Cookie": "savegame=" + "x" * 43},
    "an empty cookie": lambda site: {"Cookie": "savegame="},
    "half a cookie": lambda site: {"Cookie": site.cookie[:-1]},
    "no text in the cookie": lambda site: {"Cookie": "savegame=\xff; ;;=;"},
}
FORMS: dict[str, Callable[[Site], dict[str, str]]] = {
    "no origin": lambda site: {"Origin": ""},
    "typed by hand": lambda site: {"Sec-Fetch-Site": "none"},
    "plain text": lambda site: {"Content-Type": "text/plain"},
    "JSON": lambda site: {"Content-Type": "application/json"},
    "parts": lambda site: {"Content-Type": "multipart/form-data; boundary=x"},
    "no type": lambda site: {"Content-Type": ""},
    "too long": lambda site: {"Content-Length": str(MOST_BODY + 1)},
    "a length that is none": lambda site: {"Content-Length": "-1"},
}


def name_of(page: PageRoute) -> str:
    return f"{page.method} {page.path}"


@pytest.fixture(scope="module")
def guarded() -> Iterator[tuple[Site, Vault]]:
    with savegame.open("memory:") as vault:
        fill(vault)
        png = b"\x89PNG\r\n\x1a\n"
        attached = [{"attachment_type": "image", "name": "x.png", "mime_type": "image/png", "content": png}]
        vault.thread("files").update(append={"messages": [{"role": "user", "content": "see", "attachments": attached}]})
        with site_on(vault) as site:
            yield site, vault


def fields_of(page: PageRoute, vault: Vault) -> dict[str, str]:
    """Good fields, with what is only known now."""
    fields = dict(GOOD[name_of(page)])
    if page.path == "rewind":
        fields["head"] = str(vault.info("support-42").head)  # type: ignore[union-attr]
    if page.path in ("answer", "resolve"):
        fields["call"] = next(iter(vault.calls(fields["id"]))).key
    return fields


def request(site: Site, page: PageRoute, fields: dict[str, str], headers: dict[str, str]) -> Answer:
    if page.method == "GET":
        return site.ask("GET", site.path(page.path, dict(fields)), None, {"Cookie": site.cookie} | headers)
    return site.ask("POST", site.path(page.path, {}), urlencode(fields), site.own_headers() | headers)


def check_refused(answer: Answer) -> None:
    assert 400 <= answer.status < 500
    assert not [secret for secret in SECRETS if secret in answer.text]
    if answer.text != NO_HTTP:
        check_headers(answer)


def check_headers(answer: Answer) -> None:
    for name, value in HEADERS.items():
        assert name.lower() in answer.headers, name
        if name not in ("Cache-Control", "Content-Security-Policy"):
            assert answer.headers[name.lower()] == value
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_every_page_has_a_request_that_succeeds() -> None:
    assert {name_of(page) for page in PAGES} == GOOD.keys()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_hostile_requests_are_refused_without_data_or_change(guarded: tuple[Site, Vault], page: PageRoute) -> None:
    site, vault = guarded
    kinds = HOSTILE | WITHOUT_SESSION | (FORMS if page.method == "POST" else {})
    fields, before = fields_of(page, vault), vault.fingerprints()
    for kind, headers in kinds.items():
        check_refused(request(site, page, fields, headers(site)))
        assert vault.fingerprints() == before, kind


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_other_methods_are_refused(guarded: tuple[Site, Vault], page: PageRoute) -> None:
    site, vault = guarded
    before = vault.fingerprints()
    own = {other.method for other in PAGES if other.path == page.path}
    for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "QUERY"} - own:
        answer = site.ask(method, site.path(page.path, {}), "" if method == "POST" else None, site.own_headers())
        check_refused(answer)
        assert answer.status == 405
    assert vault.fingerprints() == before


@pytest.mark.parametrize("page", [page for page in PAGES if page.method == "GET"], ids=name_of)
def test_a_page_is_shown_to_its_session_and_changes_nothing(guarded: tuple[Site, Vault], page: PageRoute) -> None:
    site, vault = guarded
    before = vault.fingerprints()
    answer = request(site, page, fields_of(page, vault), {"Sec-Fetch-Site": "same-origin"})
    assert answer.status == 200
    check_headers(answer)
    assert vault.fingerprints() == before


@pytest.mark.parametrize("page", [page for page in PAGES if page.method == "POST"], ids=name_of)
def test_an_action_of_our_own_page_happens(quick_vault: Vault, quick_site: Site, page: PageRoute) -> None:
    before = quick_vault.fingerprints()
    answer = request(quick_site, page, fields_of(page, quick_vault), {})
    assert answer.status == 303
    check_headers(answer)
    assert page.path == "check" or quick_vault.fingerprints() != before


@pytest.mark.parametrize("page", [page for page in PAGES if page.method == "POST" and page.path != "check"], ids=name_of)
def test_read_only_refuses_every_action(quick_vault: Vault, page: PageRoute) -> None:
    fill(quick_vault)
    before = quick_vault.fingerprints()
    with site_on(quick_vault, read_only=True) as site:
        check_refused(request(site, page, fields_of(page, quick_vault), {}))
    assert quick_vault.fingerprints() == before


def test_read_only_pages_offer_no_action_but_the_check(quick_vault: Vault) -> None:
    fill(quick_vault)
    with site_on(quick_vault, read_only=True) as site:
        for page, parameters in (("threads", {}), ("thread", {"id": "support-42", "do": "fork"}), ("runs", {})):
            assert 'method="post"' not in site.get(page, **parameters).text
        assert site.get("store").text.count('method="post"') == 1
        assert site.post("check").status == 303
        while "Reading every byte" in (text := site.get("check").text):
            pass
        assert "Intact" in text


def test_cookies_of_others_do_not_lock_anybody_out(quick_site: Site) -> None:
    for others in ("savegame=theirs; {}", "{}; savegame=theirs", 'bad[name]="x; {}', "savegame=; savegame; {}"):
        headers = {"Cookie": others.format(quick_site.cookie)}
        assert quick_site.ask("GET", quick_site.path("threads", {}), None, headers).status == 200, others


def test_paths_that_are_no_routes_are_refused(guarded: tuple[Site, Vault]) -> None:
    site, _ = guarded
    paths = ("/threads", "/room/threads", site.room[:-1], f"{site.room}../threads", f"/static/..{site.room}threads")
    for path in (*paths, "/static/../app.py", "/static/%2e%2e/app.py", "//threads", "*"):
        check_refused(site.ask("GET", path, None, {}))
    assert site.get("nothing").status == 404


def test_what_needs_no_session_tells_nothing_and_is_guarded_too(guarded: tuple[Site, Vault]) -> None:
    site, _ = guarded
    for path in ("/", *(f"/static/{name}" for name in STATIC)):
        answer = site.ask("GET", path, None, {})
        assert answer.status == 200
        check_headers(answer)
        assert not [secret for secret in SECRETS if secret in answer.text]
        assert site.server.keys.room not in answer.text
        for headers in HOSTILE.values():
            check_refused(site.ask("GET", path, None, headers(site)))
    for kind, headers in (HOSTILE | FORMS).items():
        link = site.server.link()
        refused = site.ask(
            "POST", "/open", f"secret={link.partition('#')[2]}", site.own_headers() | {"Cookie": ""} | headers(site)
        )
        check_refused(refused)
        assert "set-cookie" not in refused.headers, kind


def test_a_link_works_once_and_another_is_told() -> None:
    told: list[str] = []
    with savegame.open("memory:") as vault, Server(vault, say=told.append) as server:
        site = Site(server)
        assert len(told) == 1
        assert site.open(told[0]).status == 200
        assert site.open(told[0]).status == 403
        assert site.open("http://x/#").status == 403
        assert site.open("http://x/#wrong").status == 403


def test_the_cookie_is_for_our_pages_only(quick_site: Site) -> None:
    cookie = quick_site.open(quick_site.server.link()).headers["set-cookie"]
    assert re.fullmatch(rf"savegame=[\w-]{{43}}; Path={quick_site.room}; HttpOnly; SameSite=Strict", cookie)


def test_sessions_end_with_the_server(quick_vault: Vault, quick_site: Site) -> None:
    with site_on(quick_vault) as other:
        check_refused(other.ask("GET", other.path("threads", {}), None, {"Cookie": quick_site.cookie}))


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.7", "::", "8.8.8.8", "example.org", "", "127.0.0.1.evil.example"])
def test_an_address_that_others_can_reach_is_refused(quick_vault: Vault, host: str) -> None:
    with pytest.raises(InvalidInputError):
        serve(quick_vault, say=print, host=host)


def test_a_taken_port_is_an_error_that_says_so(quick_vault: Vault, quick_site: Site) -> None:
    port = int(quick_site.server.authority.rpartition(":")[2])
    with pytest.raises(UnavailableError, match="choose another"):
        Server(quick_vault, port=port)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("postgresql://me:sesame@db/x", "postgresql://me@db/x"),
        ("postgresql://me:a:sesame@db:5432/x", "postgresql://me@db:5432/x"),
        ("postgresql://me:a?sesame@db/x", "postgresql://me@db/x"),
        ("postgresql://me:a/sesame@db/x", "postgresql://…"),
        ("postgresql://me:a@sesame@db/x", "postgresql://…"),
        ("postgresql://db/x?sslpassword=sesame", "postgresql://db/x"),
        ("postgresql://db/x?user=a@b&password=sesame", "postgresql://…"),
        ("postgresql://a:1,[::1]:2/x", "postgresql://a:1,[::1]:2/x"),
        ("agents.db", "agents.db"),
        ("file:me@home", "file:me@home"),
    ],
)
def test_passwords_in_the_name_of_the_store_are_not_shown(quick_vault: Vault, address: str, shown: str) -> None:
    assert shown_address(address) == shown
    with Server(quick_vault, name=address) as server:
        page = Site(server).get("threads").text
    assert f'title="{shown}"' in page
    assert "sesame" not in page
