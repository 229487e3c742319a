"""Operations are those of the arithmetic, whatever kernel computes it."""

import pytest
import torch
from torch import nn

from choral import models
from choral.data.sources import TensorSource
from choral.engine.flops import Flops
from choral.fit import make_task
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
    recipe = make("single", epochs=1)
    whole, grouped, none = (
        counted(lambda layer=layer: Convolution(layer), recipe)
        for layer in (kind(8, 8, 3, padding=1), kind(8, 8, 3, padding=1, groups=4), nn.Identity())
    )
    per_pass = 2 * 36 * 8 * 8 * 9  # multiplications and additions, by places, channels and filter
    assert whole - none == 3 * per_pass
    assert grouped - none == 3 * per_pass / 4


def test_a_batch_split_over_members_costs_one_network():
    plain = counted(lambda: models.mlp(8, 3, hidden=(16,)), make("single", epochs=1), X[:, :, 0, 0])
    split = counted(lambda: models.mlp(8, 3, hidden=(16,)), make("masksembles", epochs=1, members=4), X[:, :, 0, 0])
    assert split == pytest.approx(plain, rel=0.01)
