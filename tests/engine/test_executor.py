"""What torch.func passes over when networks are trained stacked: seen before a stack is chosen, or kept."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import choral
from choral.base.errors import InputError
from choral.recipes import deep_ensemble
from choral.recipes.training import Training

G = torch.Generator().manual_seed(0)
X = torch.randn(40, 6, generator=G)
Y = (X[:, 0] > 0).long()
RATE, EPOCHS = 0.1, 6
PLAIN = Training(
    optimizer=torch.optim.SGD,
    lr=RATE,
    schedule="constant",
    batch_size=40,
)


def settled(network: nn.Module) -> nn.Module:
    """Return a network with the same weights in every call, so that a loop written by hand can begin from them."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in network.parameters():
            p.copy_(0.4 * torch.randn(p.shape, generator=generator))
    return network


def by_hand(build: Any, x: Tensor, y: Tensor) -> nn.Module:
    network = build().train()
    optimizer = torch.optim.SGD(network.parameters(), lr=RATE)
    for _ in range(EPOCHS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()
    return network.eval()


class Renormed(nn.Module):
    """An embedding that writes into its weight when it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(5, 8, max_norm=0.5), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.table((x.abs() * 2).long().clamp(max=4)).sum(1))
        return out


class Hooked(nn.Module):
    """Scales a gradient on its way."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.out = nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.body(x))
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: gradient * 0.1)
        out: Tensor = self.out(hidden)
        return out


def backwards() -> nn.Module:
    network = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    network[1].register_full_backward_hook(lambda *given: (given[1][0] * 0.1,))  # type: ignore[index]  # a tuple
    return network


@pytest.mark.parametrize("build", [Renormed, Hooked, backwards])
def test_what_stacks_cannot_do_is_trained_one_by_one_or_refused(build):
    def one() -> nn.Module:
        return settled(build())

    recipe = deep_ensemble(members=4, budget=4 * EPOCHS, training=PLAIN)
    expected = by_hand(one, X, Y)(X)
    found = choral.fit(one, (X, Y), recipe)
    for outputs in found.outputs(X):
        assert torch.allclose(outputs, expected, atol=1e-5)
    with pytest.raises(InputError, match="executor='sequential'"):
        choral.fit(one, (X, Y), recipe, compute=choral.Compute(executor="vectorized"))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(20, 8, padding_idx=0), nn.Linear(8, 2)

    def forward(self, words: Tensor) -> Tensor:
        out: Tensor = self.out(self.table(words).mean(1))
        return out


@pytest.mark.parametrize("first_padded", [0, 30])
@pytest.mark.parametrize("executor", ["auto", "sequential", "vectorized"])
def test_padding_is_not_trained_in_any_member(executor, first_padded):
    words = torch.randint(1, 20, (60, 7), generator=torch.Generator().manual_seed(1))
    words[first_padded:, 4:] = 0
    y = (words.sum(1) > words.sum(1).median()).long()

    def one() -> nn.Module:
        network = settled(Words())
        with torch.no_grad():
            network.get_parameter("table.weight")[0] = 0
        return network

    training = replace(PLAIN, batch_size=60)
    recipe = deep_ensemble(members=3, budget=3 * EPOCHS, training=training)
    found = choral.fit(one, (words, y), recipe, compute=choral.Compute(executor=executor))
    expected = by_hand(one, words, y)(words)
    for number, outputs in enumerate(found.outputs(words)):
        assert float(found.member(number).get_parameter("table.weight")[0].detach().abs().max()) == 0.0
        assert torch.allclose(outputs, expected, atol=1e-5)
