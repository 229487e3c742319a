"""predict(precision='fp64'): the same ensemble in double precision, whatever rows stand beside a row."""

import numpy as np
import pytest
import torch

import choral
from choral import models
from choral.recipes import make

METHODS = ["single", "deep_ensemble", "packed", "batch_ensemble", "mc_dropout", "bnn", "mimo"]


def fitted(method: str) -> tuple[choral.Ensemble, np.ndarray]:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(37, 3)).astype(np.float32)
    recipe = make(method, budget=8)
    return choral.fit(
        lambda: models.mlp(3, 2, hidden=(16,)), (x, 2e5 + x[:, 0]), recipe, compute=choral.Compute(threads=1)
    ), x


@pytest.mark.parametrize("method", METHODS)
def test_a_row_gets_the_same_alone_and_among_others(method):
    ensemble, x = fitted(method)
    whole = ensemble.outputs(x, precision="fp64")
    assert whole.dtype == torch.float64
    alone = torch.cat([ensemble.outputs(x[i : i + 1], precision="fp64") for i in range(len(x))], 1)
    assert (whole - alone).abs().max() < 1e-12
    assert torch.allclose(whole.float(), ensemble.outputs(x), atol=1e-4)


def test_targets_far_from_zero_keep_their_small_differences():
    ensemble, x = fitted("deep_ensemble")
    mean = ensemble.predict(x, precision="fp64").mean
    assert mean.dtype == torch.float64
    assert len(mean.unique()) == len(x)


def test_it_is_refused_for_training_which_takes_the_type_of_the_network():
    x = np.zeros((8, 3), np.float32)
    with pytest.raises(choral.ChoralError, match="precision is 'fp64'"):
        choral.fit(lambda: models.mlp(3, 2), (x, x[:, 0]), "single", compute=choral.Compute(precision="fp64"))
