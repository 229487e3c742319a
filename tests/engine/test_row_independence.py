"""A row's outputs are its member's own and do not depend on how many rows are asked for, whatever a network normalizes over."""

import math

import pytest
import torch
from torch import Tensor, nn

import choral
from choral.plan import Adam
from choral.recipes import METHODS, make
from choral.recipes.training import Training

ROWS = (1, 2, 11, 12, 31, 200, 1500)
X = torch.randn(1500, 12, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


class Ghost(nn.Module):
    """Batch normalization over chunks of the batch, as pytorch-tabnet has it."""

    def __init__(self, size: int = 8):
        super().__init__()
        self.norm, self.size = nn.BatchNorm1d(4), size

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.norm(part) for part in x.chunk(math.ceil(len(x) / self.size))])


NORMS = {
    "instance 1d": lambda: nn.InstanceNorm1d(4),
    "instance 1d, affine": lambda: nn.InstanceNorm1d(4, affine=True),
    "instance 2d": lambda: nn.InstanceNorm2d(4),
    "instance 2d, affine": lambda: nn.InstanceNorm2d(4, affine=True),
    "group": lambda: nn.GroupNorm(2, 4),
    "layer": lambda: nn.LayerNorm(6),
    "batch": lambda: nn.BatchNorm1d(4),
    "ghost": Ghost,
    "response": lambda: nn.LocalResponseNorm(2),
}
REFUSED = {("rank1_bnn", "ghost")}  # its members always lie one after the other on the batch axis


def network(norm: str) -> nn.Module:
    sizes = (4, 2, 3) if "2d" in norm else (4, 6)
    return nn.Sequential(
        nn.Linear(12, 24), nn.Unflatten(1, sizes), NORMS[norm](), nn.Flatten(), nn.ReLU(), nn.Linear(24, 2)
    )


def check(method: str, norm: str) -> None:
    several = "members" in METHODS[method].options and method not in ("single", "swa")
    members = 8 if method in ("deep_ensemble", "anchored") else 2 if several else None
    training = Training(optimizer=Adam(), lr=1e-3, batch_size=24)
    options = {"draws": 3} if "draws" in METHODS[method].options else {}
    recipe = make(method, budget=28 if method == "fge" else 8, members=members, training=training, **options)
    try:
        ensemble = choral.fit(lambda: network(norm), (X[:48], Y[:48]), recipe)
    except choral.ChoralError:
        assert (method, norm) in REFUSED
        return
    assert (method, norm) not in REFUSED
    parts = torch.cat([ensemble.outputs(x) for x in X.split(150)], 1)
    if not options:
        own = torch.stack([ensemble.member(i)(X).detach() for i in range(len(ensemble))])
        torch.testing.assert_close(parts, own, atol=1e-4, rtol=1e-3)
    for rows in (*ROWS, 2):
        torch.testing.assert_close(ensemble.outputs(X[:rows]), parts[:, :rows], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("method", METHODS)
def test_rows_do_not_depend_on_their_number(method: str) -> None:
    """Three norms for each method, in turn."""
    start = 4 * list(METHODS).index(method)
    for step in (0, 3, 7):
        check(method, list(NORMS)[(start + step) % len(NORMS)])


@pytest.mark.full
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("method", METHODS)
def test_rows_do_not_depend_on_their_number_with_any_norm(method: str, norm: str) -> None:
    check(method, norm)


@pytest.mark.parametrize("rows", [12, 20, 40, 90])
@pytest.mark.parametrize("method", ["packed", "batch_ensemble", "masksembles", "tabm"])
def test_chunks_of_a_batch_are_those_of_each_member(method: str, rows: int) -> None:
    """Members folded into the batch would share chunks."""

    def states(kernel: str) -> Tensor:
        training = Training(optimizer=Adam(), lr=1e-2, batch_size=rows)
        recipe = make(method, budget=4, members=3, kernel=kernel, training=training)
        ensemble = choral.fit(lambda: network("ghost"), (X[:96], Y[:96]), recipe)
        return torch.cat([t.flatten() for s in ensemble.states() for t in (s.params | s.buffers).values()])

    alone = states("loop")
    for kernel in ("auto", "matmul"):
        torch.testing.assert_close(states(kernel), alone, atol=1e-4, rtol=1e-3)


def test_a_network_that_cuts_batches_in_training_alone_has_members_of_its_own() -> None:
    class Cutting(Ghost):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) if self.training else self.norm(x)

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(12, 24), nn.Unflatten(1, (4, 6)), Cutting(), nn.Flatten(), nn.Linear(24, 2))

    def states(kernel: str) -> Tensor:
        recipe = make("packed", budget=1, members=3, kernel=kernel, training=Training(lr=1e-2, batch_size=24))
        found = choral.fit(build, (X[:48], Y[:48]), recipe)
        return torch.cat([t.flatten() for s in found.states() for t in (s.params | s.buffers).values()])

    torch.testing.assert_close(states("matmul"), states("loop"))
