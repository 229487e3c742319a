"""Scale-out: a run cut into leaves that any process can train, in any order, to the bytes of one process.

A fork's branches do not know of each other, and every draw follows from the place in the plan. So a run is a tree of leaves: what
comes before a fork, and each stack of its branches. `leaves` cuts, `leaf` trains one with the engine's own checkpoints, members and
log, `storage` copies files from and to a URL, `run` trains all leaves and puts the run together, `ray` trains them on a cluster.
"""
