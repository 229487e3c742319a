"""A run in leaves gives the members of one process, byte for byte, in whatever order and however often leaves are trained."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

import choral
from choral.cluster import leaf
from choral.plan import Adam, Constant
from choral.recipes import make
from choral.recipes.training import Training

G = torch.Generator().manual_seed(0)
X = torch.randn(48, 3, 8, 8, generator=G)
Y = torch.randint(3, (48,), generator=G)
QUICK = Training(lr=0.01, optimizer=Adam(), batch_size=16)
OPTIONS = {"compute": choral.Compute(threads=1, checkpoint_seconds=0.0)}


def build():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(36, 3)
    )


def files(folder):
    return {p.name: p.read_bytes() for p in sorted((folder / "members").iterdir())}


def counted(folder):
    found = json.loads((folder / "results.json").read_text())["counted"]
    return {n: v for n, v in found.items() if not n.endswith("seconds")}


def train(folder, recipe, order=lambda paths: paths, **options):
    """Train leaves as they become ready, in an order."""
    while True:
        ready = [row["path"] for row in choral.leaves(folder) if row["state"] in ("ready", "begun")]
        if not ready:
            return
        for path in order(ready):
            choral.run_leaf(folder, path, build, (X, Y), recipe, **options)


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("deep_ensemble", {}),
        ("prune_and_tune", {}),
        ("sequential_anchored", {"chains": 2}),
        ("sebays_freeze", {"branches": 2}),
        ("edst", {}),
    ],
)
def test_leaves_in_any_order_give_the_bytes_and_counts_of_one_process(method, more, tmp_path):
    recipe = make(method, budget=12, members=4, training=QUICK, **more)
    options = OPTIONS | {"compute": replace(OPTIONS["compute"], executor="sequential")}
    choral.fit(build, (X, Y), recipe, run_dir=tmp_path / "whole", **options)
    choral.prepare(build, (X, Y), recipe, run_dir=tmp_path / "cut", **options)
    train(tmp_path / "cut", recipe, lambda paths: paths[::-1], **options)
    ensemble = choral.fit(build, (X, Y), recipe, run_dir=tmp_path / "cut", **options)
    assert files(tmp_path / "cut") == files(tmp_path / "whole")
    assert counted(tmp_path / "cut") == counted(tmp_path / "whole")
    whole = choral.load(tmp_path / "whole", build)
    assert torch.equal(ensemble.predict(X).probs, whole.predict(X).probs)


def test_forks_in_forks_and_training_behind_a_fork_are_cut_and_put_together(tmp_path):
    step = choral.Train(epochs=1, batch_size=16)
    inner = choral.fork(2, step, choral.Collect())
    plan = choral.seq(
        choral.Reset(),
        step,
        choral.fork(2, step, inner, step, choral.Collect()),
        choral.repeat(2, step, choral.fork(2, step, choral.Collect())),
        choral.Collect(),
    )
    recipe = choral.Recipe(name="nested", plan=plan)
    options = OPTIONS | {"compute": replace(OPTIONS["compute"], executor="sequential")}
    choral.fit(build, (X, Y), recipe, run_dir=tmp_path / "whole", **options)
    rows = choral.prepare(build, (X, Y), recipe, run_dir=tmp_path / "cut", **options)
    assert {row["path"]: row["after"] for row in rows} == {
        "start": None,
        "2/f0": "start", "2/f0/1/f0": "2/f0", "2/f0/1/f1": "2/f0", "2/f0@1": "2/f0",
        "2/f1": "start", "2/f1/1/f0": "2/f1", "2/f1/1/f1": "2/f1", "2/f1@1": "2/f1",
        "start@1": "start", "3/r0/1/f0": "start@1", "3/r0/1/f1": "start@1",
        "start@2": "start@1", "3/r1/1/f0": "start@2", "3/r1/1/f1": "start@2", "start@3": "start@2",
    }  # fmt: skip
    assert sorted(n for row in rows for n in row["members"]) == list(range(11))
    train(tmp_path / "cut", recipe, lambda paths: paths[::-1], **options)
    choral.fit(build, (X, Y), recipe, run_dir=tmp_path / "cut", **options)
    assert files(tmp_path / "cut") == files(tmp_path / "whole")
    assert counted(tmp_path / "cut") == counted(tmp_path / "whole")


def test_stacks_are_settled_once_and_give_the_bytes_of_the_vectorized_run(tmp_path):
    recipe = make("deep_ensemble", budget=12, members=4, training=QUICK)
    options = OPTIONS | {"compute": replace(OPTIONS["compute"], executor="vectorized")}
    choral.fit(build, (X, Y), recipe, run_dir=tmp_path / "whole", **options)
    one = choral.prepare(build, (X, Y), recipe, run_dir=tmp_path / "one", **options)
    assert [row["path"] for row in one] == ["f0+3"]
    train(tmp_path / "one", recipe, **options)
    assert files(tmp_path / "one") == files(tmp_path / "whole")
    two = choral.prepare(build, (X, Y), recipe, run_dir=tmp_path / "two", stack=2, **options)
    assert [row["path"] for row in two] == ["f0+1", "f2+1"]
    train(tmp_path / "two", recipe, lambda paths: paths[::-1], **options)
    choral.prepare(build, (X, Y), recipe, run_dir=tmp_path / "again", stack=2, **options)
    choral.fit(build, (X, Y), recipe, run_dir=tmp_path / "again", **options)
    assert files(tmp_path / "two") == files(tmp_path / "again")
    held = choral.prepare(build, (X, Y), recipe, run_dir=tmp_path / "two", stack=4, **options)  # stays as it was cut
    assert [(row["path"], row["state"]) for row in held] == [("f0+1", "done"), ("f2+1", "done")]


@pytest.mark.slow
@pytest.mark.parametrize("by", ["member", "ensemble"])
def test_early_stopping_is_that_of_one_process(by, tmp_path):
    recipe = make("deep_ensemble", budget=40, members=4, training=QUICK)
    stop = choral.EarlyStopping(patience=2, by=by)
    options = OPTIONS | {
        "compute": replace(OPTIONS["compute"], executor="sequential"),
        "validation": 0.25,
        "early_stopping": stop,
    }
    whole = choral.fit(build, (X, Y), recipe, run_dir=tmp_path / "whole", **options)
    rows = choral.prepare(build, (X, Y), recipe, run_dir=tmp_path / "cut", **options)
    assert len(rows) == (4 if by == "member" else 1)
    train(tmp_path / "cut", recipe, **options)
    ensemble = choral.fit(build, (X, Y), recipe, run_dir=tmp_path / "cut", **options)
    assert files(tmp_path / "cut") == files(tmp_path / "whole")
    assert ensemble.info["stopped"] == whole.info["stopped"]


@pytest.fixture
def cut(tmp_path):
    """A run of four leaves, and the members that one process gives."""
    recipe = make("deep_ensemble", budget=12, members=4, training=QUICK)
    options = OPTIONS | {"compute": replace(OPTIONS["compute"], executor="sequential")}
    choral.fit(build, (X, Y), recipe, run_dir=tmp_path / "whole", **options)
    choral.prepare(build, (X, Y), recipe, run_dir=tmp_path / "cut", **options)
    return tmp_path / "cut", recipe, options, files(tmp_path / "whole")


def test_an_attempt_goes_on_from_the_checkpoint_that_came_furthest(cut):
    folder, recipe, options, whole = cut

    class Stop(Exception):
        pass

    def stopping(after):
        def hear(event):
            if event["kind"] == "epoch":
                epochs.append(event["epoch"])
                if event["epoch"] == after:
                    raise Stop

        return hear

    for after, expected in [(2, [1, 2]), (3, [2, 3])]:
        epochs: list[int] = []
        with pytest.raises(Stop):
            choral.run_leaf(folder, "f2", build, (X, Y), recipe, callbacks=stopping(after), **options)
        assert epochs == expected
    assert [row["state"] for row in choral.leaves(folder)] == ["ready", "ready", "begun", "ready"]
    choral.run_leaf(folder, "f2", build, (X, Y), recipe, **options)
    done = choral.run_leaf(folder, "f2", build, (X, Y), recipe, callbacks=stopping(0), **options)
    assert list(done["members"]) == ["members/00002.safetensors"]
    assert files(folder) == {"00002.safetensors": whole["00002.safetensors"]}
    left = sorted(p.name.split(".")[-1] for p in (folder / "leaves" / "f2").rglob("*") if p.is_file())
    assert left == ["json", "jsonl"]  # the manifest and its events; checkpoints and events of other attempts are gone


def test_two_attempts_at_once_leave_the_bytes_of_one(cut, monkeypatch):
    folder, recipe, options, whole = cut

    def rival(event):
        if event["kind"] == "epoch" and event["epoch"] == 2:
            choral.run_leaf(folder, "f1", build, (X, Y), recipe, **options)

    choral.run_leaf(folder, "f1", build, (X, Y), recipe, callbacks=rival, **options)
    assert files(folder) == {"00001.safetensors": whole["00001.safetensors"]}
    assert choral.leaves(folder)[1]["state"] == "done"


def test_what_a_manifest_does_not_vouch_for_is_trained_again(cut):
    folder, recipe, options, whole = cut
    train(folder, recipe, **options)
    (folder / "members" / "00003.safetensors").write_bytes(whole["00003.safetensors"][:100])
    (folder / "members" / "00001.safetensors").unlink()
    (folder / "leaves" / "f0" / "manifest.json").write_text("{")
    heard = []
    choral.fit(build, (X, Y), recipe, run_dir=folder, callbacks=heard.append, **options)
    assert files(folder) == whole
    assert len([e for e in heard if e["kind"] == "epoch"]) == 3 * 3
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert [e["counted"]["epochs"] for e in log if e["kind"] == "epoch"] == list(range(1, 13))


def test_a_leaf_is_refused_with_other_data_or_before_the_one_it_goes_on_from(tmp_path):
    recipe = make("prune_and_tune", budget=9, members=2, training=QUICK)
    choral.prepare(
        build,
        (X, Y),
        recipe,
        run_dir=tmp_path,
        **OPTIONS | {"compute": replace(OPTIONS["compute"], executor="sequential")},
    )

    def run(path, data=(X, Y), **options):
        choral.run_leaf(
            tmp_path,
            path,
            build,
            data,
            recipe,
            **(OPTIONS | {"compute": replace(OPTIONS["compute"], executor="sequential")} | options),
        )

    with pytest.raises(choral.ChoralError, match=r"leaf '2/f1':.*'start',"):
        run("2/f1")
    with pytest.raises(choral.ChoralError, match="the training data was changed"):
        run("start", (X + 1, Y))
    with pytest.raises(choral.ChoralError, match="seed was 0, now 1"):
        run("start", seed=1)
    with pytest.raises(choral.ChoralError, match=r"no leaf '2/f7'.*Did you mean"):
        run("2/f7")
    with pytest.raises(choral.ChoralError, match="time_limit is 3, which a run in leaves does not support"):
        run("start", compute=choral.Compute(time_limit=3))
    with pytest.raises(choral.ChoralError, match="holds no run"):
        choral.leaves(tmp_path / "elsewhere")


class Uneven(nn.Module):
    """Half of the networks built are so steep that their first update ends in infinity."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(192, 3)
        self.register_buffer("steep", torch.tensor(1e30 if torch.rand(()) < 0.5 else 1.0))

    def forward(self, x):
        y = self.line(x.flatten(1))
        return y + 1e8 * self.steep * (y - y.detach())


def test_a_branch_that_diverges_is_named_and_the_others_are_kept(tmp_path):
    fragile, step = (
        Uneven,
        choral.Train(epochs=1, batch_size=48, schedule=Constant(1e6), optimizer=choral.SGD(momentum=0.0)),
    )
    parent = choral.fork(6, choral.Reset(), step, choral.fork(2, choral.Collect()))
    recipe = choral.Recipe(name="nested", plan=parent)
    options = OPTIONS | {"compute": replace(OPTIONS["compute"], executor="sequential")}
    with pytest.raises(choral.ChoralError) as whole:
        choral.fit(fragile, (X, Y), recipe, run_dir=tmp_path / "whole", **options)
    choral.prepare(fragile, (X, Y), recipe, run_dir=tmp_path / "cut", **options)
    with pytest.raises(choral.ChoralError) as cut:
        choral.fit(fragile, (X, Y), recipe, run_dir=tmp_path / "cut", **options)
    assert str(cut.value) == str(whole.value).replace("whole", "cut")
    assert files(tmp_path / "cut") == files(tmp_path / "whole")
    assert 0 < len(files(tmp_path / "cut")) < 12
    assert "diverged" in {row["state"] for row in choral.leaves(tmp_path / "cut")}


def test_a_member_lost_behind_a_checkpoint_is_made_again(tmp_path):
    """A chain of members in one leaf: its checkpoint names those it has written, and goes back if one of them is gone."""
    recipe = make("snapshot", budget=6, members=3, training=QUICK)
    choral.fit(build, (X, Y), recipe, run_dir=tmp_path / "whole", **OPTIONS)
    choral.prepare(build, (X, Y), recipe, run_dir=tmp_path / "cut", **OPTIONS)

    def stop(event):
        if event["kind"] == "epoch" and event["counted"]["epochs"] == 5:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        choral.run_leaf(tmp_path / "cut", "start", build, (X, Y), recipe, callbacks=stop, **OPTIONS)
    assert len(files(tmp_path / "cut")) == 2
    (tmp_path / "cut" / "members" / "00000.safetensors").unlink()
    (tmp_path / "cut" / "members" / "00001.safetensors").write_bytes(b"half a file")
    choral.run_leaf(tmp_path / "cut", "start", build, (X, Y), recipe, **OPTIONS)
    assert files(tmp_path / "cut") == files(tmp_path / "whole")


@pytest.mark.parametrize("left", ["manifest.json", "state.safetensors"])
def test_a_leaf_that_was_killed_behind_its_last_checkpoint_hands_on_its_state(left, tmp_path, monkeypatch):
    recipe = make("prune_and_tune", budget=9, members=2, training=QUICK)
    choral.fit(build, (X, Y), recipe, run_dir=tmp_path / "whole", **OPTIONS)
    choral.prepare(build, (X, Y), recipe, run_dir=tmp_path / "cut", **OPTIONS)

    def killed(path, *args, **options):
        if path.name == left:
            raise InterruptedError
        return write(path, *args, **options)

    name = "write_json" if left.endswith("json") else "write_bytes"
    write = getattr(leaf, name)
    monkeypatch.setattr(leaf, name, killed)
    with pytest.raises(InterruptedError):
        choral.run_leaf(tmp_path / "cut", "start", build, (X, Y), recipe, **OPTIONS)
    monkeypatch.undo()
    train(tmp_path / "cut", recipe, **OPTIONS)
    assert files(tmp_path / "cut") == files(tmp_path / "whole")
