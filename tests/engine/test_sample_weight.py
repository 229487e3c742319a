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
from choral.plan.schedules import Constant
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
    train = Train(epochs=epochs, schedule=Constant(value=0.05), optimizer=SGD(momentum=0.9), batch_size=1000)
    return Recipe(
        name="whole", plan=fork(2, seq(Reset(), train, Collect())), objective=Objective(penalties=(L2(precision=3.0),))
    )


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
@pytest.mark.parametrize("name", TASKS)
def test_weights_are_repetition_and_absence(name, executor):
    y, outputs, likelihood = TASKS[name]
    build = lambda: models.mlp(3, outputs, hidden=(6,))  # noqa: E731  # a factory in one line
    options = {"likelihood": likelihood, "compute": choral.Compute(executor=executor)}
    weighed = choral.fit(build, (X, y), whole(), sample_weight=COUNTS, **options)
    repeated = choral.fit(build, (X[ROWS], y[ROWS]), whole(), **options)
    for a, b in zip(weighed.states(), repeated.states()):
        assert all(torch.allclose(a.params[n], b.params[n], atol=1e-5) for n in a.params)
    one, other = weighed._predictive(X), repeated._predictive(X)
    assert torch.allclose(one.mean, other.mean, rtol=1e-4, atol=1e-4)
    found, wanted = weighed.evaluate(X, y, sample_weight=COUNTS), repeated.evaluate(X[ROWS], y[ROWS])
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
    training = Training(lr=0.1, optimizer=SGD(momentum=0.9), batch_size=50)
    weights = torch.where(wrong, 1e-6, 1.0)
    build = lambda: models.mlp(2, 2, hidden=(32,), dropout=0.1)  # noqa: E731  # a factory in one line
    fitted = choral.fit(
        build,
        (x, torch.where(wrong, 1 - y, y)),
        make(method, budget=24, training=training),
        sample_weight=weights,
    )
    assert fitted.evaluate(x, y)["accuracy"] > 0.85


def test_weights_come_as_a_third_part_for_datasets_and_in_run_folders(tmp_path):
    y = (X[:, 0] > 0).long()
    recipe = make("deep_ensemble", budget=2, members=2)
    build = lambda: models.mlp(3, 2, hidden=(6,))  # noqa: E731  # a factory in one line
    first = choral.fit(build, (X, y, COUNTS), recipe, run_dir=tmp_path, compute=choral.Compute(executor="sequential"))
    for again in (
        choral.fit(build, (X, y), recipe, sample_weight=COUNTS.numpy(), compute=choral.Compute(executor="sequential")),
        choral.fit(
            build, TensorDataset(X, y), recipe, sample_weight=COUNTS, compute=choral.Compute(executor="sequential")
        ),
    ):
        assert torch.equal(first.outputs(X), again.outputs(X))
    with pytest.raises(choral.ChoralError, match="data was"):
        choral.fit(build, (X, y, COUNTS + 1), recipe, run_dir=tmp_path, compute=choral.Compute(executor="sequential"))


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
        choral.fit(lambda: models.mlp(3, 2), (X, (X[:, 0] > 0).long()), make("single", budget=1), sample_weight=weights)


def pairs(items):
    """A collate function that drops the weights."""
    return torch.utils.data.default_collate([(x, y) for x, y, _ in items])


class Items(torch.utils.data.Dataset):
    """Items (x, y, weight), or dicts of them."""

    def __init__(self, named=False, rows=None):
        self.named, self.rows = named, range(24) if rows is None else rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index]
        x, y, weight = X[row], int(X[row, 0] > 0), float(COUNTS[row])
        return {"input": x, "label": y, "w": weight} if self.named else (x, y, weight)


@pytest.mark.parametrize("kind", ["triples", "dicts", "loader", "own batches", "tensors", "arrays"])
def test_weights_that_items_bring_along_are_those_given_beside_them(kind):
    y = (X[:, 0] > 0).long()
    recipe = make("single", budget=2, training=Training(lr=0.1, optimizer="sgd", batch_size=8))
    expected = choral.fit(lambda: nn.Linear(3, 2), (X, y), recipe, sample_weight=COUNTS, validation=(X, y, COUNTS))
    data, options = {
        "triples": (Items(), {"sample_weight": 2}),
        "dicts": (Items(named=True), {"sample_weight": "w", "target": "label"}),
        "loader": (torch.utils.data.DataLoader(Items(), batch_size=8, shuffle=True), {"sample_weight": 2}),
        "own batches": (torch.utils.data.DataLoader(Items(), batch_size=8, collate_fn=pairs), {"sample_weight": 2}),
        "tensors": (TensorDataset(X, y, COUNTS), {"sample_weight": 2}),
        "arrays": ({"input": X, "label": y, "w": COUNTS}, {"sample_weight": "w", "target": "label"}),
    }[kind]
    found = choral.fit(lambda: nn.Linear(3, 2), data, recipe, validation=data, **options)
    assert torch.equal(found.predict(X if "target" not in options else {"input": X}).probs, expected.predict(X).probs)


@pytest.mark.parametrize(
    ("data", "weights", "said"),
    [
        (Items(), None, r"\(x, y, weight\) together with fit\(..., sample_weight=2\)"),
        (
            Items(),
            1,
            r"sample_weight=1 is not a part of an item, which is a tuple of 3 parts; 2 takes items",
        ),
        (TensorDataset(X, X[:, 0]), 2, r"sample_weight=2 is not a part of an item, which is a tuple of 2 parts"),
        (
            Items(named=True),
            "W",
            r"sample_weight='W' is not a part of an item, which is a dict with 'input', 'label', 'w'",
        ),
        ((X, X[:, 0]), "w", r"sample_weight='w' names a part of an item, but data is a tuple"),
        ((X, X[:, 0], COUNTS), COUNTS, "data brings weights as its third part, and weights is given too"),
    ],
)
def test_weights_that_items_do_not_have_are_refused(data, weights, said):
    with pytest.raises(InputError, match=said):
        choral.fit(
            lambda: nn.Linear(3, 1), data, "single", sample_weight=weights, target="label" if weights == "W" else None
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_judging_by_weights_is_judging_repeated_rows(name):
    y, outputs, likelihood = TASKS[name]
    recipe = make("deep_ensemble", members=2, budget=2)
    ensemble = choral.fit(lambda: nn.Linear(3, outputs), (X, y), recipe, likelihood=likelihood)
    repeated, weighted = ensemble.evaluate(X[ROWS], y[ROWS]), ensemble.evaluate(X, y, sample_weight=COUNTS)
    assert "nll" in weighted
    for key, value in weighted.items():
        if "coverage" not in key or name != "counts":  # whose ranks are drawn
            assert value == pytest.approx(repeated[key], rel=1e-6), key
