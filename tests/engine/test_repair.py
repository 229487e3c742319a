"""Lost, damaged and foreign files in a run folder: what can be made again is, to the same bytes; the rest is refused."""

import json
import shutil

import pytest
import torch
from torch import nn

import choral
from choral import models
from choral.base.errors import DivergedError, RunError
from choral.fit import fit, train
from choral.plan import Collect, Constant, Recalibrate, Reset, Train, fork, repeat, seq
from choral.plan.optimizers import SGD
from choral.recipes import make
from choral.recipes.recipe import Recipe
from choral.recipes.training import Training
from choral.tables.table import Table

G = torch.Generator().manual_seed(0)
X, Y = torch.randn(48, 3, 6, 6, generator=G), torch.randint(0, 2, (48,), generator=G)
QUICK = Training(optimizer=SGD(nesterov=True), lr=0.05, batch_size=16)


def build():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 2)
    )


class Stop(Exception):
    pass


def stopping(epochs):
    def listen(event):
        if event["kind"] == "epoch" and event["counted"]["epochs"] >= epochs:
            raise Stop

    return listen


def member_bytes(folder):
    return {p.name: p.read_bytes() for p in sorted((folder / "members").iterdir())}


def flip(path, place=0.5):
    data = bytearray(path.read_bytes())
    data[int(len(data) * place)] ^= 0x10
    path.write_bytes(bytes(data))


TREE = Recipe(
    name="tree",
    plan=seq(
        Reset(),
        Train(epochs=1, schedule=Constant(0.05), batch_size=16),
        fork(
            3,
            Train(epochs=1, schedule=Constant(0.05), batch_size=16),
            fork(2, Train(epochs=1, batch_size=16), Collect()),
        ),
        repeat(2, Train(epochs=1, batch_size=16), Recalibrate(), Collect()),
    ),
)
RECIPES = {
    "deep_ensemble": make("deep_ensemble", budget=6, members=3, training=QUICK),
    "snapshot": make("snapshot", budget=6, members=3, training=QUICK),
    "prune_and_tune": make("prune_and_tune", budget=8, members=4, training=QUICK),
    "tree": TREE,
}


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
@pytest.mark.parametrize("name", RECIPES)
def test_lost_damaged_and_swapped_members_of_a_finished_run_are_trained_again_to_the_same_bytes(
    name, executor, tmp_path
):
    call = {"run_dir": tmp_path / "run", "compute": choral.Compute(executor=executor)}
    whole = fit(build, (X, Y), RECIPES[name], **call)
    before, outputs = member_bytes(tmp_path / "run"), whole.outputs(X)
    results = (tmp_path / "run" / "results.json").read_bytes()
    files = sorted((tmp_path / "run" / "members").iterdir())
    for number in range(0, len(files), 2):
        for damage in ("gone", "cut", "bit"):
            if damage == "gone":
                files[number].unlink()
            elif damage == "cut":
                files[number].write_bytes(files[number].read_bytes()[:200])
            else:
                flip(files[number], 0.9)
            events = []
            again = fit(build, (X, Y), RECIPES[name], **call, callbacks=events.append)
            assert [e["kind"] for e in events] == ["warning"]
            assert f"member {number} is lost" in events[0]["message"]
            assert member_bytes(tmp_path / "run") == before
            assert torch.equal(again.outputs(X), outputs)
    files[0].rename(files[0].with_suffix(".aside"))
    files[1].rename(files[0])
    files[0].with_suffix(".aside").rename(files[1])
    with pytest.raises(RunError, match="holds member 1 of run"):
        choral.load(tmp_path / "run", build=build)
    fit(build, (X, Y), RECIPES[name], **call)
    assert member_bytes(tmp_path / "run") == before
    assert (tmp_path / "run" / "results.json").read_bytes() == results


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
@pytest.mark.parametrize("name", ["deep_ensemble", "tree", "snapshot"])
def test_a_member_lost_while_a_run_is_interrupted_does_not_end_it(name, executor, tmp_path):
    fit(build, (X, Y), RECIPES[name], run_dir=tmp_path / "whole", compute=choral.Compute(executor=executor))
    call = {"run_dir": tmp_path / "run", "compute": choral.Compute(executor=executor, checkpoint_seconds=0)}
    with pytest.raises(Stop):
        fit(build, (X, Y), RECIPES[name], **call, callbacks=stopping(RECIPES[name].epochs - 1))
    files = sorted((tmp_path / "run" / "members").glob("*"))
    for file in files[:1]:
        file.unlink()
    for file in files[1:2]:
        flip(file)
    fit(build, (X, Y), RECIPES[name], **call)
    assert member_bytes(tmp_path / "run") == member_bytes(tmp_path / "whole")
    counted = [json.loads((tmp_path / d / "results.json").read_text())["counted"] for d in ("whole", "run")]
    assert counted[0]["steps"] == counted[1]["steps"]


@pytest.mark.parametrize("damage", ["gone", "broken", "changed"])
def test_results_are_made_again(damage, tmp_path):
    fit(build, (X, Y), RECIPES["deep_ensemble"], run_dir=tmp_path)
    path = tmp_path / "results.json"
    held = json.loads(path.read_text())
    if damage == "gone":
        path.unlink()
    elif damage == "broken":
        path.write_text("{")
    else:
        path.write_text(json.dumps(held | {"parameters": 7}))
    if damage != "gone":
        with pytest.warns(UserWarning, match="without its costs"):
            choral.load(tmp_path, build=build)
    events = []
    fit(build, (X, Y), RECIPES["deep_ensemble"], run_dir=tmp_path, callbacks=events.append)
    assert not [e for e in events if e["kind"] == "epoch"]
    again = json.loads(path.read_text())
    assert {k: again[k] for k in ("counted", "parameters", "predict_flops")} == {
        k: held[k] for k in ("counted", "parameters", "predict_flops")
    }


def test_a_second_kill_after_a_damaged_checkpoint_loses_nothing_and_the_warning_stays(tmp_path):
    recipe = make("single", budget=20, training=QUICK)
    fit(build, (X, Y), recipe, run_dir=tmp_path / "whole")
    call = {"run_dir": tmp_path / "run", "compute": choral.Compute(checkpoint_seconds=0)}
    with pytest.raises(Stop):
        fit(build, (X, Y), recipe, **call, callbacks=stopping(15))
    folder = tmp_path / "run" / "checkpoints"
    newest = max(folder.glob("checkpoint-*"), key=lambda p: int(p.stem.split("-")[1]))
    flip(newest)
    shutil.copy(newest, folder / "checkpoint-7 (conflicted copy).safetensors")
    (folder / "notes.safetensors").write_bytes(b"somebody's")
    with pytest.raises(Stop):  # killed again after one epoch, which has a checkpoint of the damaged one's name
        fit(build, (X, Y), recipe, **call, callbacks=stopping(15))
    events = []
    fit(build, (X, Y), recipe, **call, callbacks=events.append)
    resumed = [e for e in events if e["kind"] == "resumed"]
    assert resumed
    assert resumed[0]["counted"]["epochs"] >= 13
    log = (tmp_path / "run" / "log.jsonl").read_text()
    assert "Going back to the checkpoint before" in log
    assert member_bytes(tmp_path / "run") == member_bytes(tmp_path / "whole")
    assert sorted(p.name for p in folder.iterdir()) == [
        "checkpoint-7 (conflicted copy).safetensors",
        "notes.safetensors",
    ]


def test_what_a_killed_writer_left_aside_is_swept_away(tmp_path):
    fit(build, (X, Y), RECIPES["snapshot"], run_dir=tmp_path)
    (tmp_path / "members" / ".00000.safetensors.0123456789abcdef.part").write_bytes(b"half")
    fit(build, (X, Y), RECIPES["snapshot"], run_dir=tmp_path)
    assert sorted(p.name for p in (tmp_path / "members").iterdir()) == [f"0000{i}.safetensors" for i in range(3)]


class Fragile(nn.Module):
    def __init__(self):
        super().__init__()
        self.flat, self.line = nn.Flatten(), nn.Linear(108, 2)
        self.bad = nn.Parameter(torch.tensor(float("nan")) if torch.rand(()) < 0.5 else torch.tensor(1.0))

    def forward(self, x):
        return self.line(self.flat(x)) * self.bad


def test_after_a_diverged_branch_the_kept_members_are_loaded_as_the_error_says(tmp_path):
    recipe = Recipe(name="r", plan=fork(6, Reset(), Train(epochs=2, batch_size=16), Collect()))
    for _ in range(2):  # the same call says the same again
        with pytest.raises(DivergedError, match=r"partial=True\) gives them.* another folder") as caught:
            fit(Fragile, (X, Y), recipe, run_dir=tmp_path / "run")
    kept = len(member_bytes(tmp_path / "run"))
    assert f"{kept} of 6 members were kept" in str(caught.value)
    with pytest.raises(RunError, match=r"choral.load\(path, partial=True\) loads the others"):
        choral.load(tmp_path / "run", build=Fragile)
    with pytest.warns(UserWarning, match=rf"{6 - kept} of 6 networks are missing \(numbers"):
        ensemble = choral.load(tmp_path / "run", build=Fragile, partial=True)
    assert ensemble.members == kept
    assert torch.isfinite(ensemble.outputs(X)).all()
    ensemble.save(tmp_path / "kept.choral")
    assert torch.equal(choral.load(tmp_path / "kept.choral", build=Fragile).outputs(X), ensemble.outputs(X))


def test_members_without_their_plan_and_another_table_are_refused(tmp_path):
    table = Table(reason="two")
    recipe = make("single", budget=2, training=QUICK)

    def regression():
        return models.mlp(4, 2)

    data = (X.flatten(1)[:, :4], X[:, 0, 0, 0])
    train(regression, data, recipe, run_dir=tmp_path, table=table)
    held = choral.load(tmp_path).predict(data[0]).mean
    for other in (None, Table(reason="three")):
        with pytest.raises(RunError, match="its table's columns were read otherwise"):
            train(regression, data, recipe, run_dir=tmp_path, table=other)
    train(regression, data, recipe, run_dir=tmp_path, table=table)
    assert torch.equal(choral.load(tmp_path).predict(data[0]).mean, held)
    (tmp_path / "plan.json").unlink()
    for seed in (0, 1):
        with pytest.raises(RunError, match=r"holds .* but no plan\.json"):
            train(regression, data, recipe, run_dir=tmp_path, table=table, seed=seed)
    with pytest.raises(RunError, match=r"no plan\.json"):
        choral.load(tmp_path)
    for text in ("{}", "[1]", "{", '{"identity": {}}', "[" * 100_000):
        (tmp_path / "plan.json").write_text(text)
        with pytest.raises(RunError, match=r"plan\.json"):
            choral.load(tmp_path)
        with pytest.raises(RunError, match=r"plan\.json"):
            train(regression, data, recipe, run_dir=tmp_path, table=table)


@pytest.mark.parametrize("how", ["whole", "leaves"])
def test_costs_are_made_again_from_the_log_with_what_stopped(how, tmp_path):
    recipe = make("deep_ensemble", budget=16, members=2, training=QUICK)
    options = {"validation": 0.25, "early_stopping": choral.EarlyStopping(patience=1), "run_dir": tmp_path}
    if how == "leaves":
        choral.prepare(build, (X, Y), recipe, **options)
    before = fit(build, (X, Y), recipe, **options).info
    assert before["stopped"]
    (tmp_path / "results.json").unlink()
    after = fit(build, (X, Y), recipe, **options).info
    assert {n: v for n, v in after.items() if n != "seconds"} == {n: v for n, v in before.items() if n != "seconds"}
