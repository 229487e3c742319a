"""Networks whose forward code does more than compute: predictions are those of the network called by hand."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from choral import Compute
from choral.ensemble.ensemble import Ensemble
from choral.fit import fit
from choral.recipes import make

X = torch.randn(48, 6, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


class Ahead(nn.Module):
    """Does something to its input, then reads it."""

    def __init__(self, doing) -> None:
        super().__init__()
        self.doing, self.out = doing, nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.doing(x))


def counted(x: Tensor) -> Tensor:
    return torch.stack([row * row[row > 0].numel() for row in x])


def clamped(x: Tensor) -> Tensor:
    x = x.clone()
    x[x > 1] = 1
    y = x.clone()
    y[x[:, 0] > 0] = y[x[:, 0] > 0] * 0.1
    return y


def branching(x: Tensor) -> Tensor:
    return x * 2 if len(x) > 4 and x[0, 0] > 0 else x


DETERMINISTIC = {
    "writes into its input": lambda x: x.sub_(1.0),
    "reads values out": lambda x: x / torch.tensor([max(map(abs, row)) for row in x.tolist()])[:, None],
    "reads an array": lambda x: x * torch.from_numpy(x.numpy().max(1, keepdims=True).copy()),
    "counts by value": counted,
    "sizes by value": clamped,
    "takes a branch by value": branching,
    "takes a mean over rows": lambda x: x - x.mean(0),
}
DRAWING = {
    "gamma": lambda x: x * torch.distributions.Gamma(torch.ones_like(x), 1.0).rsample(),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "poisson": lambda x: x + torch.poisson(torch.ones_like(x)),
    "dropout": lambda x: F.dropout(x, 0.3, training=True),
    "gumbel": lambda x: F.gumbel_softmax(x, hard=True),
    "rand": lambda x: x + torch.rand(x.shape),
}


def trained(doing, name: str = "deep_ensemble") -> Ensemble:
    options = {"epochs": 4, "members": 2} if name == "deep_ensemble" else {"epochs": 2}
    return fit(lambda: Ahead(doing), (X, Y), make(name, **options), compute=Compute(executor="sequential"))


@pytest.mark.parametrize("method", ["single", "deep_ensemble"])
@pytest.mark.parametrize("name", DETERMINISTIC)
def test_predictions_are_those_of_the_members_called_by_hand(name: str, method: str) -> None:
    ensemble = trained(DETERMINISTIC[name], method)
    for x in (X[:4], X[4:8], X[8:11], X[11:12], X[12:40], X[:4]):
        given = x.clone()
        with torch.no_grad():
            alone = torch.stack([ensemble.member(i)(x.clone()) for i in range(ensemble.members)])
        torch.testing.assert_close(ensemble.outputs(given), alone, atol=1e-5, rtol=1e-4)
        assert torch.equal(given, x)


@pytest.mark.parametrize("rows", [X[:1], X[:1].expand(2, -1)])
def test_means_over_rows_are_noticed_when_the_first_rows_do_not_show_them(rows: Tensor) -> None:
    ensemble = trained(DETERMINISTIC["takes a mean over rows"])
    ensemble.outputs(rows)
    with torch.no_grad():
        alone = torch.stack([ensemble.member(i)(X[8:11]) for i in range(2)])
    torch.testing.assert_close(ensemble.outputs(X[8:11]), alone, atol=1e-5, rtol=1e-4)


class Coded(nn.Module):
    """Reads the number of a category from a column of real numbers, as networks for tables do."""

    def __init__(self) -> None:
        super().__init__()
        self.codes, self.out = nn.Embedding(4, 3), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.cat([self.codes(x[:, 0].long()), x[:, 1:]], 1))


def test_values_of_our_own_making_never_reach_the_user() -> None:
    x = torch.cat([torch.full((48, 1), 3.0), X[:, 1:]], 1)
    ensemble = fit(Coded, (x, Y), make("deep_ensemble", budget=4, members=2), compute=Compute(executor="sequential"))
    with torch.no_grad():
        alone = torch.stack([ensemble.member(i)(x[:5]) for i in range(2)])
    for rows in (5, 1, 5):
        torch.testing.assert_close(ensemble.outputs(x[:rows]), alone[:, :rows], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", DRAWING)
def test_draws_of_forward_code_follow_the_key_and_leave_the_program_alone(name: str) -> None:
    before = torch.random.get_rng_state()
    ensemble = trained(DRAWING[name])
    again = trained(DRAWING[name])
    first = ensemble.outputs(X[:7])
    assert torch.equal(first, ensemble.outputs(X[:7]))
    assert torch.equal(first, again.outputs(X[:7]))
    assert torch.equal(before, torch.random.get_rng_state())


class Averaging(nn.Module):
    """Moves a buffer whenever it is called, in evaluation too."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(6, 2)
        self.register_buffer("seen", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        self.seen.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return self.out(x - self.seen)


def test_a_network_that_remembers_forgets_between_predictions() -> None:
    ensemble = fit(
        Averaging, (X, Y), make("deep_ensemble", budget=4, members=2), compute=Compute(executor="sequential")
    )
    first = ensemble.outputs(X[:5])
    assert torch.equal(first, ensemble.outputs(X[:5]))
    with torch.no_grad():
        alone = torch.stack([ensemble.member(i)(X[:5]) for i in range(2)])
    torch.testing.assert_close(first, alone)


@pytest.mark.parametrize("name", ["single", "deep_ensemble", "packed", "mc_dropout", "bnn"])
def test_no_rows_give_no_rows_whenever_they_are_asked_for(name: str) -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))

    ensemble = fit(build, (X, Y), make(name, budget=4))
    shapes = {tuple(ensemble.outputs(x).shape) for x in (X[:0], X[:3][:0])}
    ensemble.outputs(X)
    shapes.add(tuple(ensemble.outputs(X[:0]).shape))
    assert {shape[1:] for shape in shapes} == {(0, 2)}
    assert len(shapes) == 1


class Twice(nn.Module):
    """One layer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.out = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 2)
        self.again = self.inner

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.relu(self.again(F.relu(self.inner(F.relu(self.first(x)))))))


class Tied(Twice):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.again = nn.Linear(8, 8)
        self.again.weight = self.inner.weight


@pytest.mark.parametrize("build", [Twice, Tied])
def test_layers_of_two_names_and_tied_weights_train_alike_under_both_executors(build) -> None:
    recipe = make("deep_ensemble", budget=4, members=2)
    one, many, auto = (
        fit(build, (X, Y), recipe, compute=Compute(executor=e)) for e in ("sequential", "vectorized", "auto")
    )
    for a, b, c in zip(one.states(), many.states(), auto.states()):
        for n in a.params:
            torch.testing.assert_close(a.params[n], b.params[n], atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(a.params[n], c.params[n], atol=1e-5, rtol=1e-4)
    with torch.no_grad():
        alone = torch.stack([many.member(i)(X[:5]) for i in range(2)])
    torch.testing.assert_close(many.outputs(X[:5]), alone, atol=1e-5, rtol=1e-4)
