"""A chat service on several workers, for browsers: python chat_service.py serve --port 8000, and again with another port.

All processes share one vault. Each of them takes messages, streams replies to browsers and works on any chat; a lease per
chat ensures that one does at a time. Messages are accepted while an agent works, a button stops it, and what a killed process
left behind is carried on by another. Everything is stored in chats.db in the current directory, or in another vault
(--vault; PostgreSQL for workers on several machines). The model is a script.

Without `serve` it plays a scene and ends: two workers, a client in place of a browser, and a worker that is killed.
"""

import argparse
import asyncio
import contextlib
import http.client
import json
import socket
import subprocess
import sys
import time
import uuid
from datetime import timedelta

import uvicorn
from starlette.applications import Starlette
from starlette.responses import HTMLResponse, JSONResponse, StreamingResponse
from starlette.routing import Route

import savegame

LEASE = timedelta(seconds=5)  # how long a chat waits if it cannot be seen that its worker died
tools = savegame.Toolbox()


@tools.tool(read_only=True)
def find_order(order: int):
    """Look an order up."""
    return {"order": order, "state": "lost in transit"}


async def model(messages):
    """Put your own call here: it yields text as it comes, and at the end a message with tool calls, if there are any."""
    answered = max((number for number, one in enumerate(messages, 1) if one["role"] == "assistant"), default=0)
    orders = [
        word for one in messages[answered:] if one["role"] == "user" for word in one["content"].split() if word.isdecimal()
    ]
    if orders:
        call = {"id": f"find-{len(messages)}", "name": "find_order", "arguments": {"order": int(orders[0])}}
        yield {"role": "assistant", "content": "Let me look.", "tool_calls": [call]}
        return
    for one in messages[answered:]:
        order = one["content"]
        answer = f"Order {order['order']} is {order['state']}." if one["role"] == "tool" else f"You said: {one['content']}"
        if "story" in str(one["content"]):
            answer = "Once upon a time" + " and then" * 100
        for word in answer.split():
            await asyncio.sleep(0.05)
            yield word + " "


class Service:
    """The chats of one process. `listeners` are the queues of the browsers that watch a chat here."""

    def __init__(self, vault):
        self.vault, self.listeners, self.working = vault, {}, set()

    async def work(self, chat):
        """Work on a chat until nothing is left to do. Messages that arrive meanwhile are taken in between two steps."""
        try:
            async with self.vault.run(chat, agent="helper", tools=tools, lease=LEASE) as run:
                while not run.done:
                    await run.tools()
                    async for piece in run.stream(model):
                        self.publish(chat, "piece", piece)
        except savegame.Busy:  # its holder takes the message in, or, if it just ended, the supervisor finds it
            pass
        except savegame.Stopped:  # those who follow the chat see that it was halted
            pass
        except (savegame.Paused, savegame.Unknown) as waits:
            self.publish(chat, "status", str(waits))

    def start(self, chat):
        task = asyncio.create_task(self.work(chat))
        self.working.add(task)
        task.add_done_callback(self.working.discard)

    def publish(self, chat, event, data):
        for queue in self.listeners.get(chat, ()):
            queue.put_nowait((event, data))

    async def resume(self, chat):
        """What the supervisor calls for a chat whose worker died, or that has mail: several may be worked on at once."""
        self.start(chat)

    async def follow(self, chat, queue, after):
        """Put every saved message from number `after` on into a queue, whichever process saved it."""
        thread = self.vault.thread(chat)
        while (point := await thread.latest()) is None:  # nothing was said yet
            await asyncio.sleep(0.2)
        after = self.put(queue, point, after)
        async for _ in thread.watch(since=point.id):
            after = self.put(queue, await thread.latest(), after)

    def put(self, queue, point, after):
        """Put the messages from a number on, and the status; returns the number of messages."""
        messages = point.state["messages"]
        for number in range(after, len(messages)):
            queue.put_nowait(("message", {"number": number, **messages[number]}))
        queue.put_nowait(("status", ": ".join(filter(None, (point.status, point.status.reason)))))
        return len(messages)

    # -- what browsers call ------------------------------------------------------------------------

    async def send(self, request):
        """Accept a message. A browser that is not sure whether it arrived sends it again, with the same key."""
        chat, given = request.path_params["chat"], await request.json()
        new = await self.vault.send(chat, given["text"], key=given["key"])
        self.start(chat)
        return JSONResponse({"new": new}, status_code=202)

    async def stop(self, request):
        stopped = await self.vault.stop(request.path_params["chat"], "the user pressed stop")
        return JSONResponse({"stopped": stopped})

    async def events(self, request):
        """The chat as server-sent events: its messages so far, then each new one, and the pieces of a reply on its way."""
        after = int(request.headers.get("last-event-id", -1)) + 1  # a browser that reconnects says what it has
        return StreamingResponse(self.stream(request.path_params["chat"], after), media_type="text/event-stream")

    async def stream(self, chat, after):
        queue = asyncio.Queue()
        self.listeners.setdefault(chat, set()).add(queue)
        following = asyncio.create_task(self.follow(chat, queue, after))
        try:
            while True:
                event, data = await queue.get()
                number = f"id: {data['number']}\n" if event == "message" else ""
                yield f"event: {event}\n{number}data: {json.dumps(data, default=str)}\n\n"
        finally:
            self.listeners[chat].discard(queue)
            following.cancel()

    async def page(self, request):
        return HTMLResponse(PAGE)


def application(address):
    routes = []
    app = Starlette(routes=routes)

    @contextlib.asynccontextmanager
    async def lifespan(_):
        async with savegame.open_async(address) as vault:
            service = Service(vault)
            app.router.routes += [
                Route("/", service.page),
                Route("/chats/{chat}/messages", service.send, methods=["POST"]),
                Route("/chats/{chat}/stop", service.stop, methods=["POST"]),
                Route("/chats/{chat}/events", service.events),
            ]
            supervisor = asyncio.create_task(vault.supervise(service.resume, poll=timedelta(seconds=1)))
            yield
            supervisor.cancel()
            await asyncio.gather(supervisor, *service.working, return_exceptions=True)

    app.router.lifespan_context = lifespan
    return app


PAGE = """<!doctype html><meta charset="utf-8"><title>Chat</title>
<style>
body {font: 16px system-ui; max-width: 40em; margin: 2em auto; padding: 0 1em}
.user {text-align: right; color: #06c} #piece {color: #888}
</style>
<div id="log"></div><div id="piece"></div>
<form>
<input id="text" size="40" autofocus> <button>Send</button> <button type="button" id="stop">Stop</button>
<small id="status"></small>
</form>
<script>
const chat = location.hash.slice(1) || (location.hash = crypto.randomUUID()), base = "chats/" + encodeURIComponent(chat);
const log = document.getElementById("log"), piece = document.getElementById("piece"), text = document.getElementById("text");
const events = new EventSource(base + "/events");
events.addEventListener("piece", event => piece.textContent += JSON.parse(event.data));
events.addEventListener("status", event => document.getElementById("status").textContent = JSON.parse(event.data));
events.addEventListener("message", event => {
  const message = JSON.parse(event.data), line = document.createElement("p");
  line.className = message.role;
  line.textContent = typeof message.content === "string" ? message.content : JSON.stringify(message.content);
  log.append(line);
  piece.textContent = "";
});
const post = (path, body) => fetch(base + path, {method: "POST", body: JSON.stringify(body)});
document.forms[0].onsubmit = event => {
  event.preventDefault();
  post("/messages", {text: text.value, key: crypto.randomUUID()});
  text.value = "";
};
document.getElementById("stop").onclick = () => post("/stop", {});
</script>"""


# -- a scene ---------------------------------------------------------------------------------------


class Browser:
    """Talks to one worker as the page does."""

    def __init__(self, port):
        self.port = port

    @contextlib.contextmanager
    def request(self, *request):
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)) as connection:
            connection.request(*request)
            yield connection.getresponse()

    def post(self, path, **body):
        with self.request("POST", path, json.dumps(body)) as response:
            return json.loads(response.read())

    @contextlib.contextmanager
    def events(self, chat):
        """The server-sent events of a chat, from its first message on."""
        with self.request("GET", f"/chats/{chat}/events") as response:
            lines = (line.decode().rstrip().partition(": ") for line in response)
            fields = ((name, value) for name, _, value in lines if name in ("event", "data"))
            yield ((event, json.loads(data)) for (_, event), (_, data) in zip(fields, fields, strict=False))


def started(vault):
    """A worker in a process of its own, and a browser that talks to it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, __file__, "serve", "--vault", vault, "--port", str(port)]
    worker = subprocess.Popen(command)  # noqa: S603 - this file
    for _ in range(300):
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            break
        time.sleep(0.1)
    return worker, Browser(port)


def play(vault):
    chat = f"chat-{uuid.uuid4()}"
    (first, one), (second, other) = started(vault), started(vault)

    def send(browser, text, key):
        return browser.post(f"/chats/{chat}/messages", text=text, key=key)["new"]

    try:
        print("sent twice, new:", [send(one, "Where is my order 1017 ?", "click-1") for _ in range(2)])
        with one.events(chat) as events:
            words = (data for event, data in events if event == "piece")
            print("the first worker writes:", next(words), next(words))
        send(other, "Are you there?", "click-2")
        first.kill()
        print("the first worker is killed in the middle of its reply; the second one carries on:")
        with other.events(chat) as events:
            for event, data in events:
                if event == "message":
                    print(f"  {data['role']}: {data['content']}")
                if event == "status" and data == "completed":
                    break
            send(other, "Tell me a long story.", "click-3")
            next(data for event, data in events if event == "piece")
            print("stop pressed:", other.post(f"/chats/{chat}/stop"))
            print("the chat is", next(data for event, data in events if event == "status" and data.startswith("halted")))
    finally:
        for worker in (first, second):
            worker.kill()
            worker.wait()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("part", nargs="?", choices=["serve"])
    parser.add_argument("--vault", default="chats.db")
    parser.add_argument("--port", type=int, default=8000)
    given = parser.parse_args()
    if given.part == "serve":
        uvicorn.run(application(given.vault), port=given.port, log_level="warning")
    else:
        play(given.vault)


if __name__ == "__main__":
    main()
