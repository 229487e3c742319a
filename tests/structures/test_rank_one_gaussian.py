from typing import Any

import pytest
import torch
from torch import nn

from choral.base.errors import ConversionError, InputError
from choral.base.values import from_dict
from choral.layers.bayesian.sampling import at_means
from choral.layers.keyed import keyed
from choral.structures.bayesian import RankOneGaussian

MEMBERS = 3


def network() -> Any:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.GroupNorm(2, 4))
    return nn.Sequential(body, nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)).double()


X = torch.randn(5, 2, 4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def trained() -> tuple[RankOneGaussian, nn.Module]:
    """A joint network whose members differ everywhere they can."""
    structure = RankOneGaussian(members=MEMBERS)
    joint = structure.convert(network(), torch.Generator().manual_seed(2))
    with torch.no_grad():
        for p in joint.parameters():
            p.add_(0.1 * torch.randn_like(p))
        joint(torch.randn(MEMBERS * 7, 2, 4, 4, dtype=torch.float64))  # BatchNorm statistics
    return structure, joint


@pytest.mark.parametrize("training", [True, False])
def test_row_i_equals_member_i_run_alone(training):
    structure, joint = trained()
    inputs, _ = structure.feed(X, None)
    members = [structure.member(joint, i).train(training) for i in range(MEMBERS)]
    with at_means():
        rows = structure.unfold(joint.train(training)(inputs))
    assert rows.shape == (MEMBERS, 5, 3)
    for row, member in zip(rows, members):
        assert not any("choral" in type(m).__module__ for m in member.modules())
        torch.testing.assert_close(row, member(X))


def test_a_members_loss_has_no_gradient_in_another_members_own_parameters():
    structure, joint = trained()
    structure.unfold(joint.train()(structure.feed(X, None)[0]))[1].square().sum().backward()
    own = 0
    for name, p in joint.named_parameters():
        if ".norms." in name:
            own += 1
            assert (p.grad is not None and bool((p.grad != 0).any())) == (".norms.1." in name), name
        elif name.endswith(("_mean", "_rho", "bias")) and not name.startswith("0.3"):  # GroupNorm is shared
            own += 1
            assert p.grad is not None
            assert (p.grad[[0, 2]] == 0).all(), name
            assert (p.grad[1] != 0).any(), name
    assert own == 3 * 5 + 2 * 2 * MEMBERS


def test_one_member_is_the_plain_network_and_the_original_is_unchanged():
    plain = network()
    before = {name: value.clone() for name, value in plain.state_dict().items()}
    joint = RankOneGaussian(members=1).convert(plain, torch.Generator())
    for training in (True, False):
        with at_means():
            torch.testing.assert_close(joint.train(training)(X), plain.train(training)(X))
    fresh = network()
    RankOneGaussian().convert(fresh, torch.Generator())(RankOneGaussian().feed(X, None)[0])
    assert all(torch.equal(fresh.state_dict()[name], value) for name, value in before.items())


def test_targets_repeat_for_every_member_and_draws_follow_the_key():
    structure, joint = trained()
    inputs, targets = structure.feed(X, torch.arange(5))
    assert targets is not None
    assert targets.tolist() == [list(range(5))] * MEMBERS
    joint.eval()

    def run(step):
        with keyed(4, step):
            return joint(inputs)

    assert torch.equal(run(0), run(0))
    assert not torch.allclose(run(0), run(1))


def test_misuse_is_refused():
    with pytest.raises(InputError, match="members is 0"):
        RankOneGaussian(members=0)
    with pytest.raises(ConversionError, match="found no layer to convert"):
        RankOneGaussian().convert(nn.Sequential(nn.ReLU()), torch.Generator())
    joint: Any = RankOneGaussian(exclude=("4",)).convert(network(), torch.Generator())
    assert type(joint[4]) is nn.Linear
    assert from_dict(RankOneGaussian(members=2).to_dict()) == RankOneGaussian(members=2)
