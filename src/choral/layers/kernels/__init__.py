"""Faster ways to run the same layers; each says what it gains."""
