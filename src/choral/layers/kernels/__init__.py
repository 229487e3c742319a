"""Kernels: other ways to run the same layers, faster or without a fault of a library; each says what it gains."""
