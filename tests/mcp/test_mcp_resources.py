"""Threads and checkpoints as resources: listed in pages, read at their addresses, completed while the user types."""

from __future__ import annotations

import json
from typing import Any

import pytest
from desk import Desk
from mcp import MCPError, types

import savegame
from savegame.mcp.resources import CHECKPOINT_URI, RESOURCES, THREAD_URI


def read(desk: Desk, uri: str) -> dict[str, Any]:
    (content,) = desk.ask(desk.client.read_resource, uri).contents
    assert isinstance(content, types.TextResourceContents)
    assert (content.uri, content.mime_type) == (uri, "application/json")
    return dict(json.loads(content.text))


def test_every_thread_is_listed_page_by_page(desk: Desk, vault: savegame.Vault) -> None:
    wanted = [f"thread {number:03}" for number in range(RESOURCES + 10)]
    for name in wanted:
        vault.thread(name).save({})
    first = desk.ask(desk.client.list_resources)
    rest = desk.ask(lambda: desk.client.list_resources(cursor=first.next_cursor))
    assert [resource.name for resource in (*first.resources, *rest.resources)] == wanted
    assert rest.next_cursor is None


def test_long_ids_make_more_pages(desk: Desk, vault: savegame.Vault) -> None:
    wanted = [f"{number:03}{'🎮' * 500}" for number in range(20)]
    for name in wanted:
        vault.thread(name).save({})
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = desk.ask(lambda cursor=cursor: desk.client.list_resources(cursor=cursor))
        assert len(page.model_dump_json()) < 50_000
        found += [resource.name for resource in page.resources]
        if (cursor := page.next_cursor) is None:
            break
    assert found == wanted


@pytest.mark.parametrize("name", ["support-42", "../x", "a/b", "🎮 ?x=1&y#z", "%41", "savegame://threads/x"])
def test_a_thread_and_its_checkpoints_are_read_at_their_addresses(desk: Desk, vault: savegame.Vault, name: str) -> None:
    thread = vault.thread(name)
    thread.save({"messages": ["one"]}, label="a/b label")
    thread.save({"messages": ["one", "two"]})
    (listed,) = desk.ask(desk.client.list_resources).resources
    history = read(desk, listed.uri)
    assert (history["thread_id"], [entry["step"] for entry in history["checkpoints"]]) == (name, [2, 1])
    older = read(desk, f"{THREAD_URI.expand({'thread_id': name})}?after={history['head']}")
    assert [entry["step"] for entry in older["checkpoints"]] == [1]
    state = read(desk, CHECKPOINT_URI.expand({"thread_id": name, "checkpoint": "head"}))
    assert state["value"] == {"messages": ["one", "two"]}
    place = {"thread_id": name, "checkpoint": "a/b label", "path": "/messages", "start": "-1"}
    assert read(desk, CHECKPOINT_URI.expand(place))["value"] == ["one"]


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("savegame://threads/nothing", "thread-not-found"),
        ("savegame://threads/t/checkpoints/nowhere", "checkpoint-not-found"),
        ("savegame://threads/t/checkpoints/head?path=x", "must begin with '/'"),
        ("savegame://threads/t/checkpoints/head?start=x", "start must be a whole number"),
        ("savegame://threads/t/checkpoints/head?start=--1", "start must be a whole number"),
        ("savegame://elsewhere", "is not an address of this server"),
        ("file:///etc/passwd", "is not an address of this server"),
    ],
)
def test_what_is_not_there_is_told_with_the_next_step(desk: Desk, vault: savegame.Vault, uri: str, said: str) -> None:
    vault.thread("t").save({})
    with pytest.raises(MCPError, match=said) as caught:
        read(desk, uri)
    assert caught.value.code == types.INVALID_PARAMS
    assert "Next: " in caught.value.message


def test_templates_are_declared(desk: Desk) -> None:
    templates = desk.ask(desk.client.list_resource_templates).resource_templates
    assert [template.uri_template for template in templates] == [str(THREAD_URI), str(CHECKPOINT_URI)]


def test_ids_and_labels_are_completed(desk: Desk, vault: savegame.Vault) -> None:
    for name in ("order", "order-1", "order-2", "other"):
        vault.thread(name).save({})
    point = vault.thread("order").save({"a": 1}, label="before refund")
    ref = types.ResourceTemplateReference(uri=str(CHECKPOINT_URI))

    def completed(name: str, value: str) -> list[str]:
        argument = {"name": name, "value": value}
        answer = desk.ask(lambda: desk.client.complete(ref, argument, context_arguments={"thread_id": "order"}))
        return list(answer.completion.values)

    assert completed("thread_id", "order") == ["order", "order-1", "order-2"]
    assert completed("thread_id", "") == ["order", "order-1", "order-2", "other"]
    assert completed("checkpoint", "bef") == ["before refund"]
    assert point.id in completed("checkpoint", "")
    assert completed("nothing", "x") == []
