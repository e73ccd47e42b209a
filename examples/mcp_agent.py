"""An agent that saves and rewinds itself through MCP: python mcp_agent.py [STORE]. The model is a script, the rest is real."""

import asyncio
import sys
import tempfile
from pathlib import Path

from mcp import Client, StdioServerParameters


def said(role, content):
    return {"conversation_id": "trip", "append": [{"role": role, "content": content}]}


def scripted_model():
    """Call one tool after the other, as a model would; each yield returns the tool's answer."""
    yield "agent_save", {"agent_id": "planner", "name": "Planner", "agent_type": "script", "custom_state": {"spent": 0}}
    yield "conversation_save", {"agent_id": "planner", **said("user", "Lisbon for a weekend, please.")}
    safe = yield "checkpoint_create", {"agent_id": "planner", "name": "before booking", "kind": "pre_operation"}

    yield "agent_save", {"agent_id": "planner", "custom_state": {"spent": 38, "changes": 2}}
    first = yield "conversation_save", said("assistant", "Booked the cheap flight at 05:10, with two changes.")

    # Two changes of plane are too many for a weekend: restore the checkpoint, agent and conversation.
    yield "checkpoint_restore", {"checkpoint_id": safe["id"]}
    yield "agent_save", {"agent_id": "planner", "custom_state": {"spent": 74}}
    second = yield "conversation_save", said("assistant", "Booked the direct flight at noon.")

    # The first attempt still exists, as a branch.
    yield "checkpoint_label", {"thread_id": "trip", "checkpoint": first["head"], "label": "rejected"}
    yield "thread_diff", {"thread_id": "trip", "old": "rejected", "new": second["head"]}
    yield "agent_load", {"agent_id": "planner"}
    yield "conversation_load", {"conversation_id": "trip"}


async def run(model, store):
    """Let a model call tools until it is done; return the last answer of each tool."""
    server = StdioServerParameters(command=sys.executable, args=["-m", "savegame", "mcp", "--store", store])
    answers, answer = {}, None
    async with Client(server) as client:
        while True:
            try:
                tool, arguments = model.send(answer)
            except StopIteration:
                return answers
            result = await client.call_tool(tool, arguments)
            if result.is_error:  # a model would read this and try something else
                raise RuntimeError(result.content[0].text)
            answers[tool] = answer = result.structured_content
            print(f"{tool:20}{result.content[0].text[:90]}")


def main():
    with tempfile.TemporaryDirectory() as directory:
        store = sys.argv[1] if len(sys.argv) > 1 else str(Path(directory) / "agents.db")
        answers = asyncio.run(run(scripted_model(), store))
    print("\nIn the end the agent has spent", answers["agent_load"]["custom_state"]["spent"], "and said:")
    for message in answers["conversation_load"]["messages"]:
        print(f"  {message['role']}: {message['content']}")
    print("Difference from the attempt it took back:")
    for change in answers["thread_diff"]["changes"]:
        print(f"  {change['path']}: {change['old']} -> {change['new']}")


if __name__ == "__main__":
    main()
