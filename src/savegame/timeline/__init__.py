"""One thread over a store: saving, loading, walking, removing, checking, and what lies beside it."""
