"""What is estimated on the residuals of trained members."""

import pytest
import torch

from choral import Compute, models
from choral.base.errors import RunError
from choral.fit import fit, load
from choral.recipes import make
from choral.recipes.training import Training

DRAW = torch.Generator().manual_seed(0)
X = torch.randn(60, 3, generator=DRAW)
Y = X[:, :1] + 0.1 * torch.randn(60, 1, generator=DRAW)


def trained(method, **options):
    recipe = make(method, budget=4, training=Training(lr=0.1, optimizer="sgd", batch_size=20), **options)
    return fit(lambda: models.mlp(3, 1, hidden=(8,)), (X, Y), recipe, compute=Compute(executor="sequential"))


def test_a_single_call_gives_what_calls_prepared_for_more_give():
    for method, options in (
        ("deep_ensemble", {"members": 3}),
        ("packed", {"members": 2}),
        ("mc_dropout", {"draws": 3}),
    ):
        ensemble = trained(method, **options)
        once = ensemble._outputs_once(X, batch_size=25)
        torch.testing.assert_close(once, ensemble.outputs(X), rtol=1e-4, atol=1e-5)


def test_the_estimate_leaves_nothing_prepared():
    ensemble = trained("deep_ensemble", members=2)
    (evaluation,) = ensemble._evaluations.values()
    assert evaluation._settled is None


def test_a_run_without_its_noise_is_refused_and_not_given_that_of_the_targets(tmp_path):
    recipe = make("deep_ensemble", members=2, budget=40, training=Training(lr=0.1, optimizer="sgd", batch_size=20))
    call = {"run_dir": tmp_path / "run", "compute": Compute(executor="sequential")}

    def build():
        return models.mlp(3, 1, hidden=(8,))

    whole = fit(build, (X, 100 * Y), recipe, **call).predict(X).std
    (tmp_path / "run/likelihood.json").unlink()
    with pytest.raises(RunError, match="noise of the run"):
        load(tmp_path / "run", build=build)
    with pytest.warns(UserWarning, match="deviations are those of the targets"):
        taken = load(tmp_path / "run", build=build, partial=True)
    assert (taken.predict(X).std > 2 * whole).all()
    torch.testing.assert_close(fit(build, (X, 100 * Y), recipe, **call).predict(X).std, whole)
    torch.testing.assert_close(load(tmp_path / "run", build=build).predict(X).std, whole)
