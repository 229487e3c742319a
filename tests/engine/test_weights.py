"""Weights of points: an integer is repetition and zero is absence, in losses, members, scores and estimates."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import choral
from choral import SGD, Objective, Recipe, Reset, Train, Training, fork, models, seq
from choral.base.errors import InputError
from choral.objectives import L2, Bernoulli, Categorical, Poisson
from choral.plan import Collect
from choral.plan.schedule import Constant
from choral.recipes import make

G = torch.Generator().manual_seed(0)
X = torch.randn(24, 3, generator=G)
COUNTS = torch.tensor([0, 1, 2, 3] * 6)
ROWS = torch.arange(24).repeat_interleave(COUNTS)
TASKS = {
    "classes": ((X[:, 0] > 0).long(), 2, None),
    "reals": (100 + 20 * X[:, 0] + X[:, 1], 1, None),
    "mean and variance": (100 + 20 * X[:, 0] + X[:, 1], 2, None),
    "labels": ((X[:, :2] > 0).float(), 2, Bernoulli()),
    "counts": (torch.poisson(X[:, 0].exp(), generator=G), 1, Poisson()),
}


def whole(epochs=6):
    """A plan whose batches hold all points, so that weights and repetition take the same steps."""
    train = Train(epochs=epochs, schedule=Constant(value=0.05), optimiser=SGD(momentum=0.9), batch_size=1000)
    return Recipe(
        name="whole", plan=fork(2, seq(Reset(), train, Collect())), objective=Objective(penalties=(L2(precision=3.0),))
    )


@pytest.mark.parametrize("executor", ["sequential", "vectorised"])
@pytest.mark.parametrize("name", TASKS)
def test_weights_are_repetition_and_absence(name, executor):
    y, outputs, likelihood = TASKS[name]
    build = lambda: models.mlp(3, outputs, hidden=(6,))  # noqa: E731  # a factory in one line
    options = {"likelihood": likelihood, "executor": executor}
    weighed = choral.fit(build, (X, y), whole(), weights=COUNTS, **options)
    repeated = choral.fit(build, (X[ROWS], y[ROWS]), whole(), **options)
    for a, b in zip(weighed.states(), repeated.states()):
        assert all(torch.allclose(a.params[n], b.params[n], atol=1e-5) for n in a.params)
    one, other = weighed.predict(X), repeated.predict(X)
    assert torch.allclose(one.mean, other.mean, rtol=1e-4, atol=1e-4)
    found, wanted = weighed.evaluate(X, y, weights=COUNTS), repeated.evaluate(X[ROWS], y[ROWS])
    assert "nll" in found
    same = [n for n in found if name != "counts" or "coverage" not in n]  # ranks of counts are drawn within their steps
    assert all(found[n] == pytest.approx(wanted[n], rel=1e-3, abs=1e-4) for n in same)


def test_batches_of_weighed_points_add_up_without_bias():
    """The mean over all batches is the loss of all points, also where weights are very unequal."""
    weights = torch.tensor([1.0] * 23 + [100.0])
    outputs, labels = torch.randn(1, 24, 2, generator=G).double(), torch.randint(2, (1, 24), generator=G)
    shares = (weights / weights.mean()).unsqueeze(0)
    likelihood = Categorical()
    full = likelihood.loss(outputs, labels, shares)
    parts = [
        likelihood.loss(outputs[:, i : i + 6], labels[:, i : i + 6], shares[:, i : i + 6]) for i in range(0, 24, 6)
    ]
    assert torch.allclose(sum(parts) / 4, full)
    hand = (weights * nn.functional.cross_entropy(outputs[0], labels[0], reduction="none")).sum() / weights.sum()
    assert torch.allclose(full, hand)


@pytest.mark.parametrize("method", ["mimo", "batch_ensemble", "packed", "mc_dropout", "bagged"])
def test_every_structure_gives_each_member_the_weights_of_its_rows(method):
    """Rows of weight 0 hold wrong labels: whoever mixes up rows learns them."""
    x = torch.randn(200, 2, generator=G)
    y = (x[:, 0] > 0).long()
    wrong = torch.rand(200, generator=G) < 0.5
    training = Training(rate=0.1, optimiser=SGD(momentum=0.9), batch_size=50)
    weights = torch.where(wrong, 1e-6, 1.0)
    build = lambda: models.mlp(2, 2, hidden=(32,), dropout=0.1)  # noqa: E731  # a factory in one line
    fitted = choral.fit(
        build, (x, torch.where(wrong, 1 - y, y)), make(method, epochs=24, training=training), weights=weights
    )
    assert fitted.evaluate(x, y)["accuracy"] > 0.85


def test_weights_come_as_a_third_part_for_datasets_and_in_run_folders(tmp_path):
    y = (X[:, 0] > 0).long()
    recipe = make("deep_ensemble", epochs=2, members=2)
    build = lambda: models.mlp(3, 2, hidden=(6,))  # noqa: E731  # a factory in one line
    first = choral.fit(build, (X, y, COUNTS), recipe, run_dir=tmp_path, executor="sequential")
    for again in (
        choral.fit(build, (X, y), recipe, weights=COUNTS.numpy(), executor="sequential"),
        choral.fit(build, TensorDataset(X, y), recipe, weights=COUNTS, executor="sequential"),
    ):
        assert torch.equal(first.outputs(X), again.outputs(X))
    with pytest.raises(choral.ChoralError, match="data was"):
        choral.fit(build, (X, y, COUNTS + 1), recipe, run_dir=tmp_path, executor="sequential")


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        (np.ones(5), r"\(5,\) for 24 points"),
        (-np.ones(24), "0 or more"),
        (np.zeros(24), "above 0"),
        (np.full(24, np.nan), "finite"),
    ],
)
def test_wrong_weights_are_refused(weights, said):
    with pytest.raises(InputError, match=said):
        choral.fit(lambda: models.mlp(3, 2), (X, (X[:, 0] > 0).long()), make("single", epochs=1), weights=weights)
