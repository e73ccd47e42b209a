"""A chat service on several workers: python chat_service.py [--vault FILE] [--port PORT]. Start it again with another port.

All processes share one vault. Each of them takes messages, streams replies to browsers and works on any chat; a lease per
chat ensures that one does at a time. Messages are accepted while an agent works, a button stops it, and what a killed process
left behind is carried on by another. Everything is stored in chats.db in the current directory, or in another vault
(--vault; PostgreSQL for workers on several machines). The model is a script.
"""

import argparse
import asyncio
import contextlib
import json
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
    """Put your own call here: it yields text as it comes, and a message with tool calls if there are any."""
    asked, last = messages[-1]["content"], messages[-1]
    numbers = [word.strip(".,!?") for word in str(asked).split() if word.strip(".,!?").isdecimal()]
    if last["role"] == "user" and numbers:
        call = {"id": f"find-{len(messages)}", "name": "find_order", "arguments": {"order": int(numbers[0])}}
        yield {"role": "assistant", "content": "Let me look.", "tool_calls": [call]}
        return
    answer = f"Order {asked['order']} is {asked['state']}." if last["role"] == "tool" else f"You said: {asked}"
    for word in f"{answer} What else can I do for you?".split(" "):
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
        except (savegame.Stopped, savegame.Paused, savegame.Unknown) as waits:
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
        messages = point.state["messages"]
        for number in range(after, len(messages)):
            queue.put_nowait(("message", {"number": number, **messages[number]}))
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
<style>body{font:16px system-ui;max-width:40em;margin:2em auto;padding:0 1em} .user{text-align:right;color:#06c} #piece{color:#888}</style>
<div id="log"></div><div id="piece"></div>
<form><input id="text" size="40" autofocus> <button>Send</button> <button type="button" id="stop">Stop</button></form>
<script>
const chat = location.hash.slice(1) || (location.hash = crypto.randomUUID()), base = "chats/" + encodeURIComponent(chat);
const log = document.getElementById("log"), piece = document.getElementById("piece"), text = document.getElementById("text");
const events = new EventSource(base + "/events");
events.addEventListener("piece", event => piece.textContent += JSON.parse(event.data));
events.addEventListener("status", event => piece.textContent = JSON.parse(event.data));
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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--vault", default="chats.db")
    parser.add_argument("--port", type=int, default=8000)
    given = parser.parse_args()
    uvicorn.run(application(given.vault), port=given.port, log_level="warning")


if __name__ == "__main__":
    main()
