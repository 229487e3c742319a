import pytest
import torch

from choral.base.errors import InputError
from choral.plan import Cosine, Linear, OneCycle, Steps


def test_one_cycle_is_the_two_phase_cosine_of_torch():
    steps = 100
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    theirs = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        max_lr=0.1,
        total_steps=steps,
        pct_start=0.1,
        div_factor=100,
        final_div_factor=1e4,
        cycle_momentum=False,
    )
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step()
    ours = OneCycle(0.1, start=0.001, end=1e-7, warm=0.1)
    mine = [ours.rate(s, steps) for s in range(steps)]
    assert mine[0] == pytest.approx(0.001)
    assert mine[-1] == pytest.approx(1e-7)
    # torch reaches the peak at step pct_start * steps - 1, we at pct_start * (steps - 1): one step of the steep rise apart
    assert max(abs(a - b) for a, b in zip(mine, rates)) < 0.018


def test_half_a_cosine():
    assert Cosine(0.1).rate(50, 100) == pytest.approx(0.05)


def test_steps_and_linear_pieces():
    assert [Steps(1.0, milestones=(0.25,), factor=0.5).rate(s, 4) for s in range(4)] == [1.0, 0.5, 0.5, 0.5]
    drop = Linear(((0.0, 0.1), (0.5, 0.1), (0.9, 0.001)))
    assert [drop.at(p) for p in (0, 0.5, 0.7, 0.9, 1)] == pytest.approx([0.1, 0.1, 0.0505, 0.001, 0.001])
    with pytest.raises(InputError, match="rising order"):
        Linear(((0.5, 1.0), (0.1, 2.0)))
