"""What a plan costs is known before it runs, and what ran is counted by the weights that are kept."""

import pytest
import torch

from choral import Compute, models
from choral.data.sources import TensorSource
from choral.engine.task import make_task
from choral.fit import fit
from choral.masks import erk_densities
from choral.plan import SGD
from choral.preview import forecast, show
from choral.recipes import make
from choral.recipes.training import Training

G = torch.Generator().manual_seed(0)
IMAGES = torch.randn(32, 3, 16, 16, generator=G), torch.arange(32) % 3
QUICK = Training(lr=0.01, optimizer=SGD(), batch_size=16)
# multiplications and additions of LeNet (6, 16, 120, 84) for one image of 16 pixels, by layer: places, then weights
FORWARD = {
    "conv1": 2 * 144 * 6 * 75,
    "conv2": 2 * 4 * 16 * 150,
    "fc1": 2 * 16 * 120,
    "fc2": 2 * 120 * 84,
    "classifier": 2 * 84 * 3,
}


def lenet():
    return models.lenet("5", side=16, classes=3)


def training_operations(kept):
    """Of one image, with a share of each layer's weights kept; the images need no gradient."""
    return sum((2 if n == "conv1" else 3) * f * kept.get(n, 1.0) for n, f in FORWARD.items())


def expected(recipe, data=IMAGES, build=lenet):
    source = TensorSource(*data)
    return forecast(make_task(build, source, recipe), source, recipe.plan)


def test_pruned_members_count_what_they_keep():
    recipe = make("prune_and_tune", budget=20, members=6, training=QUICK)
    halves = dict.fromkeys(("conv1", "conv2", "fc1", "fc2"), 0.5)
    whole, half = training_operations({}), training_operations(halves)
    ahead = expected(recipe)
    assert ahead.train_flops == pytest.approx(32 * (14 * whole + 6 * half))
    assert ahead.predict_flops == pytest.approx(6 * sum(f * halves.get(n, 1.0) for n, f in FORWARD.items()))
    ran = fit(lenet, IMAGES, recipe)
    assert ran.info["counted"]["train_flops"] == pytest.approx(ahead.train_flops)
    assert ran.info["predict_flops"] == pytest.approx(ahead.predict_flops)
    assert ran.info["parameters"] == ahead.parameters == ran._parameters


def test_the_cost_column_of_the_paper_is_the_count_without_the_classifier():
    # (140 + 6 x 10 x 0.5) / 200 leaves out that the classifier stays whole
    whole = training_operations({})
    kept = training_operations(dict.fromkeys(FORWARD, 0.5))
    assert (140 * whole + 60 * kept) / (200 * whole) == pytest.approx(0.85)
    text = show(make("prune_and_tune", epochs=200, training="paper"), lenet, IMAGES)
    exact = (140 * whole + 60 * training_operations(dict.fromkeys(("conv1", "conv2", "fc1", "fc2"), 0.5))) / (
        200 * whole
    )
    assert exact > 0.85
    assert f"{exact:.4f} x the FLOPs of 200" in text


@pytest.mark.parametrize("name", ["dst", "edst"])
@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_dynamic_sparse_members_count_by_the_density_of_each_layer(name, executor):
    recipe = make(name, budget=9, members=3, interval=3, training=QUICK)
    shapes = {n: p.shape for n, p in lenet().named_parameters() if p.dim() > 1 and not n.startswith("classifier")}
    densities = {n.removesuffix(".weight"): d for n, d in erk_densities(shapes, sparsity=0.8).items()}
    each = training_operations(densities)
    assert len(set(densities.values())) == 4
    ahead = expected(recipe)
    assert ahead.train_flops == pytest.approx(32 * 9 * each)
    assert fit(lenet, IMAGES, recipe, compute=Compute(executor=executor)).info["counted"][
        "train_flops"
    ] == pytest.approx(32 * 9 * each)


def test_compacted_members_and_bagged_ones_cost_what_was_forecast():
    recipe = make("prune_and_tune", budget=6, members=2, unit="neuron", bagging=0.5, training=QUICK)
    ahead, ran = expected(recipe), fit(lenet, IMAGES, recipe)
    assert ran.info["counted"]["train_flops"] == pytest.approx(ahead.train_flops)
    assert ran.info["predict_flops"] == pytest.approx(ahead.predict_flops)
    whole = training_operations({})
    assert ahead.train_flops < (32 * 4 + 2 * 16 * 0.5) * whole  # half the neurons are less than half the products
