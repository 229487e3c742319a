from typing import Any

import pytest
import torch
from torch import nn

from choral.layers.bayesian.rank_one_gaussian import MemberBatchNorm

CASES = [
    (nn.BatchNorm1d(3), (6, 3)),
    (nn.BatchNorm1d(3, momentum=None), (6, 3, 4)),
    (nn.BatchNorm2d(3, affine=False, eps=0.1), (6, 3, 4, 2)),
    (nn.BatchNorm3d(3, track_running_stats=False), (6, 3, 2, 2, 2)),
]


@pytest.mark.parametrize(("plain", "shape"), CASES, ids=lambda v: str(v))
def test_each_member_behaves_as_its_own_batch_norm(plain, shape):
    if plain.affine:
        nn.init.normal_(plain.weight)
    joint = MemberBatchNorm(plain, members=3)
    alone: list[Any] = [joint.plain(i) for i in range(3)]
    for step in range(3):
        x = torch.randn(3, *shape) * torch.tensor([1.0, 5.0, 0.2]).view(3, *[1] * len(shape)) + step
        y = joint(x.flatten(0, 1)).unflatten(0, (3, -1))
        for i in range(3):
            torch.testing.assert_close(y[i], alone[i](x[i]))
    joint.eval()
    y = joint(x.flatten(0, 1)).unflatten(0, (3, -1))
    for i in range(3):
        torch.testing.assert_close(y[i], alone[i].eval()(x[i]))
        assert repr(joint.plain(i)) == repr(plain)
        for name, value in joint.plain(i).state_dict().items():
            torch.testing.assert_close(value, alone[i].state_dict()[name])
