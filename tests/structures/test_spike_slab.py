from typing import Any

import pytest
import torch
from torch import nn

from choral.base.errors import InputError
from choral.base.values import from_dict
from choral.layers.bayesian.sampling import at_means
from choral.objectives.kl import gate_keep
from choral.structures.bayesian import SpikeSlab


def network() -> Any:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
    head = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, 3))
    return nn.Sequential(body, nn.ModuleDict({"head": head})["head"])


def kinds(structure: SpikeSlab) -> list[str]:
    joint = structure.convert(network(), torch.Generator())
    return [type(m).__name__ for m in joint.modules() if type(m).__module__.startswith("choral")]


@pytest.mark.parametrize(
    ("structure", "expected"),
    [
        (SpikeSlab(), ["SpikeSlabLayer", "GaussianNorm", "SpikeSlabLayer", "GaussianLayer"]),
        (SpikeSlab(exclude=("0*",)), ["SpikeSlabLayer", "GaussianLayer"]),
    ],
    ids=repr,
)
def test_gates_go_to_convolutions_and_hidden_linear_layers(structure, expected):
    assert kinds(structure) == expected


def test_with_kept_weights_mean_mode_and_member_are_the_plain_network():
    plain, structure = network().eval(), SpikeSlab(keep_weights=True)
    joint: Any = structure.convert(plain, torch.Generator()).eval()
    x = torch.randn(5, 1, 4, 4)
    with at_means():
        torch.testing.assert_close(joint(x), plain(x))
    torch.testing.assert_close(structure.member(joint, 0)(x), plain(x))
    assert plain.state_dict().keys() == structure.member(joint, 0).state_dict().keys()


def test_a_member_has_exact_zeros_for_nodes_that_are_out():
    structure = SpikeSlab()
    joint: Any = structure.convert(network(), torch.Generator())
    with torch.no_grad():
        joint[0][0].gate_logit[1] = -2.0
    keep = gate_keep(dict(joint.named_parameters()), dict(joint.named_buffers()))
    assert keep.keys() == {"0.0", "1.1"}
    assert keep["0.0"].tolist() == [True, False, True, True]
    member: Any = structure.member(joint, 0)
    assert (member[0][0].weight[1] == 0).all()
    assert member[0][0].bias[1] == 0
    x = torch.randn(2, 1, 4, 4)
    with at_means():
        torch.testing.assert_close(member.eval()(x), joint.eval()(x))


def test_arguments_are_checked_and_survive_a_dict():
    with pytest.raises(InputError, match="nothing matches 'head'"):
        SpikeSlab(exclude=("head",)).convert(network(), torch.Generator())
    structure = SpikeSlab(gamma=0.9, exclude=("a",), draws=2)
    assert from_dict(structure.to_dict()) == structure
