"""Checks over the whole register: one new line in MODELS and in SMALL brings them all."""

import copy
import json
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

from choral.base import draws
from choral.base.errors import InputError
from choral.layers.keyed import keyed
from choral.models import MODELS, rebuild, spec_of

# a small version of each network, and the shape of its images or the length of its texts
SMALL: dict[str, tuple[dict, tuple[int, ...]]] = {
    "mlp": ({"inputs": 64, "outputs": 3, "hidden": (8, 6), "norm": "batch", "dropout": 0.2}, (1, 8, 8)),
    "tabular": (
        {
            "inputs": 3,
            "outputs": 2,
            "hidden": (8, 8),
            "edges": ((-1, 0, 1), (), (-0.5, 0.5)),
            "embedding_width": 4,
            "residual": True,
            "dropout": 0.1,
        },
        (3,),
    ),
    "lenet": ({"size": "5", "channels": 1, "side": 28}, (1, 28, 28)),
    "resnet_cifar": ({"depth": 20, "width": 4}, (3, 8, 8)),
    "resnet20_frn": ({"width": 4}, (3, 8, 8)),
    "resnet18": ({"width": 4, "classes": 5, "stem": "cifar"}, (3, 16, 16)),
    "resnet50": ({"width": 4, "classes": 5}, (3, 64, 64)),
    "resnext50": ({"groups": 2, "group_width": 2, "classes": 5, "stem": "cifar"}, (3, 16, 16)),
    "wide_resnet": ({"depth": 16, "width": 1, "dropout": 0.3}, (3, 8, 8)),
    "vit": ({"side": 8, "channels": 1, "width": 16, "depth": 2, "patch": 2, "dropout": 0.1}, (1, 8, 8)),
    "transformer": ({"vocabulary": 50, "length": 30, "width": 16}, (24,)),
}
TEXTS = {"transformer"}
TRACEABLE = sorted(set(SMALL) - TEXTS)  # those look at the length of a text


def build(name: str, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return MODELS[name](**SMALL[name][0])


def inputs(name: str, batch: int = 4) -> torch.Tensor:
    shape = SMALL[name][1]
    generator = torch.Generator().manual_seed(1)
    if name in TEXTS:
        return torch.randint(0, 50, (batch, *shape), generator=generator)
    return torch.randn(batch, *shape, generator=generator, dtype=torch.double)


def test_every_network_is_tested():
    assert set(SMALL) == set(MODELS)
    assert all(builder.__name__ == name for name, builder in MODELS.items())


@pytest.mark.parametrize("name", MODELS)
def test_the_seed_decides_the_weights(name):
    first, again, other = build(name), build(name), build(name, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(first.state_dict().values(), again.state_dict().values()))
    drawn = [key for key, p in first.named_parameters() if p.unique().numel() > 1]
    assert drawn
    assert all(not torch.equal(first.state_dict()[key], other.state_dict()[key]) for key in drawn)


@pytest.mark.parametrize("name", MODELS)
def test_the_output_is_one_row_for_each_example_that_depends_on_it_alone(name):
    network = build(name).double().eval()
    x = inputs(name)
    y = network(x)
    assert y.dim() == 2
    assert y.shape[0] == 4
    assert (y[0] - y[1]).abs().max() > 1e-6
    torch.testing.assert_close(network(x[2:3]), y[2:3])


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_gets_a_gradient_and_nothing_is_done_in_place(name):
    network = build(name).double()
    network(inputs(name)).square().sum().backward()
    # the maps of the last stages of a network this small may be dead, so a gradient of zeros is not a mistake here
    assert [key for key, p in network.named_parameters() if p.grad is None] == []
    assert not [key for key, module in network.named_modules() if getattr(module, "inplace", False)]


@pytest.mark.parametrize("name", MODELS)
def test_a_network_is_rebuilt_from_its_spec(name):
    network = build(name)
    spec = json.loads(json.dumps(spec_of(network)))
    assert spec["name"] == name
    torch.manual_seed(0)
    again = rebuild(spec)
    assert {k: v.shape for k, v in again.state_dict().items()} == {k: v.shape for k, v in network.state_dict().items()}
    x = inputs(name)
    torch.testing.assert_close(again.double().eval()(x), network.double().eval()(x), rtol=0, atol=0)
    assert spec_of(again) == spec
    assert spec_of(copy.deepcopy(network)) == spec


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_stacked_members_equal_single_ones(name, training):
    network = build(name).double().train(training)
    x = inputs(name)
    params = {k: torch.stack([p, p + 0.01 * torch.randn_like(p)]) for k, p in network.named_parameters()}
    buffers = {k: torch.stack([b, b + 1]) for k, b in network.named_buffers()}
    keys = draws.words(3, 4)

    def forward(p, b, key):
        state = {k: v.clone() for k, v in b.items()}
        with keyed(key):
            return functional_call(network, (p, state), (x,)), state

    joint, joint_state = vmap(forward)(params, buffers, keys)
    for i in range(2):
        alone, state = forward({k: p[i] for k, p in params.items()}, {k: b[i] for k, b in buffers.items()}, keys[i])
        torch.testing.assert_close(joint[i], alone, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close({k: b[i] for k, b in joint_state.items()}, state, rtol=1e-5, atol=1e-5)
    if buffers and training:
        assert not torch.equal(next(iter(joint_state.values())), next(iter(buffers.values())))


@pytest.mark.parametrize("name", ["mlp", "lenet", "resnet_cifar"])
def test_stacked_members_equal_single_ones_in_single_precision(name):
    networks = [build(name, seed).eval() for seed in range(3)]
    x = inputs(name).float()
    params = {
        k: torch.stack([dict(n.named_parameters())[k] for n in networks]) for k, _ in networks[0].named_parameters()
    }
    buffers = {k: torch.stack([dict(n.named_buffers())[k] for n in networks]) for k, _ in networks[0].named_buffers()}
    joint = vmap(lambda p, b: functional_call(networks[0], (p, b), (x,)))(params, buffers)
    torch.testing.assert_close(joint, torch.stack([n(x) for n in networks]), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_the_key_decides_all_randomness_of_a_forward_pass(name):
    network = build(name)
    x = inputs(name)
    x = x.float() if x.is_floating_point() else x
    outputs = []
    for seed, key in ((1, 5), (2, 5), (1, 6)):
        torch.manual_seed(seed)
        with keyed(key):
            outputs.append(network(x))
    assert torch.equal(outputs[0], outputs[1])
    random = any(isinstance(module, nn.Dropout) for module in network.modules())
    assert torch.equal(outputs[0], outputs[2]) != random


@pytest.mark.parametrize("name", TRACEABLE)
def test_the_network_is_traced_symbolically(name):
    network = build(name).double().eval()
    traced = torch.fx.symbolic_trace(network)
    x = inputs(name, batch=3)
    torch.testing.assert_close(traced(x), network(x))
    torch.testing.assert_close(traced(x[:1]), network(x[:1]))


def test_rebuild_refuses_what_is_not_in_the_zoo():
    with pytest.raises(InputError, match=r"'lent'.*zoo.*Did you mean 'lenet'"):
        rebuild({"name": "lent", "arguments": {}})
    with pytest.raises(InputError, match=r"'os\.system' is not in the model zoo"):
        rebuild({"name": "os.system", "arguments": {"command": "true"}})
    for spec in ({"name": "lenet"}, {}, {"name": "lenet", "arguments": {}, "more": 1}, ["lenet", {}], None):
        with pytest.raises(InputError, match="does not describe a network"):
            rebuild(spec)  # type: ignore[arg-type]  # a spec is there, or its values are odd on purpose


def test_rebuild_refuses_wrong_arguments():
    with pytest.raises(InputError, match=r"lenet has no argument 'clases'.*Did you mean 'classes'"):
        rebuild({"name": "lenet", "arguments": {"clases": 10}})
    with pytest.raises(InputError, match=r"mlp.*outputs"):
        rebuild({"name": "mlp", "arguments": {"inputs": 3}})
    with pytest.raises(InputError, match="lenet: classes is 'ten'"):
        rebuild({"name": "lenet", "arguments": {"classes": "ten"}})
    with pytest.raises(InputError, match=r"lenet: size=\{\} cannot be saved"):
        rebuild({"name": "lenet", "arguments": {"size": {}}})


@pytest.mark.full
def test_importing_the_models_loads_nothing_heavy():
    code = (
        "import sys, choral.models; "
        "print([m for m in ('torchvision', 'timm', 'sklearn', 'scipy', 'pandas', 'matplotlib', 'torch_pruning', "
        "'torchmetrics', 'torch.onnx.utils') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
