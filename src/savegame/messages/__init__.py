"""Agents, conversations and messages: what they are, how a thread keeps them, how any framework's are read."""
