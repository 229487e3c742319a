"""A network is looked at once before a run; copies and conversions compute what was given, or are refused by name."""

import importlib
import types
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import choral
from choral.base.errors import ConversionError, InputError
from choral.engine.inspect import Calls, executed
from choral.recipes import deep_ensemble, make
from choral.recipes.training import Training

G = torch.Generator().manual_seed(0)
X = torch.randn(40, 6, generator=G)
Y = (X[:, 0] > 0).long()


def small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))


def wrapped() -> nn.Module:
    network = small()
    old = network.forward
    network.forward = lambda x: old(x) * 3  # type: ignore[method-assign]  # the habit in question
    return network


def wrapped_within() -> nn.Module:
    network = small()
    old = network[0].forward
    network[0].forward = lambda x: old(x) * 3
    return network


@pytest.mark.parametrize("build", [wrapped, wrapped_within])
@pytest.mark.parametrize("given", ["function", "network"])
@pytest.mark.parametrize("method", ["deep_ensemble", "packed"])
def test_a_forward_that_remembers_another_network_is_refused(build, given, method):
    with pytest.raises(InputError, match="remembers the network it was made for"):
        choral.fit(build if given == "function" else build(), (X, Y), make(method, budget=4, members=2))


def test_a_forward_that_is_bound_to_its_network_is_trained():
    def build() -> nn.Module:
        network = small()
        times_three = types.MethodType(lambda self, x: nn.Sequential.forward(self, x) * 3, network)
        network.forward = times_three  # type: ignore[method-assign]  # the habit in question
        return network

    ensemble = choral.fit(build, (X, Y), deep_ensemble(members=2, budget=4))
    assert float(ensemble.outputs(X).std(0).max()) > 1e-3


class Functional(nn.Module):
    """Uses the weights of its layers without calling them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.o = nn.Linear(6, 16), nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.relu(F.linear(x, self.a.weight, self.a.bias)), self.o.weight, self.o.bias)


@pytest.mark.parametrize("method", ["mc_dropout", "drop_connect", "masksembles"])
def test_layers_that_are_read_past_their_call_are_named(method):
    with pytest.raises(ConversionError, match=r"'a'.*past its call"):
        choral.fit(Functional, (X, Y), make(method, budget=4))


class ReadBack(nn.Module):
    """Calls a layer, and reads its weight once more, as tied autoencoders do."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.o = nn.Linear(6, 16), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.o(F.linear(torch.relu(self.a(x)), self.a.weight.t()))
        return out


@pytest.mark.parametrize("method", ["batch_ensemble", "tabm", "drop_connect"])
def test_weights_that_are_read_beside_their_layers_call_are_named(method):
    with pytest.raises(ConversionError, match=r"'a'.*past its call"):
        choral.fit(ReadBack, (X, Y), make(method, budget=4))


@pytest.mark.parametrize("method", ["packed", "treenet", "masksembles"])
def test_read_back_weights_are_right_or_refused(method):
    try:
        ensemble = choral.fit(ReadBack, (X, Y), make(method, budget=4))
    except ConversionError:
        return
    alone = torch.stack([member(X).detach() for member in ensemble])
    assert torch.allclose(ensemble.outputs(X), alone, atol=1e-5)


class Dropped(nn.Module):
    """Leaves a layer out at random, so that some parameters have no gradient in some steps."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.o = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.a(x))
        if self.training and float(torch.rand(())) < 0.5:
            return self.o(x)  # type: ignore[no-any-return]  # a tensor
        return self.o(x + torch.relu(self.b(x)))  # type: ignore[no-any-return]  # a tensor


def test_layers_that_are_left_out_at_random_are_trained():
    before = choral.fit(Dropped, (X, Y), deep_ensemble(members=2, budget=40))
    assert before.evaluate(X, Y)["accuracy"] > 0.8


class Token(nn.Module):
    """Expands a parameter to the batch and hands it to a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.a, self.o = nn.Parameter(torch.ones(1, 6)), nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.o(torch.relu(self.a(self.token.expand(len(x), 6)) + self.a(x)))
        return out


def test_an_expanded_parameter_is_no_obstacle():
    assert choral.fit(Token, (X, Y), deep_ensemble(members=2, budget=4)).members == 2


@pytest.mark.parametrize("method", ["single", "deep_ensemble"])
def test_half_precision_networks_learn_with_the_default_optimizer(method):
    def half() -> nn.Module:
        return small().bfloat16()

    training = Training(optimizer="sgd", lr=0.1, batch_size=8)
    ensemble = choral.fit(half, (X, Y), make(method, budget=60, training=training))
    assert ensemble.evaluate(X, Y)["accuracy"] > 0.9


class Unused(nn.Module):
    """Has a layer that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.spare = small(), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        return out


@pytest.mark.parametrize("method", ["mc_dropout", "masksembles"])
def test_layers_that_nobody_uses_do_no_harm(method):
    assert choral.fit(Unused, (X, Y), make(method, budget=4)).members


def masked_gradient() -> nn.Module:
    network = small()
    network.get_parameter("0.weight").register_hook(lambda gradient: gradient * 0)
    return network


def after_gradient() -> nn.Module:
    network = small()
    network.get_parameter("0.weight").register_post_accumulate_grad_hook(lambda p: None)
    return network


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (masked_gradient, "hook on its gradient"),
        (after_gradient, "hook on its gradient"),
    ],
)
def test_what_no_copy_keeps_is_refused_with_a_way_out(build, said):
    with pytest.raises(InputError, match=said):
        choral.fit(build, (X, Y), deep_ensemble(members=2, budget=4))


class Inner(nn.Module):
    """Takes a gradient within its forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            (gradient,) = torch.autograd.grad(self.body(x).sum(), x, create_graph=True)
        return gradient[:, :2]


def test_a_network_that_takes_gradients_itself_is_trained_and_its_operations_counted():
    ensemble = choral.fit(Inner, (X, Y), deep_ensemble(members=2, budget=4), validation=None)
    products = (
        6 * 8 + 8
    )  # of one point in a forward pass, which is done at least five times: with its gradients, and theirs
    assert 5 * 2 * products * 40 * 4 < ensemble.info["counted"]["train_flops"] < 9 * 2 * products * 40 * 4


class Elsewhere(nn.Module):
    """Reads its parameters from a dict and a list, where functional_call does not exchange them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 2)
        self.scale = nn.Parameter(torch.rand(8))
        self.held, self.fast = {"scale": self.scale}, [self.last.weight, self.last.bias]

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.tanh(self.first(x)) * self.held["scale"], *self.fast)


def test_parameters_that_are_read_from_a_dict_belong_to_their_member():
    recipe = make("deep_ensemble", budget=16, members=8, training=Training(lr=0.05, batch_size=16))
    ensembles = [
        choral.fit(Elsewhere, (X, Y), recipe, compute=choral.Compute(executor=e)) for e in ("auto", "sequential")
    ]
    for ensemble in ensembles:
        own = []
        for state in ensemble.states():
            network = Elsewhere()
            network.load_state_dict(state.params)
            own.append(network(X).detach())
        torch.testing.assert_close(ensemble.outputs(X), torch.stack(own), atol=1e-5, rtol=1e-4)
        assert len({float(o.sum()) for o in own}) == 8
    torch.testing.assert_close(ensembles[0].outputs(X), ensembles[1].outputs(X))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_parameters_that_are_read_from_a_dict_are_not_trained_stacked(precision):
    with pytest.raises(InputError, match=r"'scale'.*list or dict"):
        choral.fit(
            Elsewhere,
            (X, Y),
            deep_ensemble(budget=2, members=2),
            compute=choral.Compute(executor="vectorized", precision=precision),
        )


class Scaled(Elsewhere):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)) * self.held["scale"])


def test_a_converted_parameter_that_is_read_from_a_dict_is_named():
    with pytest.raises(ConversionError, match="parameter 'scale' is converted for Packed, but forward reads"):
        choral.fit(Scaled, (X, Y), make("packed", budget=2, members=2))
    choral.fit(Scaled, (X, Y), make("batch_ensemble", budget=2, members=2))


class Counted(nn.Module):
    """Counts how often it is built and called."""

    built, called = 0, 0

    def __init__(self) -> None:
        super().__init__()
        Counted.built += 1
        self.body, self.head = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU()), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        Counted.called += 1
        out: Tensor = self.head(self.body(x))
        return out


class Reached(Exception):
    """The first training step is about to be taken."""


@pytest.mark.parametrize("method", ["deep_ensemble", "prune_and_tune", "packed", "batch_ensemble", "bnn"])
def test_two_builds_and_four_passes_come_before_the_first_step(method, monkeypatch):
    def stop(*_, **__):
        raise Reached

    monkeypatch.setattr(importlib.import_module("choral.fit"), "carry_out", stop)
    Counted.built = Counted.called = 0
    with pytest.raises(Reached):
        choral.fit(Counted, (X, Y), make(method, budget=8), compute=choral.Compute(threads=1))
    assert Counted.built <= 2
    assert Counted.called <= 4


@pytest.mark.parametrize("method", ["deep_ensemble", "packed"])
def test_an_inspection_draws_nothing_that_a_caller_or_a_member_draws(method):
    def build() -> nn.Module:
        network = small()
        with torch.no_grad():
            network.get_parameter("0.bias").add_(torch.from_numpy(np.random.rand(8)))
        return network

    recipe = make(method, budget=4, members=2)
    states = np.random.get_state()[1].copy(), torch.random.get_rng_state()
    one, other = (choral.fit(build, (X, Y), recipe) for _ in range(2))
    assert np.array_equal(states[0], np.random.get_state()[1])
    assert torch.equal(states[1], torch.random.get_rng_state())
    assert torch.equal(one.outputs(X), other.outputs(X))


class Borrowing(nn.Module):
    """Uses a layer that only a function knows of."""

    def __init__(self) -> None:
        super().__init__()
        layer, self.last = nn.Linear(6, 8), nn.Linear(8, 2)
        self.before = lambda x: layer(x)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.tanh(self.before(x)))
        return out


def test_a_layer_that_only_a_function_knows_of_is_refused():
    with pytest.raises(InputError, match="where torch does not see them"):
        choral.fit(Borrowing, (X, Y), deep_ensemble(members=2, budget=4))


class Frozen(nn.Module):
    """Declares its layers in another order than it calls them, and the first of them is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.aside, self.body, self.stem = (
            nn.Linear(8, 2),
            nn.Linear(8, 8),
            nn.Linear(8, 8),
            nn.Linear(6, 8),
        )
        self.stem.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.body(F.relu(self.stem(x), inplace=True)), inplace=True)
        self.aside(h)
        out: Tensor = self.head(h)
        return out


def test_the_order_of_calls_is_that_of_the_pass():
    network = Frozen()
    found = [(call.layer, call.needed) for call in executed(network, X)]
    assert found == [("stem", True), ("body", True), ("aside", False), ("head", True), ("", True)]
    with Calls(network, ["head", "aside", "body", "stem"]) as calls:
        output = network(X)
    assert [call.layer for call in calls.of(output) if call.reads_input] == ["stem", ""]
    assert [name for name, p in network.named_parameters() if not p.requires_grad] == ["stem.weight", "stem.bias"]
    pruned = choral.fit(Frozen, (X, Y), make("prune_and_tune", budget=8, members=2))
    masked = {name for state in pruned.states() for name in state.mask}
    assert masked == {"body.weight"}


def test_a_build_that_returns_the_same_weights_is_said_where_members_should_differ():
    network = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    data = (x, (x[:, 0] > 0).long())
    recipe = choral.recipes.deep_ensemble(members=2, epochs=1, training=Training(lr=0.01, batch_size=30))
    with pytest.warns(UserWarning, match="so the 2 members"):
        choral.fit(lambda: network, data, recipe, progress=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*same weights")
        choral.fit(network, data, recipe, progress=False)  # a network that is given is drawn anew
        choral.fit(
            lambda: network,
            data,
            choral.recipes.single(epochs=1, training=Training(lr=0.01, batch_size=30)),
            progress=False,
        )


class Recomputing(nn.Module):
    """A perceptron that computes its middle again in the backward pass: a layer, or a function alone."""

    def __init__(self, by_layer: bool):
        super().__init__()
        self.by_layer = by_layer
        self.first, self.middle, self.last = nn.Linear(3, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        def part(x: Tensor) -> Tensor:
            layer = self.middle
            linear = layer(x) if self.by_layer else nn.functional.linear(x, layer.weight, layer.bias)
            return nn.functional.dropout(torch.sigmoid(linear), 0.1, self.training)

        hidden = checkpoint(part, self.first(x), use_reentrant=False)
        out: Tensor = self.last(hidden)
        return out


@pytest.mark.parametrize("by_layer", [True, False])
@pytest.mark.parametrize("method", ["single", "treenet"])
def test_a_network_that_computes_parts_again_in_the_backward_pass_is_refused(by_layer, method):
    x, y = torch.randn(12, 3), torch.arange(12) % 3
    with pytest.raises(InputError, match=r"torch\.utils\.checkpoint"):
        choral.fit(lambda: Recomputing(by_layer), (x, y), make(method, budget=4))


class Branching(nn.Module):
    """Two layers read the input, one a bare parameter, one a sum that is changed in place; one is called for nothing."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.bare, self.last, self.idle = (nn.Linear(3, 3) for _ in range(5))
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        self.idle(x)
        total = x.clone()
        total += self.one(total)
        return self.last(total) + self.two(x) + self.bare(x * self.scale)


def test_calls_know_what_reads_the_input_and_what_the_output_needs():
    network = Branching()
    with Calls(network, ["one", "two", "bare", "last", "idle"]) as calls:
        output = network(torch.ones(2, 3))
    found = {call.layer: (call.reads_input, call.needed) for call in calls.of(output)}
    assert {name for name, (reads, _) in found.items() if reads} == {"", "one", "two", "idle"}
    assert {name for name, (_, needed) in found.items() if not needed} == {"idle"}
