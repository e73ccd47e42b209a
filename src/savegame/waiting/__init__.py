"""Retries after a conflict, worker threads for asynchronous callers, and refusing what cannot be awaited."""
