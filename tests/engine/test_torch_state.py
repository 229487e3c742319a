"""What the caller has switched on in torch changes nothing: fit, predict and losses give what they give outside."""

import copy
import warnings
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from choral import Compute, converted, models
from choral.base.errors import InputError
from choral.fit import fit
from choral.plan import SGD
from choral.recipes import make
from choral.recipes.training import Training

DRAW = torch.Generator().manual_seed(0)
X = torch.randn(24, 3, generator=DRAW)
Y = (X[:, 0] > 0).long()


@contextmanager
def default_device():
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


AROUND = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "device": lambda: torch.device("meta"),
    "default_device": default_device,
}
around = pytest.mark.parametrize("around", AROUND.values(), ids=AROUND.keys())


def build():
    return models.mlp(3, 2, hidden=(4,))


def trained(network=build, executor="sequential", precision="fp32"):
    training = Training(lr=0.1, optimizer=SGD(), batch_size=8)
    recipe = make("deep_ensemble", budget=2, members=2, training=training)
    return fit(network, (X, Y), recipe, compute=Compute(executor=executor, precision=precision))


def assert_same(one, other):
    for a, b in zip(one.states(), other.states(), strict=True):
        for name, value in (a.params | a.buffers).items():
            torch.testing.assert_close((b.params | b.buffers)[name], value, rtol=0, atol=0)


@around
@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_fit_learns_the_same_within_what_the_caller_switched_on(around, executor):
    plain = trained(executor=executor)
    with around():
        within = trained(executor=executor)
    assert_same(plain, within)
    assert torch.equal(plain.predict(X).probs, within.predict(X).probs)
    within.member(0)(X).sum().backward()


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_fit_in_bfloat16_learns_the_same_within_autocast(executor):
    plain = trained(executor=executor, precision="bf16")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        within = trained(executor=executor, precision="bf16")
    assert_same(plain, within)


@around
def test_predictions_are_the_same_within_what_the_caller_switched_on(around):
    ensemble = trained()
    fresh, expected = copy.deepcopy(ensemble), ensemble.predict(X).probs
    scores = ensemble.evaluate(X, Y)
    with around():
        first, again, evaluated = fresh.outputs(X), ensemble.outputs(X), fresh.evaluate(X, Y)
        member = fresh.member(1)
    assert first.dtype == torch.float32
    assert torch.equal(first, again)
    assert torch.equal(first, ensemble.outputs(X))
    assert evaluated == scores
    assert torch.equal(fresh.predict(X).probs, expected)
    member(X).sum().backward()


def test_the_loss_of_a_converted_network_is_the_same_within_autocast():
    with torch.no_grad():
        own = converted(build(), make("packed", members=2, budget=1), data=(X, Y))
    optimizer = torch.optim.SGD(own.network.parameters(), lr=0.1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for step in range(3):
            within = own.loss(X, Y, step=step)
            with torch.autocast("cpu", enabled=False):
                assert torch.equal(within, own.loss(X, Y, step=step))
            within.backward()
            optimizer.step()
            optimizer.zero_grad()


def test_data_and_networks_made_in_inference_mode_can_be_trained_on():
    plain = trained()
    given = trained(nn.Linear(3, 2))
    with torch.inference_mode():
        torch.manual_seed(0)
        x, y, network = X.clone(), Y.clone(), nn.Linear(3, 2)
        training = Training(lr=0.1, optimizer=SGD(), batch_size=8)
        recipe = make("deep_ensemble", budget=2, members=2, training=training)
        assert_same(plain, fit(build, (x, y), recipe, compute=Compute(executor="sequential")))
        assert_same(given, fit(network, (x, y), recipe, compute=Compute(executor="sequential")))


def test_the_default_type_of_numbers_is_the_type_of_networks():
    torch.set_default_dtype(torch.float64)
    try:
        ensemble = trained()
        assert ensemble.outputs(X).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.filterwarnings("ignore")  # torch's, of what it wants to drop
@pytest.mark.parametrize(
    ("make_build", "word"),
    [
        (lambda: torch.jit.script(nn.Linear(3, 2)), "ScriptModules"),
        (lambda: lambda: nn.Sequential(torch.jit.script(nn.Linear(3, 2))), "the forward of module '0'"),
    ],
)
@pytest.mark.parametrize("executor", ["sequential", "vectorized", "auto"])
def test_networks_that_cannot_be_copied_or_trained_are_refused_with_one_sentence(make_build, word, executor):
    with pytest.raises(InputError, match=word):
        trained(make_build(), executor)


class Centered(nn.Module):
    def __init__(self, in_place=False):
        super().__init__()
        self.fc, self.mu, self.last, self.in_place = nn.Linear(3, 2), torch.zeros(3), None, in_place

    def forward(self, x):
        if self.training and self.in_place:
            self.mu.mul_(0.9).add_(0.1 * x.detach().mean(0))
        elif self.training:
            self.mu = self.mu * 0.9 + 0.1 * x.detach().mean(0)
        return self.fc(x - self.mu)


class Watched(nn.Module):
    """Leaves its last activations behind, which changes nothing."""

    def __init__(self):
        super().__init__()
        self.norm, self.drop, self.fc, self.last = nn.BatchNorm1d(3), nn.Dropout(), nn.Linear(3, 2), None

    def forward(self, x):
        self.last = self.drop(self.norm(x))
        return self.fc(self.last)


@pytest.mark.parametrize("in_place", [False, True])
def test_a_tensor_kept_as_an_attribute_is_warned_of_and_not_stacked(in_place):
    for executor in ("sequential", "auto"):
        with pytest.warns(UserWarning, match="attribute 'mu' of the network changes"):
            assert trained(lambda: Centered(in_place), executor).outputs(X).isfinite().all()
    with pytest.warns(UserWarning, match="'mu'"), pytest.raises(InputError, match="tensor 'mu' changes"):
        trained(lambda: Centered(in_place), "vectorized")


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_activations_left_behind_are_no_state(executor):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".*(budget is below|rows no better than)")  # few steps on purpose
        trained(Watched, executor)
