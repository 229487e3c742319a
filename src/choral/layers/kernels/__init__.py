"""Kernels: other ways to run the same layers, faster or without a bug of a library."""
