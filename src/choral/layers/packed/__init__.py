"""Packed networks: narrower members side by side."""
