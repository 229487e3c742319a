"""What `fit` takes reaches the processes that train its leaves."""

import inspect

import choral
from choral.engine.job import OPTIONS, Call

HERE = {  # of the call that puts a run together, not of its members
    "build", "data", "recipe", "run_dir", "callbacks", "progress", "on_existing", "device",
}  # fmt: skip


def test_every_argument_of_fit_that_decides_members_is_one_of_leaves_too():
    taken = inspect.signature(choral.fit).parameters
    assert set(taken) - HERE == set(OPTIONS) - {"table"}
    assert all(taken[name].default == Call.__dataclass_fields__[name].default for name in OPTIONS if name != "table")
