"""How code waits: retries after a conflict, worker threads for asynchronous callers, refusing what cannot be awaited."""
