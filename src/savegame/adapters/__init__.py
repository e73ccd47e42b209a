"""Storage for other frameworks: one module each. Needs the extra of the same name."""
