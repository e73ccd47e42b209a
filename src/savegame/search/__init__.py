"""Full-text search over messages."""
