"""Networks that compute parts again in the backward pass train to the bytes of those that keep their activations."""

import threading
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import choral
from choral.base import draws
from choral.base.draws import replayed
from choral.plan import SGD
from choral.recipes import make
from choral.recipes.training import Training

METHODS = [
    "single",
    "deep_ensemble",
    "packed",
    "batch_ensemble",
    "masksembles",
    "treenet",
    "emp",
    "mimo",
    "bnn",
    "ssbnn",
    "rank1_bnn",
]
METHODS += ["mc_dropout", "drop_connect", "prune_and_tune", "sequential_anchored", "tabm", "swag"]


class Recomputing(nn.Module):
    """A perceptron whose middle, with layers and functions that draw, may be computed again."""

    def __init__(self, how: bool | None):
        super().__init__()
        self.how = how
        self.first = nn.Linear(6, 16)
        self.middle = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 16), nn.Dropout(0.2))
        self.last = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.first(x))
        for _ in range(2):  # the same layers at two places of the stream
            hidden = (
                self.middle(hidden) if self.how is None else checkpoint(self.middle, hidden, use_reentrant=self.how)
            )
        return self.last(nn.functional.dropout(hidden, 0.1, self.training))


def trained(method: str, how: bool | None, x: Tensor, y: Tensor) -> choral.Ensemble:
    training = Training(lr=0.1, optimizer=SGD(momentum=0.9), batch_size=16)
    recipe = make(method, budget=8, training=training)
    return choral.fit(lambda: Recomputing(how), (x, y), recipe, compute=choral.Compute(executor="sequential"))


QUICK = ("single", "packed", "bnn")


def sometimes(methods: list[str]) -> list[object]:
    return [pytest.param(m, marks=() if m in QUICK else pytest.mark.full) for m in methods]


@pytest.mark.parametrize("method", sometimes(METHODS))
def test_members_are_those_of_a_network_that_keeps_its_activations(method: str) -> None:
    x, y = torch.randn(48, 6), torch.randint(3, (48,))
    plain = trained(method, None, x, y).outputs(x)
    for reentrant in (False,):
        assert torch.equal(trained(method, reentrant, x, y).outputs(x), plain)


def test_gradients_are_those_of_finite_differences_with_the_same_draws() -> None:
    network = Recomputing(how=False).double()
    x = torch.randn(5, 6, dtype=torch.float64)

    def loss() -> Tensor:
        with draws.keyed(3, step=7):
            return network(x).square().sum()

    loss().backward()  # when the block has ended
    weight = network.get_parameter("middle.0.weight")
    found = weight.grad
    assert found is not None
    with torch.no_grad():
        for place in ((0, 0), (3, 5)):
            weight[place] += 1e-6
            above = loss()
            weight[place] -= 2e-6
            below = loss()
            weight[place] += 1e-6
            assert float(found[place]) == pytest.approx(float((above - below) / 2e-6), rel=1e-5, abs=1e-7)


def test_a_second_run_in_another_thread_draws_the_same() -> None:
    found: list[Tensor] = []

    def draw() -> None:
        found.append(nn.functional.dropout(torch.ones(64)))

    with draws.keyed(1):
        draw()
        again = replayed(draw)
        draw()
        thread = threading.Thread(target=again)
        thread.start()
        thread.join()
    again()
    assert torch.equal(found[1], found[2])
    assert torch.equal(found[1], found[3])
    assert not torch.equal(found[0], found[1])


def test_outside_of_a_block_torch_decides() -> None:
    assert replayed(torch.relu) is torch.relu
    network = Recomputing(how=True)
    torch.manual_seed(0)
    network(torch.randn(4, 6).requires_grad_()).sum().backward()
    assert network.get_parameter("middle.0.weight").grad is not None
    with pytest.raises(RuntimeError, match="use_reentrant=True"):
        torch.autograd.grad(network(torch.randn(4, 6).requires_grad_()).sum(), [network.first.weight])


class Images(nn.Module):
    """Convolutions of several channels with statistics, computed again."""

    def __init__(self, again: bool):
        super().__init__()
        self.again = again
        self.first, self.norm = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8, momentum=None)
        self.second, self.last = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        def part(x: Tensor) -> Tensor:
            return nn.functional.dropout2d(torch.relu(self.second(x)), 0.2, self.training)

        x = torch.relu(self.norm(self.first(x)))
        x = checkpoint(part, x, use_reentrant=False) if self.again else part(x)
        out: Tensor = self.last(x.mean((2, 3)))
        return out


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", sometimes(["packed", "batch_ensemble", "masksembles", "emp", "mimo", "rank1_bnn", "ssbnn"])
)
def test_so_are_those_of_convolutions_run_member_by_member(method: str) -> None:
    x, y = torch.randn(24, 3, 8, 8), torch.randint(3, (24,))
    recipe = make(method, budget=3, training=Training(lr=0.05, optimizer=SGD(momentum=0.9), batch_size=8))
    plain, again = (
        choral.fit(partial(Images, how), (x, y), recipe, compute=choral.Compute(executor="sequential"))
        for how in (False, True)
    )
    assert torch.equal(plain.outputs(x), again.outputs(x))
