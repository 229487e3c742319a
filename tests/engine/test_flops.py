"""Operations are those of the arithmetic, whatever kernel computes it."""

import pytest
import torch
from torch import nn

from choral import models
from choral.data.sources import TensorSource
from choral.engine.flops import Flops
from choral.engine.task import make_task
from choral.recipes import make

X = torch.randn(40, 8, 6, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(40) % 3


def counted(build, recipe, x=X, y=Y):
    source = TensorSource(x, y)
    return Flops(make_task(build, source, recipe), source).train(None)


class Convolution(nn.Module):
    """One convolution behind another, so that the gradient of its input is needed too."""

    def __init__(self, layer):
        super().__init__()
        self.first, self.layer, self.out = nn.Conv2d(8, 8, 1), layer, nn.Linear(8, 3)

    def forward(self, x):
        return self.out(self.layer(self.first(x)).mean((2, 3)))


@pytest.mark.parametrize("kind", [nn.Conv2d, nn.ConvTranspose2d])
def test_a_grouped_convolution_costs_what_its_groups_cost(kind):
    recipe = make("single", budget=1)
    whole, grouped, none = (
        counted(lambda layer=layer: Convolution(layer), recipe)
        for layer in (kind(8, 8, 3, padding=1), kind(8, 8, 3, padding=1, groups=4), nn.Identity())
    )
    per_pass = 2 * 36 * 8 * 8 * 9  # multiplications and additions, by places, channels and filter
    assert whole - none == 3 * per_pass
    assert grouped - none == 3 * per_pass / 4


def test_a_batch_split_over_members_costs_one_network():
    plain = counted(lambda: models.mlp(8, 3, hidden=(16,)), make("single", budget=1), X[:, :, 0, 0])
    split = counted(lambda: models.mlp(8, 3, hidden=(16,)), make("masksembles", budget=1, members=4), X[:, :, 0, 0])
    assert split == pytest.approx(plain, rel=0.01)


def test_gradients_are_counted_where_the_layer_is_also_beside_a_shortcut():
    source = TensorSource(torch.randn(8, 3, 16, 16), torch.arange(8) % 3)
    flops = Flops(make_task(lambda: models.resnet_cifar(8, classes=3), source, make("single", budget=1)), source)
    state = flops.task.blueprint.fresh(0)

    def without(name):
        """What is saved when one weight is all masked."""
        gone = {name: torch.zeros_like(state.params[name], dtype=torch.bool)}
        masked = state.with_slots(mask=gone)
        return flops.train(None) - flops.train(masked), flops.predict(None) - flops.predict(masked)

    for name, places in [("conv1", 256), ("layer2.0.conv1", 64), ("layer2.0.downsample.0", 64), ("fc", 1)]:
        forward = 2 * places * state.params[f"{name}.weight"].numel()
        times = 2 if name == "conv1" else 3  # nobody asks for the gradient of the images
        assert without(f"{name}.weight") == pytest.approx((times * forward, forward))
    whole = {n: torch.zeros_like(p, dtype=torch.bool) for n, p in state.params.items()}
    assert flops.train(state.with_slots(mask=whole)) == pytest.approx(0)


def test_attention_counts_its_projections_by_weight_and_its_scores_in_full():
    source = TensorSource(torch.randn(8, 3, 8, 8), torch.arange(8) % 3)
    build = lambda: models.vit(8, patch=4, classes=3, width=16, depth=1, heads=2, hidden=32)  # noqa: E731  # a factory
    flops = Flops(make_task(build, source, make("single", budget=1)), source)
    state = flops.task.blueprint.fresh(0)
    for name, factor in [("in_proj_weight", 0.0), ("out_proj.weight", 0.5)]:
        full = f"blocks.0.attention.{name}"
        size = state.params[full].numel()
        mask = torch.zeros(size, dtype=torch.bool)
        mask[: int(factor * size)] = True
        masked = state.with_slots(mask={full: mask.view_as(state.params[full])})
        tokens = 4
        saved = flops.predict(None) - flops.predict(masked)
        assert saved == pytest.approx((1 - factor) * 2 * tokens * size)


class Steps(nn.Module):
    """Recurrent layers over four steps, both ways, and a classifier."""

    def __init__(self, kind):
        super().__init__()
        self.body, self.last = kind(3, 8, num_layers=2, bidirectional=True, batch_first=True), nn.Linear(16, 2)

    def forward(self, x):
        return self.last(self.body(x)[0][:, -1])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_count_every_step_by_every_weight_though_they_are_one_kernel(kind):
    source = TensorSource(torch.randn(8, 4, 3), torch.arange(8) % 2)
    flops = Flops(make_task(lambda: Steps(kind), source, make("single", budget=1)), source)
    state = flops.task.blueprint.fresh(0)
    sizes = {n: p.numel() for n, p in state.params.items() if p.dim() > 1}
    forward = {n: 2 * size * (1 if n == "last.weight" else 4) for n, size in sizes.items()}
    assert flops.predict(None) == sum(forward.values())
    assert 2.5 * sum(forward.values()) < flops.train(None) <= 3 * sum(forward.values())
    half = {n: torch.arange(p.numel()).view_as(p) % 2 == 0 for n, p in state.params.items() if "body.weight" in n}
    saved = flops.predict(None) - flops.predict(state.with_slots(mask=half))
    assert saved == pytest.approx(sum(forward[n] for n in half) / 2)
