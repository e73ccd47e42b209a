"""Vaults from one place to another: copy, export, import."""
