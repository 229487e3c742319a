import torch
from torch import nn

from choral.layers.packed.layers import member_norm


def test_each_member_has_its_own_statistics_and_shares_the_affine():
    torch.manual_seed(0)
    plain = nn.BatchNorm2d(4)
    nn.init.normal_(plain.weight)
    norm = member_norm(plain, members=3)
    assert norm is not None
    x = torch.randn(3, 5, 4, 2, 2) * torch.tensor([1.0, 2.0, 3.0]).view(3, 1, 1, 1, 1)
    y = norm(x.flatten(0, 1)).unflatten(0, (3, 5))
    for i in range(3):
        alone = nn.BatchNorm2d(4)
        alone.load_state_dict(plain.state_dict())
        torch.testing.assert_close(y[i], alone(x[i]))
        torch.testing.assert_close(norm.running_var[i], alone.running_var)  # type: ignore[index, union-attr]  # a tensor or layer, as built above
    assert norm.weight.shape == (4,)


def test_norms_without_statistics_change_only_for_an_affine_of_their_own():
    assert member_norm(nn.LayerNorm(4), members=3) is None
    assert member_norm(nn.BatchNorm1d(4, track_running_stats=False), members=3) is None
    assert member_norm(nn.ReLU(), members=3) is None
    own = member_norm(nn.GroupNorm(2, 4), members=3, own_affine=True)
    assert own is not None
    assert own.weight.shape == (3, 4)
