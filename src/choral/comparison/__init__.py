"""Comparisons of methods on the same rows, and the evaluation of one ensemble."""
