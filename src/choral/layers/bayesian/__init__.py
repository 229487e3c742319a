"""Layers that draw their weights, or what they drop, in every pass."""
