"""Distributed runs: a run is cut into leaves that any process can train, in any order, with bit-identical results.

Branches of a fork are independent, and every random draw follows from its place in the plan. So a run is a tree of leaves: the part
before a fork, and each stack of its branches. `leaf` trains one with the engine's checkpoints, members and log, `storage` copies files
from and to a URL, `run` trains all leaves and assembles the run, `ray` trains them on a cluster.
"""
