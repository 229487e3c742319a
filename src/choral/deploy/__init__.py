"""Deployment: an ensemble as one file that any machine can run, and a server for it."""

ABOUT = "choral.json"
"""Where an exported file describes itself: a file in a .pt2, and under the same key the metadata of an .onnx."""
