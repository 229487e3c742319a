"""Losses and likelihoods of a user's own: end to end, resumed byte for byte, and loaded in another process."""

import subprocess
import sys
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import choral
from choral import Adam, Training, models
from choral.base.errors import InputError, RunError
from choral.objectives import Likelihood, Loss
from choral.predictions import Predictive, Regression
from choral.recipes import make

G = torch.Generator().manual_seed(0)
X = torch.randn(60, 3, generator=G)
Y = X[:, 0] + 0.1 * torch.randn(60, generator=G)
RECIPE = make("deep_ensemble", budget=6, members=2, training=Training(lr=0.01, optimizer=Adam(), batch_size=16))


@dataclass(frozen=True, kw_only=True)
class Huber(Likelihood):
    """The contract by hand: three methods."""

    prediction: ClassVar[type[Predictive]] = Regression
    delta: float = 1.0

    def nll(self, outputs, targets):
        return F.huber_loss(outputs[..., 0], targets, delta=self.delta, reduction="none")

    def check(self, targets, outputs):
        if outputs != (1,):
            raise InputError(f"Huber takes 1 output, not {outputs}.")

    def predict(self, outputs, about):
        return Regression(outputs, torch.full_like(outputs, self.delta**2), learners=about.learners)


def build():
    return models.mlp(3, 1, hidden=(8,))


def squares(outputs, targets):
    return (outputs[:, 0] - targets).square()


def test_a_likelihood_of_ones_own_goes_all_the_way(tmp_path):
    ensemble = choral.fit(build, (X, Y), RECIPE, likelihood=Huber(delta=0.5), run_dir=tmp_path / "run")
    assert ensemble.evaluate(X, Y)["rmse"] < float(Y.std())
    ensemble.save(tmp_path / "saved.choral")
    for place in ("run", "saved.choral"):
        back = choral.load(tmp_path / place)
        assert back.likelihood == Huber(delta=0.5)
        assert torch.equal(back.predict(X).mean, ensemble.predict(X).mean)
    with pytest.raises(InputError, match="Huber takes 1 output"):
        choral.fit(lambda: models.mlp(3, 4), (X, Y), RECIPE, likelihood=Huber())


@pytest.mark.full
def test_another_process_is_told_what_it_needs(tmp_path):
    choral.fit(build, (X, Y), RECIPE, likelihood=Huber()).save(tmp_path / "huber.choral")
    choral.fit(build, (X, Y), RECIPE, likelihood=Loss(squares)).save(tmp_path / "loss.choral")
    code = (
        f"import choral, torch\nx = torch.zeros(2, 3)\n"
        f"try: choral.load({str(tmp_path / 'huber.choral')!r})\nexcept choral.ChoralError as e: print(e)\n"
        f"raw = choral.load({str(tmp_path / 'loss.choral')!r}).predict(x)\nprint(tuple(raw.mean.shape))\n"
        f"try: raw.scores([0.0, 1.0])\nexcept choral.ChoralError as e: print(e)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, shape, second = done.stdout.strip().splitlines()
    assert "the likelihood Huber, which is not defined here" in first
    assert "choral.load(path, likelihood=...)" in first
    assert shape == "(2,)"
    assert "contains no code" in second


def test_a_loss_trains_as_the_same_loop_by_hand_and_needs_its_function_back(tmp_path):
    ensemble = choral.fit(
        build, (X, Y), RECIPE, likelihood=Loss(squares), compute=choral.Compute(executor="sequential")
    )
    p = ensemble.predict(X)
    found = ensemble.evaluate(X, Y)
    assert found["loss"] == pytest.approx(float((p.mean - Y).square().mean()), rel=1e-5)
    assert found["member_loss"] == pytest.approx(float((p.members - Y).square().mean()), rel=1e-5)
    twin = choral.fit(
        build, (X, Y.unsqueeze(1)), RECIPE, likelihood=Loss(nn.MSELoss()), compute=choral.Compute(executor="sequential")
    )
    assert torch.allclose(twin.predict(X).mean[:, 0], p.mean, atol=1e-5)
    ensemble.save(tmp_path / "e.choral")
    back = choral.load(tmp_path / "e.choral", likelihood=Loss(squares))
    assert back.evaluate(X, Y) == found
    with pytest.raises(RunError, match="fitted with the functions"):
        choral.load(tmp_path / "e.choral", likelihood=Loss(torch.dot))
    with pytest.raises(RunError, match="the likelihood Loss, but likelihood is Huber"):
        choral.load(tmp_path / "e.choral", likelihood=Huber())


def test_losses_that_cannot_work_are_refused_before_training():
    with pytest.raises(InputError, match="cannot take outputs of shape"):
        choral.fit(build, (X, Y), RECIPE, likelihood=Loss(lambda o, t: o @ t))
    with pytest.raises(InputError, match="return one number, or one for each point"):
        choral.fit(build, (X, Y), RECIPE, likelihood=Loss(lambda o, t: torch.zeros(7)))
    with pytest.raises(InputError, match="different to the input size"):
        choral.fit(build, (X, Y), RECIPE, likelihood=Loss(nn.MSELoss()))  # would broadcast to (batch, batch)
    with pytest.raises(InputError, match="return one number, or one for each point"):
        choral.fit(build, (X, Y), RECIPE, likelihood=Loss(lambda o, t: (o - t).abs()))
    with pytest.raises(InputError, match="weights of points cannot be honored"):
        choral.fit(build, (X, Y.unsqueeze(1)), RECIPE, likelihood=Loss(nn.MSELoss()), sample_weight=torch.rand(60))
    with pytest.raises(InputError, match="give a function"):
        Loss("mse")


class _Stop(Exception):
    pass


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_weighed_and_scaled_runs_resume_byte_for_byte(executor, tmp_path):
    weights = torch.rand(60, generator=G)
    options = {
        "likelihood": "student_t",
        "sample_weight": weights,
        "compute": choral.Compute(executor=executor, checkpoint_seconds=0),
    }
    network = lambda: models.mlp(3, 2, hidden=(8,))  # noqa: E731  # a factory in one line
    choral.fit(network, (X, 1000 * Y), RECIPE, run_dir=tmp_path / "whole", **options)
    for after in range(2, 60):
        left = after % 5 + 1

        def stop(event):
            nonlocal left
            left -= 1
            if left < 0:
                raise _Stop

        try:
            choral.fit(network, (X, 1000 * Y), RECIPE, run_dir=tmp_path / "broken", callbacks=stop, **options)
            break
        except _Stop:
            continue
    whole, broken = (
        {p.name: p.read_bytes() for p in (tmp_path / d / "members").iterdir()} for d in ("whole", "broken")
    )
    assert whole == broken
