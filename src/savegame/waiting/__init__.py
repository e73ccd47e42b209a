"""Helpers that any room may use: retries, worker threads, undoing half a step, forks, refusing what cannot be awaited."""
