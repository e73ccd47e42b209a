"""The APIs of OpenAI and Anthropic on loopback: they answer from a script, whole or streamed, and keep the requests."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Plain = dict[str, Any]


class ScriptedAPI:
    """Where it listens, the replies still to be given, and the requests so far."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.replies: list[Plain] = []
        self.asked: list[Plain] = []


@contextmanager
def serving() -> Iterator[ScriptedAPI]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            api.asked.append(asked)
            reply = api.replies.pop(0)
            stream = asked.get("stream")
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream" if stream else "application/json")
            self.end_headers()
            body = b"".join(EVENTS[self.path](reply)) if stream else json.dumps(reply).encode()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    api = ScriptedAPI(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield api
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def event(data: Plain) -> bytes:
    return f"event: {data['type']}\ndata: {json.dumps(data)}\n\n".encode()


def pieces(text: str) -> list[str]:
    words = text.split(" ")
    return [word + " " for word in words[:-1]] + words[-1:]


def completion_events(reply: Plain) -> Iterator[bytes]:
    """A chat completion, in chunks."""
    choice, about = reply["choices"][0], {"id": reply["id"], "created": 1, "model": reply["model"]}

    def chunk(delta: Plain | None, **more: Any) -> bytes:
        choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": more.pop("finish_reason", None)}]
        data = {**about, "object": "chat.completion.chunk", "choices": choices, **more}
        return f"data: {json.dumps(data)}\n\n".encode()

    yield chunk({"role": "assistant", "content": ""})
    for piece in pieces(choice["message"]["content"] or ""):
        yield chunk({"content": piece})
    for index, call in enumerate(choice["message"].get("tool_calls") or ()):
        function = call["function"]
        yield chunk({"tool_calls": [{**call, "index": index, "function": {"name": function["name"], "arguments": ""}}]})
        for piece in pieces(function["arguments"]):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield chunk({}, finish_reason=choice["finish_reason"])
    yield chunk(None, usage=reply["usage"])
    yield b"data: [DONE]\n\n"


def message_events(reply: Plain) -> Iterator[bytes]:
    """A message of Anthropic, in events."""
    start = {**reply, "content": [], "stop_reason": None, "usage": {**reply["usage"], "output_tokens": 1}}
    yield event({"type": "message_start", "message": start})
    for index, block in enumerate(reply["content"]):
        empty = {"text": {"text": ""}, "thinking": {"thinking": "", "signature": ""}, "tool_use": {"input": {}}}
        yield event({"type": "content_block_start", "index": index, "content_block": block | empty.get(block["type"], {})})
        deltas: list[Plain] = []
        if block["type"] == "text":
            deltas = [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]
        elif block["type"] == "thinking":
            deltas = [{"type": "thinking_delta", "thinking": block["thinking"]}]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        elif block["type"] == "tool_use":
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces(json.dumps(block["input"]))]
        for delta in deltas:
            yield event({"type": "content_block_delta", "index": index, "delta": delta})
        yield event({"type": "content_block_stop", "index": index})
    ended = {"stop_reason": reply["stop_reason"], "stop_sequence": None}
    yield event({"type": "message_delta", "delta": ended, "usage": reply["usage"]})
    yield event({"type": "message_stop"})


def response_events(reply: Plain) -> Iterator[bytes]:
    """A response of OpenAI, in events."""
    number = iter(range(1000))

    def numbered(kind: str, **data: Any) -> bytes:
        return event({"type": kind, "sequence_number": next(number), **data})

    yield numbered("response.created", response={**reply, "output": [], "status": "in_progress", "usage": None})
    for index, item in enumerate(reply["output"]):
        where = {"output_index": index, "item_id": item["id"]}
        begun = {"message": {"content": []}, "function_call": {"arguments": ""}}.get(item["type"], {})
        yield numbered("response.output_item.added", output_index=index, item=item | begun)
        if item["type"] == "message":
            part = item["content"][0]
            where["content_index"] = 0
            yield numbered("response.content_part.added", **where, part=part | {"text": ""})
            for piece in pieces(part["text"]):
                yield numbered("response.output_text.delta", **where, delta=piece, logprobs=[])
            yield numbered("response.output_text.done", **where, text=part["text"], logprobs=[])
            yield numbered("response.content_part.done", **where, part=part)
        elif item["type"] == "function_call":
            yield numbered("response.function_call_arguments.delta", **where, delta=item["arguments"])
            yield numbered("response.function_call_arguments.done", **where, arguments=item["arguments"], name=item["name"])
        yield numbered("response.output_item.done", output_index=index, item=item)
    yield numbered("response.completed", response=reply)


EVENTS = {
    "/v1/chat/completions": completion_events,
    "/v1/messages": message_events,
    "/v1/responses": response_events,
}
