"""Several tools at once: python research_agent.py. Results are saved in the model's order, not in order of completion.

The model and the sources are scripts; put your own calls in their place. Everything is kept in memory, or in another vault
(--vault), which a second start continues from.
"""

import argparse
import time
from datetime import timedelta

import savegame

tools = savegame.Toolbox()
SOURCES = {"archive": 0.3, "library": 0.2, "newspaper": 0.1}


@tools.tool(read_only=True, timeout=timedelta(seconds=20), retries=1)
def look_up(call, source: str, topic: str):
    """Look a topic up in one source."""
    time.sleep(SOURCES[source])
    print(f"  {source} is ready")
    return f"what the {source} says about {topic}"


def model(messages):
    """One reply that queries three sources, then the report."""
    results = [message["content"] for message in messages if message["role"] == "tool"]
    if results:
        return f"Report of {len(results)} sources: {'; '.join(results)}."
    calls = [{"id": name, "name": "look_up", "arguments": {"source": name, "topic": "tides"}} for name in SOURCES]
    return {"role": "assistant", "content": "I look in three places.", "tool_calls": calls}


def count(reply):
    """Tokens and cost of a reply; a provider reports them with it."""
    return len(str(reply)), 0.0001


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--vault", default="memory:")
    with savegame.open(parser.parse_args().vault) as vault:
        with vault.run("research-1", agent="researcher", tools=tools) as run:
            plan = run.step("plan", lambda: {"topic": "tides", "sources": list(SOURCES)})  # done once, even after a resume
            run.user(f"Write about {plan['topic']}.", key="request-1")
            while not run.done:
                run.tools(at_once=True)
                run.model(model, usage=count)
            print(run.reply)
        last = vault.thread("research-1").latest()
        print("steps:", last.step, "status:", last.status, "tokens of the report:", last.tokens_used)


if __name__ == "__main__":
    main()
