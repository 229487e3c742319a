"""Every way to run trained networks gives each member's own outputs, whatever rows stand beside a row."""

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.test_tracing import Residual
from torch import Tensor, nn

from choral import models
from choral.base.errors import InputError
from choral.engine import evaluate
from choral.engine.evaluate import PlainEvaluator, StackedEvaluator
from choral.ensemble.ensemble import Ensemble
from choral.fit import fit
from choral.plan import Collect, Reset, fork
from choral.recipes import make
from choral.recipes.recipe import Recipe
from choral.recipes.training import Training

X = torch.randn(1500, 4, generator=torch.Generator().manual_seed(0))
Y = torch.cat([X[:, :1].sin(), X[:, 1:2]], 1)
UNTRAINED = Recipe(name="r", plan=fork(8, Reset(), Collect()))
NETWORKS = {
    "residual": Residual,
    "inplace": lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 2)),
    "tanh": lambda: models.mlp(4, 2, hidden=(7, 3), activation="tanh"),
    "norm": lambda: models.mlp(4, 2, hidden=(7, 3), norm="batch"),
    "dropout": lambda: models.mlp(4, 2, hidden=(7, 3), dropout=0.3),
    "linear": lambda: nn.Linear(4, 2, bias=False),
    "wide": lambda: models.mlp(4, 2, hidden=(600, 600)),
}


def settled(ensemble: Ensemble, x: Tensor = X, *, images: bool = False) -> list[evaluate.Evaluator]:
    like = torch.zeros([1] * (4 if images else 2))
    return copy.copy(ensemble)._evaluation_for(like, "cpu", "fp32").evaluators(x)


@pytest.mark.parametrize("name", NETWORKS)
def test_outputs_are_the_members_own(name):
    ensemble = fit(NETWORKS[name], (X[:90], Y[:90]), UNTRAINED)
    with torch.no_grad():
        alone = torch.stack([ensemble.member(i)(X) for i in range(8)])
    for rows in (1, 5, 40, 100, 1500, 5, 1):
        torch.testing.assert_close(ensemble.outputs(X[:rows]), alone[:, :rows], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(ensemble.outputs(-X)[0], ensemble.member(0)(-X).detach(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["deep_ensemble", "packed", "mc_dropout", "drop_connect", "bnn", "emp", "ecmp"])
def test_a_row_does_not_depend_on_the_rows_beside_it_nor_on_the_chunks(name):
    ensemble = fit(NETWORKS["dropout"], (X[:60], Y[:60]), make(name, budget=4))
    whole = ensemble.outputs(X[:300])

    @settings(max_examples=15, deadline=None)
    @given(st.integers(0, 299), st.integers(1, 299), st.integers(1, 300))
    def check(start, rows, batch_size):
        part = ensemble.outputs(X[start : min(start + rows, 300)], batch_size=batch_size)
        torch.testing.assert_close(part, whole[:, start : start + rows], atol=1e-5, rtol=1e-4)

    check()


@pytest.mark.parametrize("size", [8, 64])
def test_a_network_that_cuts_its_input_gets_all_rows(size):
    class Cutting(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([super(Cutting, self).forward(x[i : i + size]) for i in range(0, len(x), size)])

    ensemble = fit(lambda: Cutting(4, 2), (X[:90], Y[:90]), UNTRAINED)
    for rows in (1, 2, 10, 31, 40, 100, 300, 10):
        expected = torch.stack([member(X[:rows]).detach() for member in ensemble])
        torch.testing.assert_close(ensemble.outputs(X[:rows]), expected)


def test_equal_inputs_give_equal_bits_however_often_and_after_however_many_shapes():
    ensemble = fit(lambda: models.mlp(4, 2, hidden=(30, 30)), (X[:90], Y[:90]), UNTRAINED)
    first = ensemble.outputs(X[:90])
    for rows in (1, 5, 40, 1500):
        ensemble.outputs(X[:rows])
    assert torch.equal(ensemble.outputs(X[:90]), first)


def test_few_points_of_many_small_networks_are_stacked_and_many_are_not(monkeypatch):
    small, wide = (fit(NETWORKS[n], (X[:90], Y[:90]), UNTRAINED) for n in ("tanh", "wide"))
    (one,), (other,) = settled(small), settled(wide)
    assert isinstance(one, StackedEvaluator)
    assert isinstance(other, StackedEvaluator)
    assert one.most >= 1000
    assert other.most == 1
    monkeypatch.setattr(evaluate, "_STACK", 9)
    assert isinstance(settled(small)[0], PlainEvaluator)


def test_networks_that_are_wrong_when_mapped_run_one_by_one(monkeypatch):
    """Whatever mapping passes over, predictions are the members' own."""
    ensemble = fit(NETWORKS["tanh"], (X[:90], Y[:90]), UNTRAINED)
    expected = ensemble.outputs(X[:5])
    monkeypatch.setattr(StackedEvaluator, "stacked", lambda self, chunk: self.plain.run(chunk)[:1].expand(8, 1, -1, -1))
    (evaluator,) = settled(ensemble)
    assert isinstance(evaluator, PlainEvaluator)
    torch.testing.assert_close(evaluator.outputs(X[:5], 1024).flatten(0, 1), expected)


class Routed(nn.Module):
    """Goes another way, which cannot be mapped, where the first number is large."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        found = self.layer(x)
        return found if float(x.abs().max()) < 50 else torch.where(found > found.mean().item(), found, -found)


def test_an_input_that_cannot_be_mapped_is_answered_one_by_one_and_a_wrong_one_changes_nothing():
    ensemble = fit(Routed, (X[:90], Y[:90]), UNTRAINED)
    assert isinstance(settled(ensemble)[0], StackedEvaluator)
    with pytest.raises(InputError, match="shapes cannot be multiplied"):
        ensemble.outputs(X[:, :2])
    (evaluator,) = ensemble._evaluations[("cpu", "fp32", False)].evaluators(X)
    for x in (X[:3], 100 * X[:3], X[:3]):
        torch.testing.assert_close(ensemble.outputs(x), torch.stack([member(x).detach() for member in ensemble]))
    assert evaluator.most == 0


@pytest.mark.parametrize("name", ["deep_ensemble", "bnn_sequential", "sebays_no_freeze"])
def test_convolutions_of_any_kind_run_member_by_member(name):
    """Stacked, batches of images take gigabytes."""
    x, y = torch.randn(12, 3, 8, 8), torch.arange(12) % 3
    layers = [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)]
    options = {} if name == "deep_ensemble" else {"draws": 1}
    ensemble = fit(lambda: nn.Sequential(*layers), (x, y), make(name, budget=11, members=8, **options))
    assert torch.isfinite(ensemble.outputs(torch.cat([x, x]))).all()
    (evaluator,) = settled(ensemble, x, images=True)
    assert isinstance(evaluator, PlainEvaluator)


def test_a_network_that_cannot_be_mapped_is_predicted_member_by_member():
    def build():
        return Residual(begin=lambda hidden: torch.zeros(hidden.shape))  # its members would have to share it

    ensemble = fit(build, (X[:90], Y[:90]), UNTRAINED)
    with pytest.raises(InputError, match="shapes cannot be multiplied"):
        ensemble.outputs(X[:, :2])
    assert all(isinstance(e, PlainEvaluator) for e in settled(ensemble))
    for _ in range(3):
        torch.testing.assert_close(ensemble.outputs(X)[1], ensemble.member(1)(X).detach())


def test_members_are_read_from_their_files_once(tmp_path, monkeypatch):
    ensemble = fit(NETWORKS["norm"], (X[:90], Y[:90]), UNTRAINED, run_dir=tmp_path)
    first = ensemble.outputs(X)
    monkeypatch.setattr(type(ensemble._store), "get", lambda *_: pytest.fail("read again"))
    assert torch.equal(ensemble.outputs(X), first)


def test_an_ensemble_too_large_to_keep_is_read_again_and_predicts_the_same(tmp_path, monkeypatch):
    ensemble = fit(NETWORKS["norm"], (X[:90], Y[:90]), UNTRAINED, run_dir=tmp_path)
    kept = ensemble.outputs(X)
    monkeypatch.setattr(evaluate, "KEPT", 10)
    (evaluator,) = settled(ensemble)
    assert isinstance(evaluator, PlainEvaluator)
    torch.testing.assert_close(evaluator.outputs(X, 1024).flatten(0, 1), kept, atol=1e-6, rtol=1e-5)


def test_bf16_predicts_nearly_the_same_in_float32():
    ensemble = fit(NETWORKS["tanh"], (X[:90], Y[:90]), UNTRAINED)
    rough = ensemble.outputs(X, precision="bf16")
    assert rough.dtype == torch.float32
    torch.testing.assert_close(rough, ensemble.outputs(X), atol=0.05, rtol=0.05)


def gaussian() -> Ensemble:
    recipe = make("bnn", budget=1, draws=5, training=Training(optimizer="sgd", batch_size=128, lr=1e-3))
    return fit(lambda: models.mlp(4, 3, hidden=(64, 64)), (X[:64], torch.arange(64) % 3), recipe)


@pytest.mark.slow
@pytest.mark.parametrize("most", [1 << 27, 20_000, 0])
def test_drawn_weights_are_kept_between_calls_and_change_nothing(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "_DRAWN", 0)
    fresh = [gaussian().outputs(X[:rows], batch_size=8) for rows in (1, 20)]
    monkeypatch.setattr(evaluate, "_DRAWN", most)
    ensemble = gaussian()
    for _ in range(2):
        for rows, expected in zip((1, 20), fresh):
            torch.testing.assert_close(ensemble.outputs(X[:rows], batch_size=8), expected)
    (evaluator,) = ensemble._evaluations[("cpu", "fp32", False)].evaluators(X)
    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(lambda _: ensemble.outputs(X[:20], batch_size=8), range(20)):
            assert torch.equal(found, ensemble.outputs(X[:20], batch_size=8))
    if most == 1 << 27:
        assert isinstance(evaluator, PlainEvaluator)
        assert evaluator._drawn.bytes == 5 * 4 * (4 * 64 + 64 * 64 + 64 * 3 + 64 + 64 + 3)


@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_predicted_in_the_memory_format_of_training(channels):
    """torch's copies of weights for one channel lose it, and pooling then takes ten times as long."""
    formats = []

    class Watched(nn.Flatten):
        def forward(self, x: Tensor) -> Tensor:
            formats.append(x.stride(1) == 1)
            return super().forward(x)

    images = torch.randn(20, channels, 6, 6)
    ensemble = fit(
        lambda: nn.Sequential(nn.Conv2d(channels, 4, 3), Watched(), nn.Linear(64, 2)), (images, Y[:20]), UNTRAINED
    )
    ensemble.predict(images)
    assert all(formats)
