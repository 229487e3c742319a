import itertools

import pytest
import torch
from tests.networks import generator
from tests.structures.independence import check_independence
from torch import nn

from choral import models
from choral.base.errors import ConversionError, InputError
from choral.layers.convert import swap
from choral.layers.joint.network import Joint
from choral.layers.packed.layers import PackedLayer
from choral.structures import BatchEnsemble, Independent, Masksembles, Packed, Patched
from choral.structures.independence import _sets


class Centered(nn.Module):
    """Takes the mean over the batch away between two layers, which mixes members folded into the batch."""

    def __init__(self):
        super().__init__()
        self.one = nn.Linear(4, 8)
        self.two = nn.Linear(8, 8)
        self.three = nn.Linear(8, 3)

    def forward(self, x):
        y = torch.relu(self.two(torch.relu(self.one(x))))
        return self.three(y - y.mean(0, keepdim=True))


def test_a_batch_operation_is_named_by_the_layer_before_it():
    structure = Packed(members=2)
    joint = structure.convert(Centered(), generator())
    assert isinstance(joint, Joint)
    x = torch.randn(6, 4)
    joint.kernel = "matmul"
    with pytest.raises(ConversionError, match=r"member 0.*members.*'two' \(PackedLayer\)"):
        check_independence(structure, joint, x)
    for kernel in ("loop", "grouped"):
        joint.kernel = kernel
        check_independence(structure, joint, x)


def test_a_shared_normalization_is_found():
    structure = BatchEnsemble(members=2, kernel="matmul")
    joint = structure.convert(models.mlp(4, 2, hidden=(8,), norm="batch"), generator())
    check_independence(structure, joint, torch.randn(6, 4))
    mixed = swap(joint, lambda _, m: nn.BatchNorm1d(8) if isinstance(m, PackedLayer) else None)
    with pytest.raises(ConversionError, match="'linear1'"):
        check_independence(structure, mixed, torch.randn(6, 4))


def test_mixed_inputs_are_found():
    structure = Masksembles(members=2, kernel="matmul")
    joint = structure.convert(Centered(), generator())
    with pytest.raises(ConversionError, match="depends on the inputs of another member"):
        check_independence(structure, joint, torch.randn(6, 4))


class Leaking(nn.Module):
    """Adds what one member says to what another does."""

    def __init__(self, source, target):
        super().__init__()
        self.source, self.target = source, target

    def forward(self, y):
        spilt = torch.zeros_like(y)
        spilt[self.target] = y[self.source]
        return y + spilt


@pytest.mark.parametrize(("source", "target"), [(11, 37), (37, 11), (62, 63), (0, 1)])
def test_two_mixed_members_of_many_are_found_in_few_passes(source, target, monkeypatch):
    structure = Packed(members=64)
    joint = structure.convert(models.mlp(4, 2, hidden=(8,)), generator())
    grad, passes = torch.autograd.grad, []
    monkeypatch.setattr(torch.autograd, "grad", lambda *a, **k: passes.append(a) or grad(*a, **k))
    check_independence(structure, joint, torch.randn(6, 4))
    assert len(passes) == 12
    leak, unfold = Leaking(source, target), Packed.unfold
    monkeypatch.setattr(Packed, "unfold", lambda self, outputs: leak(unfold(self, outputs)))
    with pytest.raises(ConversionError, match=f"member {target} depends on weights of other members.*'output'"):
        check_independence(structure, joint, torch.randn(6, 4))


@pytest.mark.parametrize("members", [2, 3, 4, 5, 6, 7, 20, 21])
def test_of_any_two_members_each_is_looked_at_without_the_other(members):
    sets = _sets(members)
    for i, j in itertools.permutations(range(members), 2):
        assert any(i in held and j not in held for held in sets)


def test_nothing_is_changed():
    structure = Packed(members=2)
    joint = structure.convert(models.mlp(4, 2, hidden=(8,), norm="batch", dropout=0.5), generator()).eval()
    before = {n: t.clone() for n, t in joint.state_dict().items()}
    state = torch.random.get_rng_state()
    x = torch.ones(6, 4)
    check_independence(structure, joint, x)
    assert all(torch.equal(t, before[n]) for n, t in joint.state_dict().items())
    assert not joint.training
    assert all(p.grad is None for p in joint.parameters())
    assert torch.equal(state, torch.random.get_rng_state())
    assert not any(m._forward_pre_hooks for m in joint.modules())


def test_a_width_stated_as_a_number_is_explained_with_the_report():
    class Stated(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.head = nn.Conv2d(1, 8, 3), nn.Linear(32, 2)

        def forward(self, x):
            return self.head(self.conv(x).reshape(-1, 32))

    structure = Packed(members=2, width=1)
    with pytest.raises(
        ConversionError, match=r"(?s)cannot run on this data.*states a width as a number.*Conv2d +1 -> 8"
    ):
        check_independence(structure, structure.convert(Stated(), generator()), torch.randn(4, 1, 4, 4))


def test_single_networks_have_nothing_to_check():
    structure = Patched()
    check_independence(structure, structure.convert(models.mlp(4, 2), generator()), torch.randn(4, 4))


def test_facts_of_a_structure_are_not_arguments():
    with pytest.raises(InputError, match="members"):
        Independent(members=3)
    with pytest.raises(InputError, match="undecayed"):
        BatchEnsemble(undecayed=())
    with pytest.raises(InputError, match="draws"):
        Packed(draws=3)
