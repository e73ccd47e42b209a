"""Runs: what an agent's loop is made of when every step of it is durable."""
