"""What strangers brought: habits of networks, data and places that real scripts have; each is right, or one sentence."""

import copy
import dataclasses
import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import choral
from choral import recipes
from choral.base.errors import ConversionError, InputError
from choral.objectives import Categorical, Loss
from choral.recipes.training import Training

CALM = Training(optimizer="sgd", lr=0.02, batch_size=16)
TWO = recipes.deep_ensemble(budget=4, members=2, training=CALM)
G = torch.Generator().manual_seed(0)
X = torch.randn(32, 6, generator=G)
Y = (X[:, 0] > 0).long()


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))


def fitted(build: Any = small, data: Any = None, recipe: Any = TWO, **options: Any) -> Any:
    return choral.fit(build, (X, Y) if data is None else data, recipe, **options)


class Counting(nn.Module):
    """Gives its buffers anew in every training call, as many scripts do, instead of changing them in place."""

    seen: Tensor
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.body = small()
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen = self.seen + 1
            self.mean = (0.9 * self.mean + 0.1 * x.mean(0)).detach()
        return self.body(x - self.mean)


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_buffers_given_anew_in_forward_are_kept(executor):
    ensemble = fitted(Counting, compute=choral.Compute(executor=executor))
    for member in ensemble:
        assert int(member.seen) == 4  # 2 epochs of 2 batches
        assert member.mean.abs().sum() > 0
    torch.testing.assert_close(ensemble.predict(X).probs, fitted(Counting).predict(X).probs)


@pytest.mark.parametrize("name", ["batch_ensemble", "packed", "masksembles", "tabm"])
def test_buffers_given_anew_in_forward_of_a_joint_network(name):
    ensemble = fitted(Counting, recipe=recipes.make(name, budget=2, members=2, training=CALM))
    joint = dict(ensemble._network().named_buffers())
    assert {int(b.max()) for n, b in joint.items() if n.endswith("seen")} == {4}


class Drawing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = small()

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x + random.gauss(0, 0.1)) if self.training else self.body(x)


class Noisy(Drawing):
    def forward(self, x: Tensor) -> Tensor:
        return self.body(x + torch.from_numpy(np.random.randn(*x.shape)).float()) if self.training else self.body(x)


@pytest.mark.parametrize(("build", "said"), [(Drawing, "the module random"), (Noisy, "numpy.random")])
def test_draws_that_no_seed_decides_are_said(build, said):
    with pytest.warns(UserWarning, match=f"draws from {said} .* draw with torch instead"):
        fitted(build, compute=choral.Compute(executor="sequential"))


class Auxiliary(Drawing):
    """As GoogLeNet: a tuple while training."""

    def forward(self, x: Tensor) -> Any:
        out = self.body(x)
        return (out, out) if self.training else out


def test_a_network_that_returns_more_while_it_trains():
    with pytest.raises(InputError, match="a tuple of 2 parts, 0 to 1"):
        fitted(Auxiliary)
    ensemble = fitted(Auxiliary, output=lambda found: found[0] if isinstance(found, tuple) else found)
    torch.testing.assert_close(ensemble.predict(X).probs, fitted().predict(X).probs)


def test_objects_that_are_numbers_are_numbers():
    wanted = fitted().predict(X).probs
    frame = pd.DataFrame(X.numpy(), columns=list("abcdef"))
    for x, y in (
        (X.numpy().astype(object), Y.numpy().astype(object)),
        (frame.convert_dtypes(), pd.Series(Y.numpy()).astype("Int64")),
        (frame, pd.DataFrame({"y": pd.array(Y.numpy().astype(bool), dtype="boolean")})),
    ):
        assert torch.equal(fitted(data=(x, y)).predict(x).probs, wanted)
    holes = frame.astype("Float64")
    holes.iloc[3, 2] = pd.NA
    with pytest.raises(InputError, match="fill or drop missing values"):
        fitted(data=(holes, Y))
    with pytest.raises(InputError, match=r"of type <U.*, not numbers"):
        fitted(data=(X.numpy().astype(str).astype(object), Y))


class Lying(Dataset[Any]):
    """Has fewer items than it says, or one that is none."""

    def __init__(self, length: int, hole: int = -1) -> None:
        self.length, self.hole = length, hole

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> Any:
        return None if number == self.hole else (X[number], Y[number])


@pytest.mark.parametrize("data", [Lying(99), Lying(32, 7)])
def test_items_that_cannot_be_read_raise_their_own_error(data):
    with pytest.raises((IndexError, TypeError)):
        fitted(data=data)


def test_a_list_of_items_is_a_dataset():
    pairs = list(zip(X, Y))
    assert torch.equal(fitted(data=pairs).predict(X).probs, fitted().predict(X).probs)
    dicts = [{"input": x, "label": y} for x, y in pairs]
    assert torch.equal(fitted(data=dicts, target="label").predict({"input": X}).probs, fitted().predict(X).probs)
    for wrong in (zip(X, Y), iter(pairs), [X, Y, Y], [*pairs, 3]):
        with pytest.raises(InputError, match="data is of type"):
            fitted(data=wrong)


def test_a_relative_folder_stays_where_it_was_asked_for(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    ensemble = fitted(run_dir="run", callbacks=lambda event: os.chdir(tmp_path / "there"))
    assert Path.cwd() == tmp_path / "there"
    assert not list((tmp_path / "there").iterdir())
    assert ensemble.member(1) is not None
    os.chdir(tmp_path / "here")
    loaded = choral.load("run", build=small)
    os.chdir(tmp_path / "there")
    assert torch.equal(loaded.predict(X).probs, ensemble.predict(X).probs)


def test_a_home_folder_is_not_guessed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="run_dir is '~/run'"):
        fitted(run_dir="~/run")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("last", "outputs", "y", "likelihood"),
    [(nn.Softmax(-1), 2, Y, None), (nn.Sigmoid(), 1, Y, "bernoulli"), (nn.Sequential(nn.Sigmoid(), nn.Flatten(0)), 1, Y, "bernoulli")],
)  # fmt: skip
def test_probabilities_where_logits_belong_are_doubted(last, outputs, y, likelihood):
    with pytest.warns(
        UserWarning, match="its outputs are read as logits, which go through (softmax|sigmoid) once more"
    ):
        fitted(lambda: nn.Sequential(nn.Linear(6, outputs), last), (X, y), likelihood=likelihood)
    fitted(lambda: nn.Sequential(nn.Linear(6, 2), nn.LogSoftmax(-1)))  # which softmax leaves as it is


def test_a_table_says_what_it_leaves_out_and_reads_durations_and_periods():
    rows = 60
    frame = pd.DataFrame({"a": np.arange(rows) % 7, "t": np.where(np.arange(rows) % 2, "yes", "no")})
    frame["wait"] = pd.to_timedelta(np.arange(rows), unit="h")
    frame["month"] = pd.period_range("2020-01", periods=rows, freq="M")
    frame["pair"] = [[i, 2] for i in range(rows)]
    with pytest.warns(UserWarning, match="column 'pair' has cells that hold lists"):
        ensemble = choral.fit_table(
            frame, "t", method="single", epochs=2, columns=choral.Columns(drop=["a"]), progress=False
        )
    read = {row["column"]: row["read_as"] for row in ensemble.table.describe()}
    assert read == {"a": "left out", "wait": "number", "month": "date", "pair": "left out"}
    assert "columns left out: pair" in repr(ensemble)
    assert torch.allclose(ensemble.predict(frame[:3]).probs, ensemble.predict(frame).probs[:3], atol=1e-6)


@dataclasses.dataclass
class Settings:
    scale: float


class Configured(nn.Module):
    """Computes by an object that Python does not show."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings, self.body = settings, nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x) * self.settings.scale
        return out


def test_networks_that_differ_in_what_python_does_not_show_stay_themselves():
    nets: list[nn.Module] = [Configured(Settings(scale)) for scale in (1.0, 2.0, 2.0)]
    hooked = small()
    hooked[0].register_forward_hook(lambda module, inputs, output: output * 3)
    for given in (nets, [small(), hooked]):
        with torch.no_grad():
            expected = torch.stack([net(X) for net in given])
        ensemble = choral.ensemble_of(given, data=(X, Y))
        assert torch.allclose(ensemble.outputs(X), expected, atol=1e-6)
        assert torch.allclose(ensemble.member(1)(X), expected[1], atol=1e-6)


def test_a_replaced_forward_is_refused_by_ensemble_of():
    net = small()
    old = net.forward
    net.forward = lambda x: old(x) * 3
    with pytest.raises(InputError, match="remembers the network it was made for"):
        choral.ensemble_of([small(), net], data=(X, Y))


def test_a_loss_that_writes_into_targets_changes_nobodys():
    def squared(outputs: Tensor, targets: Tensor) -> Tensor:
        targets.add_(1)
        return (outputs[:, 0] - targets) ** 2

    y = X[:, 0].clone()
    for given in (y, y.numpy().copy()):
        before = np.asarray(given).copy()
        ensemble = choral.fit(
            lambda: nn.Linear(6, 1), (X, given), recipes.single(budget=4, training=CALM), likelihood=Loss(squared)
        )
        ensemble.evaluate(X, given)
        assert np.array_equal(np.asarray(given), before)


class EverySecond(torch.optim.SGD):
    """Counts its steps where no checkpoint sees it."""

    taken = 0

    def step(self, closure: Any = None) -> Any:
        self.taken += 1
        return super().step(closure) if self.taken % 2 == 0 else None


class InGroups(torch.optim.SGD):
    """Counts its steps in the parameter groups."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["taken"] = group.get("taken", 0) + 1
        return super().step(closure)


class Slow(torch.optim.SGD):
    """Keeps slow weights beside its state."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr=lr)
        self.slow = [p.detach().clone() for group in self.param_groups for p in group["params"]]


def test_an_optimizer_that_keeps_tensors_beside_its_state_is_refused():
    with pytest.raises(InputError, match=r"remembers slow.*resumed exactly"):
        Training(optimizer=lambda params: Slow(params, lr=0.1), lr=0.1)


@pytest.mark.parametrize("kind", [EverySecond, InGroups])
def test_an_optimizer_that_counts_by_itself_is_refused(kind):
    with pytest.raises(InputError, match=r"remembers .*taken.*resumed exactly"):
        Training(optimizer=lambda params: kind(params, lr=0.1), lr=0.1)


def test_small_whole_numbers_of_a_frame_are_no_bytes():
    rows = pd.DataFrame({"age": np.arange(18, 78), "rooms": np.arange(60) % 7})
    y = (0.1 * rows.age + rows.rooms).to_numpy()
    recipe = recipes.deep_ensemble(members=2, budget=8, training=CALM)
    ensemble = choral.fit(lambda: choral.models.mlp(2, 1), (rows.astype("float32"), y), recipe)
    expected = ensemble.predict(rows.astype("float32")).mean
    for same in (rows.astype("uint8"), rows.astype("uint8")[["rooms", "age"]], rows, rows.to_numpy()):
        assert torch.equal(ensemble.predict(same).mean, expected)


def test_a_listener_may_change_what_it_hears(tmp_path):
    fitted(run_dir=tmp_path, callbacks=lambda event: event.clear())
    events = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert all("kind" in event for event in events)


def test_ensembles_are_copied_with_care():
    ensemble = fitted()
    ensemble.predict(X)
    assert torch.equal(copy.deepcopy(ensemble).outputs(X), ensemble.outputs(X))


def test_ignored_labels_count_nowhere():
    y = Y.clone()
    y[::3] = 255
    likelihood = Categorical(ignore=255)
    ensemble = fitted(data=(X, y), likelihood=likelihood)
    kept = y != 255
    cooled = ensemble.calibrated(X, y, temperature="ensemble", level=0.8)
    assert cooled.posthoc == ensemble.calibrated(X[kept], y[kept], temperature="ensemble", level=0.8).posthoc
    folded = fitted(data=(X, y), likelihood=likelihood, cv=2)
    assert 0 <= folded.info["out_of_fold"]["coverage"] <= 1
    with pytest.raises(InputError, match="ignored label 255 alone"):
        fitted(data=(X, torch.full_like(y, 255)), likelihood=likelihood)


def test_pixels_have_a_temperature():
    x = torch.randn(20, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    y = (x.mean(1) > 0).long()
    ensemble = choral.fit(lambda: nn.Conv2d(3, 2, 1), (x, y), TWO)
    cooled = ensemble.calibrated(x, y, temperature="ensemble")
    assert cooled.evaluate(x, y)["nll"] <= ensemble.evaluate(x, y)["nll"] + 1e-6


@pytest.mark.parametrize("method", ["deep_ensemble", "swag", "prune_and_tune"])
def test_random_slopes_follow_the_seed(method):
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.RReLU(), nn.Linear(8, 2))

    recipe = recipes.make(method, budget=14, training=CALM)
    one, other = (
        choral.fit(build, (X, Y), recipe, compute=choral.Compute(executor=executor))
        for executor in ("sequential", "auto")
    )
    assert torch.allclose(one.outputs(X), other.outputs(X), atol=1e-3)


def test_arrays_of_other_machines_are_read():
    wide, swapped = X.numpy().astype(np.longdouble), X.numpy().astype(">f4")
    ensemble = fitted()
    assert torch.equal(ensemble.outputs(swapped), ensemble.outputs(X))
    assert torch.equal(ensemble.outputs(wide), ensemble.outputs(X))
    assert ensemble.evaluate(swapped, Y.numpy().astype(">i8")) == ensemble.evaluate(X, Y)


def test_a_loss_without_a_gradient_is_refused():
    loss = Loss(lambda outputs, targets: (outputs.detach()[:, 0] - targets) ** 2)
    with pytest.raises(InputError, match="depends on no parameter"):
        choral.fit(lambda: nn.Linear(6, 1), (X, X[:, 0]), recipes.single(budget=4), likelihood=loss)


def test_an_optimizer_that_cannot_take_all_parameters_says_so():
    training = Training(optimizer=torch.optim.Muon, lr=0.01)  # type: ignore[arg-type]  # made an optimizer of choral's
    with pytest.raises(ValueError, match="Muon only supports 2D parameters"):
        fitted(recipe=recipes.single(budget=2, training=training))


class Padded(nn.Module):
    """Tells its encoder which words are padding: in evaluation torch then runs on nested tensors."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.words, self.encoder, self.out = nn.Embedding(20, 8), nn.TransformerEncoder(layer, 2), nn.Linear(8, 2)

    def forward(self, words: Tensor) -> Tensor:
        out: Tensor = self.out(self.encoder(self.words(words), src_key_padding_mask=words == 0)[:, 0])
        return out


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_an_encoder_with_padding_is_pruned():
    words = torch.randint(1, 20, (24, 6), generator=torch.Generator().manual_seed(2))
    words[:, 4:] = 0
    recipe = recipes.prune_and_tune(members=2, budget=6, training=CALM)
    assert fitted(Padded, (words, (words[:, 0] > 9).long()), recipe).members == 2


class Routed(nn.Module):
    """Sends each point to one of its experts, and writes what they say into one tensor; the second is asked by few points only."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 8)
        self.experts = nn.ModuleList([nn.Linear(8, 2) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        hidden, rare = torch.relu(self.body(x)), x[:, 0] > 1.2
        out = hidden.new_zeros(len(x), 2)
        for chosen, expert in zip((~rare, rare), self.experts):
            if chosen.any():
                out[chosen] = expert(hidden[chosen])
        return out


COMMON_FIRST = X[:, 0].argsort()


@pytest.mark.parametrize("method", ["emp", "ecmp", "mc_dropout", "deep_ensemble"])
def test_points_that_go_another_way_than_the_first_ones_are_answered(method):
    data = (X[COMMON_FIRST], Y[COMMON_FIRST])
    ensemble = fitted(Routed, data, recipes.make(method, budget=4, training=CALM))
    whole = ensemble.outputs(data[0])  # the first points, which decide how networks are run, ask the first expert alone
    alone = torch.cat([ensemble.outputs(row) for row in data[0].split(1)], 1)
    assert torch.allclose(whole, alone, atol=1e-5)


def test_members_that_cannot_be_mapped_on_some_points_stop_in_one_sentence():
    data = (X[COMMON_FIRST], Y[COMMON_FIRST])
    recipe = recipes.treenet(budget=2, branches=("experts.1",), training=CALM)
    with pytest.raises(
        InputError, match=r"stopped in epoch 1, batch [12], .*use a method whose members are networks of"
    ):
        fitted(Routed, data, recipe)


class Fragile(nn.Module):
    """Fails on one point."""

    def __init__(self) -> None:
        super().__init__()
        self.body = small()

    def forward(self, x: Tensor) -> Tensor:
        if (x == X[20, 0]).any():
            raise KeyError("point 20")
        out: Tensor = self.body(x)
        return out


@pytest.mark.parametrize("executor", ["sequential", "auto"])
def test_networks_that_fail_on_the_way_say_where(executor, tmp_path):
    with pytest.raises(InputError, match=r"training stopped .*gave KeyError .*point 20.*for a batch \(16, 6\) float32"):
        fitted(Fragile, compute=choral.Compute(executor=executor), run_dir=tmp_path / "run")


class Bag(nn.Module):
    """Words whose gradients are sparse."""

    def __init__(self, *, sparse: bool = True):
        super().__init__()
        self.words, self.out = nn.Embedding(10, 4, sparse=sparse), nn.Linear(4, 2)

    def forward(self, words: Tensor) -> Tensor:
        out: Tensor = self.out(self.words(words).mean(1))
        return out


def test_sparse_embeddings_are_trained_and_taken_trained(tmp_path):
    words = torch.randint(10, (32, 5), generator=torch.Generator().manual_seed(3))
    networks = [Bag(), Bag()]
    ensemble = choral.ensemble_of(networks, data=(words, Y))
    wanted = torch.stack([network(words).softmax(-1) for network in networks]).mean(0)
    assert torch.allclose(ensemble.predict(words).probs, wanted, atol=1e-6)
    ensemble.save(tmp_path / "bag.choral")
    assert torch.equal(choral.load(tmp_path / "bag.choral", build=Bag).outputs(words), ensemble.outputs(words))
    sparse, dense = (
        fitted(lambda s=s: Bag(sparse=s), (words, Y), compute=choral.Compute(executor="sequential"))
        for s in (True, False)
    )
    assert torch.equal(sparse.outputs(words), dense.outputs(words))


@pytest.mark.parametrize("method", ["single", "bnn", "packed"])
def test_a_compiled_network_is_taken_for_the_one_that_was_compiled(method):
    recipe = recipes.make(method, budget=4, training=CALM)
    plain, compiled = (
        fitted(build, recipe=recipe) for build in (small, lambda: torch.compile(small(), backend="eager"))
    )
    assert torch.equal(plain.outputs(X), compiled.outputs(X))
    networks = [small(), small()]
    given = choral.ensemble_of([torch.compile(network, backend="eager") for network in networks], data=(X, Y))
    assert torch.equal(given.outputs(X), choral.ensemble_of(networks, data=(X, Y)).outputs(X))


def test_statistics_of_many_processes_are_not_mixed_over_members():
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.SyncBatchNorm(8), nn.ReLU(), nn.Linear(8, 2))

    assert fitted(build).members == 2
    for method in ("batch_ensemble", "packed", "masksembles"):
        with pytest.raises(ConversionError, match=r"'1' \(SyncBatchNorm\)"):
            fitted(build, recipe=recipes.make(method, budget=4, training=CALM))
