"""Posteriors by their parameters' names, and walks over anchors."""
