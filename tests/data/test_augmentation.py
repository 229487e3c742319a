"""RandAugment: each operation against its definition, and its draws."""

import pytest
import torch
from torch import nn

from choral import Compute
from choral.data import RandAugment, inputs
from choral.data.inputs import _augmented
from choral.fit import fit
from choral.layers.keyed import keyed
from choral.recipes import make
from choral.testing.problems import CALM


def picture(seed=0, size=8):
    return torch.rand(1, 3, size, size, generator=torch.Generator().manual_seed(seed))


def under_one(number, strength, x):
    """The image under one operation, by its number."""
    return _augmented(x, torch.tensor([number]), torch.tensor([strength]))


SOLARIZED, POSTERIZED, STRETCHED, EQUALIZED = 3, 4, 5, 6
TURN, SHIFT_X, SHIFT_Y, NONE = 8, 11, 12, 13


def test_colors_are_their_closed_forms():
    x = picture()
    gray = x.mean(1, keepdim=True)
    expected = {
        0: (x * 1.45).clamp(0, 1),
        1: (gray.mean() + 1.45 * (x - gray.mean())).clamp(0, 1),
        2: (gray + 1.45 * (x - gray)).clamp(0, 1),
        SOLARIZED: torch.where(x < 0.5, x, 1 - x),
        STRETCHED: (x - x.amin((2, 3), keepdim=True)) / (x.amax((2, 3), keepdim=True) - x.amin((2, 3), keepdim=True)),
    }
    for number, wanted in expected.items():
        assert torch.allclose(under_one(number, 0.5, x), wanted, atol=1e-6), number
    levels = (under_one(POSTERIZED, 0.5, x) * 255).round()
    assert ((x * 255 - levels) >= -1e-3).all()
    assert (levels % 4 == 0).all()  # two of eight bits are gone
    equal = under_one(EQUALIZED, 0.5, x)[0].flatten(1).sort(-1).values
    assert torch.allclose(equal, (torch.arange(64) + 1) / 64 + torch.zeros(3, 1))
    assert torch.equal(under_one(STRETCHED, 0.5, torch.full_like(x, 0.3)), torch.full_like(x, 0.3))


def test_moves_shift_and_turn():
    x = picture()
    quarter = 0.5 / 0.9  # of half an image: two of eight pixels
    assert torch.allclose(under_one(SHIFT_X, quarter, x)[..., :-2], x[..., 2:])
    assert (under_one(SHIFT_X, quarter, x)[..., -2:] == 0).all()
    assert torch.allclose(under_one(SHIFT_Y, -quarter, x)[..., 2:, :], x[..., :-2, :])
    turned = under_one(TURN, 3.0, x)  # three times thirty degrees
    assert torch.allclose(turned, x.rot90(1, (2, 3))) or torch.allclose(turned, x.rot90(-1, (2, 3)))
    assert torch.equal(under_one(NONE, 0.5, x), x)


def test_each_image_draws_by_itself_and_the_key_decides():
    x = picture(size=32).expand(2000, -1, -1, -1)
    with keyed(1):
        one = RandAugment(count=1)(x)
    with keyed(1):
        assert torch.equal(one, RandAugment(count=1)(x))
    assert ((one == x).flatten(1).all(1).double().mean() - 1 / 14).abs() < 0.02
    # four operations have no sign, four colors and five moves have two, and one changes nothing
    assert len({tuple(row) for row in one.flatten(1).round(decimals=4).tolist()}) == 4 + 2 * (4 + 5) + 1
    assert inputs.prepare(x, (RandAugment(),), training=False) is x


@pytest.mark.filterwarnings("ignore")
def test_both_executors_see_the_same_images():
    x = (torch.rand(24, 3, 8, 8, generator=torch.Generator().manual_seed(1)) * 255).byte()
    y = torch.arange(24) % 2

    def build():
        return nn.Sequential(nn.Flatten(), nn.Linear(192, 2))

    members = [
        fit(build, (x, y), make("deep_ensemble", members=2, budget=4, training=CALM), transforms=(RandAugment(),), progress=False,
            compute=Compute(executor=executor)).states()
        for executor in ("sequential", "vectorized")
    ]  # fmt: skip
    for one, other in zip(*members, strict=True):
        assert torch.allclose(one.params["1.weight"], other.params["1.weight"], atol=1e-5)
