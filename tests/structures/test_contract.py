"""What every structure of several members must do on every network."""

import copy
import json
from typing import get_args

import pytest
import torch
from tests.networks import NETWORKS, generator, make
from tests.structures.independence import check_independence
from torch.func import functional_call, vmap

from choral.base import draws
from choral.base.values import from_dict
from choral.layers.joint.network import Joint, Kernel
from choral.layers.keyed import keyed
from choral.structures import BatchEnsemble, Masksembles, Mimo, Packed, TabM, TreeNet

STARTS = {"lenet": "conv2", "chain": "2", "resnet": "layer1.1", "vit": "norm2", "concatenating": "join"}


def structures(name):
    return {
        "packed": Packed(members=4, width=2),
        "batch_ensemble": BatchEnsemble(members=3),
        "batch_ensemble_norms": BatchEnsemble(members=2, own_norms=True, start="signs"),
        "masksembles": Masksembles(members=3, scale=1.7),
        "treenet": TreeNet(members=3, start=STARTS.get(name, "")),
        "tabm": TabM(members=3),
        "tabm_mini": TabM(members=3, adapters="first", start="normal"),
        "mimo": Mimo(members=3),
    }


KINDS = list(structures(""))
JOINTS = [kind for kind in KINDS if kind != "mimo"]


def converted(kind, name):
    structure = structures(name)[kind]
    network, x = make(name)
    return structure, structure.convert(network, generator(1)), x


def kernels(kind, joint):
    return ["grouped"] if kind == "treenet" else [k for k in get_args(Kernel)[1:] if not joint.obstacle(k)]


def outputs(structure, joint, x):
    return structure.unfold(joint(structure.feed(x, None)[0]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NETWORKS)
def test_rows_are_the_members_and_the_members_differ(kind, name):
    structure, joint, x = converted(kind, name)
    joint.eval()
    rows = outputs(structure, joint, x)
    assert rows.shape[:2] == (structure.members, len(x))
    alone = torch.stack([structure.member(joint, i)(x) for i in range(structure.members)])
    torch.testing.assert_close(rows, alone, atol=1e-9, rtol=1e-9)
    for i in range(1, structure.members):
        assert (rows[i] - rows[0]).abs().max() > 1e-3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NETWORKS)
def test_members_are_plain_networks(kind, name):
    structure, joint, _ = converted(kind, name)
    plain, _ = make(name)
    member = structure.member(joint, 0)
    kinds = {type(m).__module__ for m in member.modules()}
    assert not any("choral.layers" in k for k in kinds - {"choral.layers.attention", "choral.layers.frn"})
    if not kind.startswith(("batch_ensemble", "tabm")):  # they open attention
        assert [n for n, _ in member.named_parameters()] == [n for n, _ in plain.named_parameters()]


@pytest.mark.parametrize("kind", JOINTS)
@pytest.mark.parametrize("name", NETWORKS)
def test_no_gradient_crosses_members_in_training(kind, name):
    structure, joint, x = converted(kind, name)
    joint.train()
    _, targets = structure.feed(x, torch.zeros(len(x)))
    assert targets is not None
    own = [p for n, p in joint.network.named_parameters() if n in joint.stacked]
    inputs = structure.feed(x, torch.zeros(len(x)))[0]
    if joint.own_inputs:
        own = [inputs := inputs.clone().requires_grad_()]
    for kernel in kernels(kind, joint):
        joint.kernel = kernel
        out = structure.unfold(joint(inputs))
        assert out.shape[:2] == targets.shape[:2]
        for i in range(structure.members):
            grads = torch.autograd.grad(
                (out[i] * torch.linspace(1, 2, out[i].numel(), dtype=out.dtype).view_as(out[i])).sum(),
                own,
                retain_graph=True,
                allow_unused=True,
            )
            for g in grads:
                if g is not None:
                    assert not torch.cat((g[:i], g[i + 1 :])).any()
            assert any(g is not None and g[i].any() for g in grads)
    check_independence(structure, joint, x)


@pytest.mark.parametrize("kind", JOINTS)
@pytest.mark.parametrize("name", NETWORKS)
def test_kernels_agree_in_outputs_gradients_and_statistics(kind, name):
    structure, joint, x = converted(kind, name)
    joint.train()
    found = {}
    start = copy.deepcopy(joint.state_dict())
    for kernel in kernels(kind, joint):
        joint.load_state_dict(start)
        joint.kernel = kernel
        joint.zero_grad()
        out = structure.unfold(joint(structure.feed(x, torch.zeros(len(x)))[0]))
        (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum().backward()
        grads = {n: p.grad.clone() for n, p in joint.named_parameters() if p.grad is not None}
        found[kernel] = (out.detach(), grads, {n: b.clone() for n, b in joint.named_buffers()})
    assert kind == "treenet" or {"loop", "grouped"} <= found.keys()
    first = next(iter(found.values()))
    for out, grads, buffers in found.values():
        torch.testing.assert_close(out, first[0], atol=1e-9, rtol=1e-9)
        torch.testing.assert_close(grads, first[1], atol=1e-8, rtol=1e-8)
        torch.testing.assert_close(buffers, first[2], atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NETWORKS)
def test_the_given_network_is_unchanged(kind, name):
    structure = structures(name)[kind]
    network, x = make(name)
    network.eval()
    before, state = network(x), copy.deepcopy(network.state_dict())
    shape = repr(network)
    joint = structure.convert(network, generator())
    assert not joint.training
    with torch.no_grad():
        for t in (*joint.parameters(), *joint.buffers()):
            t.zero_()
    torch.testing.assert_close(network.state_dict(), state, atol=0, rtol=0)
    assert torch.equal(network(x), before)
    assert repr(network) == shape


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(
    "structure",
    [
        Packed(members=1, width=1),
        BatchEnsemble(members=1),
        Masksembles(members=1),
        TreeNet(members=1),
        Mimo(members=1),
    ],
    ids=lambda s: type(s).__name__,
)
def test_one_member_is_the_plain_network(structure, name):
    network, x = make(name)
    joint = structure.convert(network, generator())
    for training in (True, False):
        network.train(training)
        joint.train(training)
        torch.testing.assert_close(outputs(structure, joint, x)[0], network(x), atol=1e-10, rtol=1e-10)
    assert structure.feed(x, torch.zeros(len(x)))[1].shape == (1, len(x))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NETWORKS)
def test_stacked_networks_run_under_vmap(kind, name):
    structure = structures(name)[kind]
    network, x = make(name)
    joints = [structure.convert(network, generator(s)).train() for s in (1, 2)]
    y = torch.arange(len(x))
    words = draws.words(5, 6)

    def run(params, buffers, key):
        buffers = {n: b.clone() for n, b in buffers.items()}
        with keyed(key, 3):
            inputs, targets = structure.feed(x, y)
            return structure.unfold(functional_call(joints[0], (params, buffers), (inputs,))), targets, buffers

    def stack(tables):
        return {n: torch.stack([t[n].detach() for t in tables]) for n in tables[0]}

    params = stack([dict(j.named_parameters()) for j in joints])
    buffers = stack([dict(j.named_buffers()) for j in joints])
    out, targets, after = vmap(run, randomness="error")(params, buffers, words)
    for i, key in enumerate((5, 6)):
        with keyed(key, 3):
            inputs, wanted = structure.feed(x, y)
            alone = structure.unfold(joints[i](inputs))
        torch.testing.assert_close(out[i], alone.detach(), atol=1e-9, rtol=1e-9)
        assert torch.equal(targets[i], wanted)
        for n, b in joints[i].named_buffers():
            torch.testing.assert_close(after[n][i], b, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NETWORKS)
def test_states_load_into_another_conversion(kind, name):
    structure, joint, x = converted(kind, name)
    other = structure.convert(make(name)[0], generator(9)).eval()
    joint.eval()
    other.load_state_dict(joint.state_dict())
    assert torch.equal(outputs(structure, other, x), outputs(structure, joint, x))


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_decides_the_members(kind):
    structure = structures("lenet")[kind]
    network, _ = make("lenet")
    a, b, c = (structure.convert(network, generator(s)).state_dict() for s in (1, 1, 2))
    assert all(torch.equal(a[n], b[n]) for n in a)
    assert any(not torch.equal(a[n], c[n]) for n in a)


@pytest.mark.parametrize("kind", KINDS)
def test_structures_survive_json(kind):
    structure = structures("resnet")[kind]
    assert from_dict(json.loads(json.dumps(structure.to_dict()))) == structure


def test_dropout_draws_other_numbers_for_every_member_and_the_same_under_every_kernel():
    network = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Dropout(0.5), torch.nn.Linear(64, 64))
    structure = Packed(members=2, width=2, last=("0",), first=("0",))
    joint = structure.convert(network, generator())
    assert isinstance(joint, Joint)
    x = torch.randn(3, 4)
    found = {}
    for kernel in ("loop", "grouped"):
        joint.kernel = kernel
        with keyed(3, 1):
            found[kernel] = joint(x)
    torch.testing.assert_close(found["loop"], found["grouped"])
    joint.kernel = "loop"
    with torch.no_grad():
        for p in joint.parameters():
            p[1] = p[0]
    with keyed(3, 1):
        a, b = joint(x)
    assert not torch.allclose(a, b)
