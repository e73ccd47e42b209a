"""A LangGraph chat that remembers, asks a person and travels in time: python langgraph_chat.py. Run it twice: it continues.

It stores everything in chats.db in the current directory. The model is a script; put your own call in its place.
Needs `pip install "savegame[langgraph]" langgraph`.
"""

from typing import Annotated, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt

import savegame
from savegame.adapters.langgraph import SavegameSaver


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def model(state):
    """A scripted model: it counts the messages, and asks a person before a refund."""
    said = [message.content for message in state["messages"] if isinstance(message, HumanMessage)]
    if "refund" in said[-1]:
        answer = interrupt("May I refund 49.00?")
        return {"messages": [AIMessage("I sent 49.00 back." if answer == "yes" else "I may not do that.")]}
    return {"messages": [AIMessage(f"You said {len(said)} things, the first was: {said[0]}")]}


def main():
    builder = StateGraph(State)
    builder.add_node("model", model)
    builder.add_edge(START, "model")
    builder.add_edge("model", END)
    config = {"configurable": {"thread_id": "support-42"}}
    with savegame.open("chats.db") as vault:
        graph = builder.compile(checkpointer=SavegameSaver(vault))
        print("found", len(graph.get_state(config).values.get("messages", [])), "messages")

        graph.invoke({"messages": [HumanMessage("My parcel 1017 never came.")]}, config, durability="sync")
        stopped = graph.invoke({"messages": [HumanMessage("I want a refund.")]}, config, durability="sync")
        print("it asks:", stopped["__interrupt__"][0].value)

        asked = graph.get_state(config).config  # a point to come back to
        print("yes:", graph.invoke(Command(resume="yes"), config)["messages"][-1].content)
        branch = graph.update_state(asked, {"messages": []}, as_node=START)  # go back to before the question
        graph.invoke(None, branch)  # it asks again
        print("and if not:", graph.invoke(Command(resume="no"), config)["messages"][-1].content)

        thread = vault.thread("support-42")  # the same thread, without LangGraph
        last = thread.state()["channel_values"]["messages"][-1]
        print("in the vault:", len(list(thread.history(branches=True))), "checkpoints, the last ends with:", last["content"])


if __name__ == "__main__":
    main()
