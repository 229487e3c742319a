from typing import Any

import pytest
import torch
from torch import nn

from choral.base.errors import ConversionError, InputError
from choral.base.values import from_dict
from choral.layers.bayesian.sampling import at_means
from choral.layers.keyed import keyed
from choral.structures.bayesian import Gaussian


class Block(nn.Module):
    """A nested network with a shared layer, a layer list, a skip and a layer of a kind that stays plain."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU())
        self.parts = nn.ModuleList([nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(2, 4)])
        self.up = nn.ConvTranspose2d(4, 4, 1)
        self.head = nn.ModuleDict({"norm": nn.LayerNorm(4), "fc": nn.Linear(4, 3)})

    def forward(self, x):
        x = self.stem(x)
        x = x + self.parts[1](self.parts[0](x))
        x = self.up(x).mean((2, 3))
        return self.head["fc"](self.head["norm"](x))


def network() -> Any:
    torch.manual_seed(0)
    return Block().double()


X = torch.randn(5, 1, 4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_a_nested_network_converts_and_the_original_is_unchanged():
    plain = network()
    before = {name: value.clone() for name, value in plain.state_dict().items()}
    joint: Any = Gaussian().convert(plain, torch.Generator())
    kinds = {name: type(module).__name__ for name, module in joint.named_modules()}
    assert kinds["stem.0"] == "GaussianLayer"
    assert kinds["stem.1"] == kinds["parts.1"] == kinds["head.norm"] == "GaussianNorm"
    assert kinds["head.fc"] == "GaussianLayer"
    assert kinds["up"] == "ConvTranspose2d"
    assert plain.state_dict().keys() == before.keys()
    assert all(torch.equal(plain.state_dict()[name], value) for name, value in before.items())
    assert {type(m) for m in plain.modules()}.isdisjoint({type(joint.stem[0]), type(joint.stem[1])})


def test_with_kept_weights_mean_mode_and_member_are_the_plain_network():
    plain, structure = network(), Gaussian(keep_weights=True, draws=3)
    joint = structure.convert(plain, torch.Generator())
    for training in (True, False):
        plain.train(training)
        with at_means():
            torch.testing.assert_close(joint.train(training)(X), plain(X))
    member = structure.member(joint, 0).eval()
    torch.testing.assert_close(member(X), plain(X))
    assert member.state_dict().keys() == plain.state_dict().keys()
    inputs, targets = structure.feed(X, torch.zeros(5))
    assert inputs is X
    assert targets is not None
    assert targets.shape == (1, 5)
    assert structure.unfold(joint(X)).shape == (1, 5, 3)


def test_draws_follow_the_key_in_evaluation_mode():
    joint = Gaussian(rho=-1.0).convert(network(), torch.Generator()).eval()

    def run(key, step):
        with keyed(key, step):
            return joint(X)

    assert torch.equal(run(1, 0), run(1, 0))
    assert not torch.allclose(run(1, 0), run(1, 1))
    assert not torch.allclose(run(1, 0), run(2, 0))


def test_the_generator_decides_fresh_means():
    plain, structure = network(), Gaussian()
    one, again, other = (structure.convert(plain, torch.Generator().manual_seed(s)).state_dict() for s in (1, 1, 2))
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["stem.0.weight_mean"], other["stem.0.weight_mean"])
    assert not torch.equal(one["stem.0.weight_mean"], plain.stem[0].weight)
    assert (one["stem.1.weight_mean"] == 1).all()


def test_layers_are_chosen_by_patterns_and_misuse_is_refused():
    joint: Any = Gaussian(exclude=("stem*",)).convert(network(), torch.Generator())
    assert type(joint.stem[0]) is nn.Conv2d
    assert type(joint.head["fc"]).__name__ == "GaussianLayer"
    with pytest.raises(ConversionError, match="Gaussian found no layer to convert"):
        Gaussian().convert(nn.Sequential(nn.ReLU()), torch.Generator())
    with pytest.raises(InputError, match="members"):
        Gaussian(members=2)
    assert from_dict(Gaussian(draws=7, exclude=("a",)).to_dict()) == Gaussian(draws=7, exclude=("a",))


def test_no_bayesian_parameter_takes_weight_decay():
    from fnmatch import fnmatchcase

    structure = Gaussian()
    joint = structure.convert(network(), torch.Generator())
    decayed = {n for n, _ in joint.named_parameters() if not any(fnmatchcase(n, p) for p in structure.undecayed)}
    assert decayed == {"up.weight", "up.bias"}
