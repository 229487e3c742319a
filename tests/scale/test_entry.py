"""What `fit` takes reaches the processes that train its leaves."""

import inspect

import choral
from choral.scale.entry import OPTIONS

HERE = {  # of the call that puts a run together, not of its members
    "build", "data", "recipe", "run_dir", "listener", "progress", "overwrite", "extend", "process_wide", "time_limit", "data_parallel",
    "cluster",
}  # fmt: skip


def test_every_argument_of_fit_that_decides_members_is_one_of_leaves_too():
    taken = inspect.signature(choral.fit).parameters
    assert set(taken) - HERE == set(OPTIONS)
    assert {name: taken[name].default for name in OPTIONS} == OPTIONS
