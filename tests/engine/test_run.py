"""The engine: exactness of branches, resets, divergence, damaged checkpoints, refused folders."""

import json
import warnings

import pytest
import torch
from torch import nn

from choral import Compute, models
from choral.base.errors import DivergedError, InputError, PlanError, RunError
from choral.data import HorizontalFlip, Normalize, PadCrop
from choral.engine.blueprint import redraw
from choral.engine.files import write_json
from choral.fit import fit
from choral.plan import (
    SGD,
    Adam,
    Collect,
    Constant,
    Recalibrate,
    Reset,
    Start,
    Train,
    UpdateMoments,
    UseMean,
    every,
    fork,
    repeat,
    seq,
)
from choral.recipes import make
from choral.recipes.recipe import Recipe
from choral.recipes.training import Training

G = torch.Generator().manual_seed(0)
X = torch.randn(90, 4, generator=G)
Y = (X[:, 0] > 0).long()
QUICK = Training(lr=0.05, optimizer=SGD(), batch_size=16)


def build():
    return models.mlp(4, 2, hidden=(8,), norm="batch", dropout=0.1)


def params(ensemble):
    return [s.params for s in ensemble.states()]


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_branch_3_is_the_same_whether_4_or_40_are_asked_for(executor):
    def plan(branches):
        return Recipe(name="r", plan=fork(branches, Reset(), Train(epochs=2, batch_size=16), Collect()))

    few, many = (params(fit(build, (X, Y), plan(n), compute=Compute(executor=executor))) for n in (4, 40))
    for i in range(4):
        for n in few[i]:
            assert torch.allclose(few[i][n], many[i][n], atol=1e-6)
    if executor == "sequential":
        assert all(torch.equal(few[3][n], many[3][n]) for n in few[3])


def test_a_plain_loop_written_by_hand_gives_the_same_network():
    from choral.base import rng

    recipe = Recipe(name="r", plan=seq(Reset(), Train(epochs=3, batch_size=16, schedule=Constant(0.05)), Collect()))
    network = lambda: models.mlp(4, 2, hidden=(8,))  # noqa: E731  # a factory
    (found,) = params(fit(network, (X, Y), recipe, seed=5))
    with rng.seeded(5, 0, "build"):
        mine = network()
    optimizer = torch.optim.SGD(mine.parameters(), lr=0.05, momentum=0.9)
    key = rng.key(5, 1, "train")
    for epoch in range(3):
        order = torch.randperm(90, generator=rng.generator(key, "order", epoch))
        for start in range(0, 90, 16):
            index = order[start : start + 16]
            optimizer.zero_grad()
            nn.functional.cross_entropy(mine(X[index]), Y[index]).backward()
            optimizer.step()
    for name, p in mine.named_parameters():
        assert torch.allclose(found[name], p, atol=1e-6)


def test_repeat_goes_on_and_fork_starts_again():
    nothing = Train(epochs=0)
    once = Train(epochs=1, batch_size=16)
    line = params(fit(build, (X, Y), Recipe(name="r", plan=seq(Reset(), repeat(2, once, Collect())))))
    star = params(fit(build, (X, Y), Recipe(name="r", plan=seq(Reset(), fork(2, nothing, Collect()), Collect()))))
    assert all(torch.equal(star[0][n], star[i][n]) for i in (1, 2) for n in star[0])
    assert not torch.equal(line[0]["output.weight"], line[1]["output.weight"])


def test_reset_draws_every_parameter_afresh_also_those_no_reset_method_owns():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.line = nn.Linear(4, 2)
            self.own = nn.Parameter(torch.randn(64))

        def forward(self, x):
            return self.line(x) * self.own.mean()

    plan = seq(Reset(), Train(epochs=2), Collect(), Reset(), Collect())
    trained, again = params(fit(Odd, (X, Y), Recipe(name="r", plan=plan)))
    assert all(not torch.equal(trained[n], again[n]) for n in trained)
    given = Odd()
    before = {n: p.clone() for n, p in given.named_parameters()}
    redraw(given)
    assert all(not torch.equal(before[n], p) for n, p in given.named_parameters())
    assert sorted(given.own.tolist()) == sorted(before["own"].tolist())


def test_start_takes_the_given_weights_and_needs_a_network():
    given = build()
    recipe = Recipe(name="r", plan=seq(Start(), Collect()))
    (found,) = params(fit(given, (X, Y), recipe))
    assert all(torch.equal(found[n], p) for n, p in given.named_parameters())
    with pytest.raises(PlanError, match=r"hand over the trained nn\.Module"):
        fit(build, (X, Y), recipe)


def test_weight_averages_in_training_and_batchnorm_statistics_of_the_averaged_weights():
    train = Train(epochs=3, batch_size=16, every=(every(1, UpdateMoments(), unit="epochs"),))
    snapshots = Train(epochs=1, batch_size=16, memory="carried")
    recipe = Recipe(name="r", plan=seq(Reset(), train, UseMean(), Recalibrate(), Collect()))
    ensemble = fit(build, (X, Y), recipe)
    network = ensemble._network(0)
    norm = next(m for m in network.modules() if isinstance(m, nn.BatchNorm1d))
    hidden = nn.functional.linear(X, network.linear1.weight, network.linear1.bias)
    assert torch.allclose(norm.running_mean, hidden.mean(0), atol=1e-5)
    assert torch.allclose(norm.running_var, hidden.var(0), atol=1e-5)
    assert snapshots.memory == "carried"


def test_masked_weights_stay_exactly_zero_under_every_optimizer_and_executor():
    from dataclasses import dataclass

    from choral.plan import Operator

    @dataclass(frozen=True, kw_only=True)
    class HalfMask(Operator):
        def apply(self, state, context):
            masks = {
                "linear1.weight": torch.rand(state.params["linear1.weight"].shape, generator=context.generator("m"))
                < 0.5
            }
            return state.with_slots(mask=masks)

    for optimizer in (SGD(momentum=0.9, nesterov=True, weight_decay=0.1), Adam(weight_decay=0.1)):
        pre, post = (Train(epochs=2, batch_size=16, optimizer=optimizer, memory="carried") for _ in range(2))
        recipe = Recipe(name="r", plan=fork(3, Reset(), pre, HalfMask(), post, Collect()))
        both = [
            list(fit(build, (X, Y), recipe, compute=Compute(executor=e)).states()) for e in ("sequential", "vectorized")
        ]
        for one, many in zip(*both):
            mask = one.slots["mask"]["linear1.weight"]
            assert torch.equal(mask, many.slots["mask"]["linear1.weight"])
            for state in (one, many):
                assert (state.params["linear1.weight"][~mask] == 0).all()
                assert (state.params["linear1.weight"][mask] != 0).all()


def test_a_branch_that_diverges_is_named_and_the_rest_is_kept(tmp_path):
    class Fragile(nn.Module):
        def __init__(self):
            super().__init__()
            self.line = nn.Linear(4, 2)
            self.bad = nn.Parameter(torch.tensor(float("nan")) if torch.rand(()) < 0.5 else torch.tensor(1.0))

        def forward(self, x):
            return self.line(x) * self.bad

    recipe = Recipe(name="r", plan=fork(6, Reset(), Train(epochs=2, batch_size=16), Collect()))
    for executor in ("sequential", "vectorized"):
        folder = tmp_path / executor
        with pytest.raises(DivergedError, match=r"nan at f\d/1 in epoch 1.*of 6 members were kept") as caught:
            fit(Fragile, (X, Y), recipe, run_dir=folder, compute=Compute(executor=executor))
        kept = len(list((folder / "members").glob("*.safetensors")))
        assert 0 < kept < 6
        assert str(caught.value).count("the loss became") == 6 - kept


def test_a_changed_plan_seed_or_data_is_refused_with_both_values(tmp_path):
    fit(build, (X, Y), make("single", budget=2, training=QUICK), run_dir=tmp_path)
    with pytest.raises(RunError, match=r"seed was 0, now 1"):
        fit(build, (X, Y), make("single", budget=2, training=QUICK), run_dir=tmp_path, seed=1)
    with pytest.raises(RunError, match=r"epochs was 2, now 3"):
        fit(build, (X, Y), make("single", budget=3, training=QUICK), run_dir=tmp_path)
    with pytest.raises(RunError, match=r"the training data was changed"):
        fit(build, (X + 1, Y), make("single", budget=2, training=QUICK), run_dir=tmp_path)
    with pytest.raises(RunError, match=r"the network.s layer .*was .*, now "):
        fit(lambda: models.mlp(4, 2, hidden=(9,)), (X, Y), make("single", budget=2, training=QUICK), run_dir=tmp_path)


def test_a_finished_run_is_loaded_not_trained_again(tmp_path):
    recipe = make("snapshot", budget=4, members=2, training=QUICK)
    first = fit(build, (X, Y), recipe, run_dir=tmp_path)
    events = []
    again = fit(build, (X, Y), recipe, run_dir=tmp_path, callbacks=events.append)
    assert events == []
    assert torch.equal(first.outputs(X), again.outputs(X))
    assert not list((tmp_path / "checkpoints").glob("*"))


class Stop(Exception):
    pass


@pytest.mark.parametrize("damage", ["newest", "everything"])
def test_a_damaged_checkpoint_is_noticed_and_the_last_good_one_used(tmp_path, damage):
    recipe = make("deep_ensemble", budget=8, members=2, training=QUICK)
    whole = fit(build, (X, Y), recipe, compute=Compute(executor="sequential"))

    def stop(event):
        if event["kind"] == "epoch" and event["counted"]["epochs"] == 6:
            raise Stop

    folder = tmp_path / "run"
    with pytest.raises(Stop):
        fit(
            build,
            (X, Y),
            recipe,
            run_dir=folder,
            compute=Compute(executor="sequential", checkpoint_seconds=0),
            callbacks=stop,
        )
    files = sorted((folder / "checkpoints").iterdir(), key=lambda p: int(p.stem.split("-")[1]))
    assert len(files) == 2
    for path in files[-1:] if damage == "newest" else files:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0xFF
        path.write_bytes(bytes(data))
    events = []
    again = fit(build, (X, Y), recipe, run_dir=folder, compute=Compute(executor="sequential"), callbacks=events.append)
    said = [e["message"] for e in events if e["kind"] == "warning"]
    assert any("damaged" in m for m in said)
    assert ("starting from the beginning" in said[-1]) == (damage == "everything")
    assert all(torch.equal(a[n], b[n]) for a, b in zip(params(whole), params(again)) for n in a)


def test_a_folder_in_use_is_refused(tmp_path):
    def nested(event):
        fit(build, (X, Y), make("single", budget=2, training=QUICK), run_dir=tmp_path)

    with pytest.raises(RunError, match="in use by another process"):
        fit(build, (X, Y), make("single", budget=2, training=QUICK), run_dir=tmp_path, callbacks=nested)


def test_another_thread_count_is_said(tmp_path):
    recipe = make("single", budget=2, training=QUICK)
    fit(build, (X, Y), recipe, run_dir=tmp_path)
    plan = json.loads((tmp_path / "plan.json").read_text())
    plan["environment"]["threads"] = 77
    write_json(tmp_path / "plan.json", plan)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".*(budget is below|rows no better than)")  # few steps on purpose
        fit(build, (X, Y), recipe, run_dir=tmp_path)  # nothing is left to do
    (tmp_path / "members" / "00000.safetensors").unlink()
    with pytest.warns(UserWarning, match="not bit for bit"):
        fit(build, (X, Y), recipe, run_dir=tmp_path, compute=Compute(threads=1))


def conv():
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(24, 3),
    )


IMAGES = torch.randint(0, 256, (60, 3, 8, 8), generator=G).to(torch.uint8)
LABELS = torch.randint(0, 3, (60,), generator=G)
INPUTS = (Normalize(mean=(0.5,) * 3, std=(0.25,) * 3), PadCrop(pixels=2), HorizontalFlip())


def test_convolutions_with_batchnorm_dropout_bagging_and_augmentation_agree_across_executors():
    recipe = make("bagged", budget=9, members=3, training=QUICK)
    one, many = (
        fit(conv, (IMAGES, LABELS), recipe, transforms=INPUTS, compute=Compute(executor=e))
        for e in ("sequential", "vectorized")
    )
    for a, b in zip(one.states(), many.states()):
        for n in a.params:
            assert torch.allclose(a.params[n], b.params[n], atol=1e-4), n
        for n in a.buffers:
            assert torch.allclose(a.buffers[n].float(), b.buffers[n].float(), atol=1e-4), n


def test_bf16_trains_close_to_fp32():
    recipe = make("single", budget=3, training=QUICK)
    a, b = (fit(build, (X, Y), recipe, compute=Compute(precision=p)) for p in ("fp32", "bf16"))
    assert torch.allclose(a.outputs(X), b.outputs(X), atol=0.1)
    assert not torch.equal(a.outputs(X), b.outputs(X))


def test_datasets_and_loaders_give_the_members_that_arrays_give():
    from torch.utils.data import DataLoader, TensorDataset

    recipe = make("bagged", budget=4, members=2, training=QUICK)
    dataset = TensorDataset(X, Y)
    for executor in ("sequential", "vectorized"):
        arrays = params(fit(build, (X, Y), recipe, compute=Compute(executor=executor)))
        for data in (dataset, DataLoader(dataset, batch_size=16, shuffle=True)):
            assert all(
                torch.equal(a[n], b[n])
                for a, b in zip(arrays, params(fit(build, data, recipe, compute=Compute(executor=executor))))
                for n in a
            )


def wide() -> nn.Module:
    return models.mlp(4, 2, hidden=(500, 500))


def convolving() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 3, 3), nn.Flatten(), nn.Linear(6, 2))


@pytest.mark.parametrize(
    ("network", "expected"), [(build, "vectorized"), (wide, "sequential"), (convolving, "sequential")]
)
def test_auto_decides_by_the_network_and_not_by_a_clock(network, expected, tmp_path):
    recipe = make("deep_ensemble", budget=4, members=4, training=QUICK)
    fit(network, (X, Y), recipe, run_dir=tmp_path)
    assert json.loads((tmp_path / "plan.json").read_text())["executor"] == expected


def test_auto_falls_back_to_sequential_for_a_network_that_cannot_be_mapped(tmp_path):
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.last = nn.LSTM(1, 5, batch_first=True), nn.Linear(5, 2)

        def forward(self, x):
            return self.last(self.cell(x.unsqueeze(-1))[0][:, -1])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of its own slow path while we measure
        fit(Recurrent, (X, Y), make("deep_ensemble", budget=2, members=2, training=QUICK), run_dir=tmp_path)
    assert json.loads((tmp_path / "plan.json").read_text())["executor"] in ("sequential", "vectorized")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((X, Y.float() + 0.5), "2 outputs for 1 real target"),
        ((X, Y + 5), "class label 6 but the network gives 2 outputs"),
        ((X, -Y), "negative label"),
        ((X, ["a"] * 90), "encode labels as integers"),
        ((X[:5], Y), "5 rows and y has shape .90,"),
        ((torch.where(X > 2, torch.nan, X), Y), r"NaN or infinite values in \d+ row"),
        ((X[:, :3], Y), "the network cannot read x"),
        ((X[:0], Y[:0]), "0 rows"),
        ("nonsense", "give a pair"),
    ],
)
def test_bad_data_is_refused_in_one_sentence_before_anything_is_written(data, message, tmp_path):
    if (
        isinstance(data, tuple)
        and data[0].shape == X.shape
        and torch.is_tensor(data[1])
        and data[1].dtype.is_floating_point
    ):
        network = lambda: models.mlp(4, 5, hidden=(8,))  # noqa: E731  # five outputs fit no Gaussian
        message = "5 outputs for 1 real target"
    else:
        network = build
    with pytest.raises(InputError, match=message):
        fit(network, data, make("single", budget=2, training=QUICK), run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_bad_settings_are_refused():
    recipe = make("single", budget=2)
    for options, message in [
        ({"executor": "magic"}, "executor is 'magic'"),
        ({"precision": "fp8"}, "precision is 'fp8'"),
        ({"device": "warp"}, "device is 'warp'"),
    ]:
        with pytest.raises(InputError, match=message):
            fit(build, (X, Y), recipe, compute=Compute(**options))
    with pytest.raises(InputError, match=r"must return a new nn\.Module"):
        fit(lambda: 3, (X, Y), recipe)  # type: ignore[arg-type, return-value]  # wrong on purpose


def test_checkpoints_are_so_far_apart_that_they_take_little_of_the_time(tmp_path, monkeypatch):
    """A clock that moves a second with every epoch, and checkpoints that take half a second: one in 25 epochs."""
    from choral.engine import run as module
    from choral.engine.checkpoint import Checkpoints

    now, saved = [0.0], []
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(Checkpoints, "save", lambda self, stacks, now: saved.append(now.epoch) or tick(0.5))

    def tick(seconds):
        now[0] += seconds

    x = torch.randn(8, 3)
    recipe = Recipe(name="r", plan=seq(Reset(), Train(epochs=80, batch_size=8, schedule=Constant(0.1)), Collect()))
    for seconds, expected in ((2.0, [2, 27, 52, 77]), (0, list(range(1, 80)))):
        now[0] = 0.0
        saved.clear()
        fit(
            lambda: torch.nn.Linear(3, 1),
            (x, x[:, :1]),
            recipe,
            run_dir=tmp_path / str(seconds),
            compute=Compute(checkpoint_seconds=seconds),
            callbacks=lambda event: tick(1.0) if event["kind"] == "epoch" else None,
        )
        assert [epoch for epoch in saved if epoch] == expected


class Fussy(nn.Module):
    """Fails under vmap with an error that torch itself would not raise."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        if torch._C._functorch.is_functorch_wrapped_tensor(self.layer.weight):
            raise TypeError("no stacks here")
        return self.layer(x)


def test_whatever_keeps_networks_from_being_stacked_trains_them_one_by_one_or_is_said():
    x, y = torch.randn(16, 4), torch.arange(16) % 2
    recipe = make("deep_ensemble", budget=2, members=2)
    one, auto = (fit(Fussy, (x, y), recipe, compute=Compute(executor=e)) for e in ("sequential", "auto"))
    assert torch.equal(one.outputs(x), auto.outputs(x))
    with pytest.raises(InputError, match="stops with 'no stacks here'; use executor='sequential'"):
        fit(Fussy, (x, y), recipe, compute=Compute(executor="vectorized"))
