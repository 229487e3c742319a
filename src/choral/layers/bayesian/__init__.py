"""Layers with random weights or dropout in every pass."""
