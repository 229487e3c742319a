import copy
from typing import Any

import pytest
import torch
from torch import nn

from choral.base.errors import ConversionError, InputError
from choral.layers.convert import layers_of, swap


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(3, 4), nn.ModuleDict({"a-b": nn.Linear(4, 4)}), nn.ReLU())
        self.shared = nn.Linear(4, 4)
        self.again = self.shared
        self.twice = nn.Sequential(self.shared, nn.Linear(4, 2))
        self.tied = nn.Linear(4, 4, bias=False)
        self.tied.weight = self.shared.weight


def double(name, old):
    if not isinstance(old, nn.Linear):
        return None
    new = nn.Linear(old.in_features, old.out_features)
    new.weight = nn.Parameter(2 * old.weight.detach())
    return new


def test_every_layer_is_swapped_and_the_original_is_untouched():
    network = Nested()
    before = copy.deepcopy(network.state_dict())
    new: Any = swap(network, double)
    for (name, value), (other, old) in zip(new.state_dict().items(), network.state_dict().items()):
        assert name == other
        if name.endswith("weight"):
            torch.testing.assert_close(value, 2 * old)
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name])
    assert {id(m) for m in new.modules()}.isdisjoint({id(m) for m in network.modules()})
    assert {p.data_ptr() for p in new.parameters()}.isdisjoint({p.data_ptr() for p in network.parameters()})


def test_shared_modules_stay_shared_and_are_offered_once():
    seen = []

    def replace(name, old):
        seen.append(name)
        return double(name, old) if isinstance(old, nn.Linear) else None

    new: Any = swap(Nested(), replace)
    assert new.shared is new.again
    assert new.shared is new.twice[0]
    assert seen.count("shared") == 1
    assert "again" not in seen


def test_tied_parameters_stay_tied_when_left_alone():
    new: Any = swap(Nested(), lambda name, old: None)
    assert new.tied.weight is new.shared.weight


def test_mode_follows_each_replaced_module():
    network = Nested()
    network.trunk.eval()
    new: Any = swap(network, double)
    assert not new.trunk[0].training
    assert new.shared.training


def test_root_can_be_swapped():
    assert isinstance(swap(nn.Linear(2, 2), lambda n, o: nn.Identity()), nn.Identity)


def test_patterns_restrict_the_walk():
    seen = []
    swap(Nested(), lambda name, old: seen.append(name), include=("trunk.*",), exclude=("trunk.1",))
    assert seen == ["trunk.0", "trunk.2"]


def test_a_pattern_that_fits_nothing_names_the_layers():
    with pytest.raises(InputError, match=r"Nested.*'trunc\.0'.*shared.*Did you mean 'trunk\.0'"):
        swap(Nested(), lambda name, old: None, include=("trunc.0",))


def test_a_swapped_module_is_not_entered():
    seen = []

    def replace(name, old):
        seen.append(name)
        return nn.Identity() if name == "trunk" else None

    swap(Nested(), replace)
    assert not any(name.startswith("trunk.") for name in seen)


def test_attention_is_offered_whole():
    seen = []
    swap(nn.TransformerEncoderLayer(8, 2, 16), lambda name, old: seen.append(name))
    assert "self_attn" in seen
    assert not any(name.startswith("self_attn.") for name in seen)


def test_hooks_are_never_lost_silently():
    network = nn.Sequential(nn.Linear(2, 2))
    network[0].register_forward_hook(lambda *_: None)
    with pytest.raises(ConversionError, match=r"'0' .Linear. has hooks"):
        swap(network, double)


def test_layers_of_yields_each_layer_of_a_kind_once():
    names = [name for name, _ in layers_of(Nested(), (nn.Linear,)) if not name.startswith("trunk.")]
    assert names == ["shared", "twice.1", "tied"]
