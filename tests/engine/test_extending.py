"""A longer plan takes the members of a shorter one over, byte for byte."""

import pytest
import torch
from torch import nn

import choral
from choral.base.errors import RunError
from choral.engine.files import read_json
from choral.plan import Adam, Collect, Constant, Reset, Train, fork, repeat, seq
from choral.recipes import make
from choral.recipes.recipe import Recipe
from choral.recipes.training import Training

G = torch.Generator().manual_seed(0)
X = torch.randn(40, 3, generator=G)
Y = (X[:, 0] > 0).long()
QUICK = Training(lr=0.01, optimizer=Adam(), batch_size=16)


def build():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def nested(outer, inner):
    """Two forks, so that members get other numbers as either grows."""
    train = Train(epochs=1, batch_size=16, schedule=Constant(0.1))
    return Recipe(name="nested", plan=fork(outer, Reset(), train, fork(inner, train, Collect())))


def rounds(times):
    train = Train(epochs=2, batch_size=16, schedule=Constant(0.1), memory="carried")
    return Recipe(name="rounds", plan=seq(Reset(), repeat(times, train, Collect())))


PAIRS = {
    "fork": (make("deep_ensemble", budget=4, members=2, training=QUICK), make("deep_ensemble", budget=8, members=4, training=QUICK)),
    "repeat": (make("snapshot", budget=4, members=2, training=QUICK), make("snapshot", budget=8, members=4, training=QUICK)),
    "carried": (rounds(1), rounds(3)),
    "inner": (nested(2, 1), nested(2, 3)),
    "both": (nested(1, 2), nested(3, 3)),
}  # fmt: skip


def tensors(ensemble):
    return [
        torch.cat([t.double().flatten() for t in (*s.params.values(), *s.buffers.values())]) for s in ensemble.states()
    ]


@pytest.mark.parametrize("name", PAIRS)
def test_an_extended_run_is_the_longer_run(name, tmp_path):
    short, long = PAIRS[name]
    call = {"run_dir": tmp_path / "run", "compute": choral.Compute(executor="sequential")}
    choral.fit(build, (X, Y), short, **call)
    events = []
    found = choral.fit(build, (X, Y), long, **call, on_existing="extend", callbacks=events.append)
    whole = choral.fit(build, (X, Y), long, compute=choral.Compute(executor="sequential"))
    assert all(map(torch.equal, tensors(found), tensors(whole)))
    assert len(found) == long.members
    assert sum(e["kind"] == "collected" for e in events) == long.members - short.members
    assert read_json(tmp_path / "run" / "results.json")["networks"] == long.members
    again = choral.fit(build, (X, Y), long, **call)
    assert all(map(torch.equal, tensors(again), tensors(whole)))
    assert all(map(torch.equal, tensors(choral.load(tmp_path / "run", build=build)), tensors(whole)))
    with pytest.raises(RunError, match="holds another run"):
        choral.fit(build, (X, Y), short, **call)


def test_stacked_members_stay_as_they_are(tmp_path):
    short, long = PAIRS["fork"]
    call = {"run_dir": tmp_path, "compute": choral.Compute(executor="vectorized")}
    before = tensors(choral.fit(build, (X, Y), short, **call))
    found = choral.fit(build, (X, Y), long, **call, on_existing="extend")
    assert all(map(torch.equal, tensors(found)[:2], before))
    assert len(found) == 4
    assert found.info["counted"]["epochs"] >= 8


def test_an_extension_that_was_stopped_goes_on(tmp_path):
    class Stop(Exception):
        pass

    short, long = PAIRS["both"]
    call = {"run_dir": tmp_path, "compute": choral.Compute(executor="sequential", checkpoint_seconds=0)}
    choral.fit(build, (X, Y), short, **call)
    whole = tensors(choral.fit(build, (X, Y), long, compute=choral.Compute(executor="sequential")))
    for stop in (2, 5, 9):
        seen = []

        def listen(event, stop=stop, seen=seen):
            seen.append(event)
            if sum(e["kind"] in ("epoch", "collected") for e in seen) == stop:
                raise Stop

        with pytest.raises(Stop):
            choral.fit(build, (X, Y), long, **call, on_existing="extend", callbacks=listen)
    found = choral.fit(build, (X, Y), long, **call)
    assert all(map(torch.equal, tensors(found), whole))


def test_what_is_no_longer_version_is_refused_with_the_reason(tmp_path):
    short, long = PAIRS["fork"]
    choral.fit(build, (X, Y), short, run_dir=tmp_path, compute=choral.Compute(executor="sequential"))
    call = {"run_dir": tmp_path, "compute": choral.Compute(executor="sequential"), "on_existing": "extend"}
    for recipe, data, message in [
        (make("deep_ensemble", budget=8, members=2, training=QUICK), (X, Y), "rate is spread over the whole phase"),
        (make("deep_ensemble", budget=2, members=1, training=QUICK), (X, Y), "cannot be extended"),
        (long, (X + 1, Y), "training data was changed"),
        (make("snapshot", budget=8, members=4, training=QUICK), (X, Y), "cannot be extended"),
    ]:
        with pytest.raises(RunError, match=message):
            choral.fit(build, data, recipe, **call)
    choral.fit(build, (X, Y), short, **call)  # nothing to add
