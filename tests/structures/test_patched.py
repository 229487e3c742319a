import json

import pytest
import torch
from benchmarks.protocols.pyramidnet import pyramidnet
from tests.networks import NETWORKS, generator, make
from torch import nn

from choral import models
from choral.base import draws
from choral.base.errors import ConversionError, InputError
from choral.base.values import from_dict
from choral.layers.bayesian.patched import FAMILY, Mixture, PatchedLayer
from choral.layers.keyed import keyed
from choral.structures import Patched


def parameters(network):
    return sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize(
    ("build", "plain", "options", "patched"),
    [
        (models.resnet18, 11_689_512, {}, 13_779_912),
        (models.resnet18, 11_689_512, {"output": False}, 11_727_912),
        (lambda: pyramidnet(110, 270, classes=100), 28_511_307, {}, 28_825_299),
    ],
)
def test_counts_of_the_paper(build, plain, options, patched):
    with torch.device("meta"):
        network = build()
    structure = Patched(mixture=Mixture(components=5), **options)
    assert parameters(network) == plain
    assert parameters(structure.convert(network, generator())) == patched


@pytest.mark.parametrize("method", FAMILY)
@pytest.mark.parametrize("name", NETWORKS)
def test_passes_differ_in_evaluation_and_statistics_stay(name, method):
    network, x = make(name)
    everything = ("*",) if method in ("explicit_ensemble", "dropout", "drop_connect") else ()
    norms = method in ("explicit_ensemble", "emp", "ecmp")
    weighted = (nn.Linear, nn.Conv2d, nn.ConvTranspose2d, nn.MultiheadAttention)
    others = [n for n, m in network.named_modules() if not any(m.children()) and not isinstance(m, weighted)]
    exclude = () if norms else tuple(n for n in others if "attention" not in n)
    structure = Patched(mixture=FAMILY[method], norms=norms, include=everything, exclude=("", *exclude))
    joint = structure.convert(network, generator()).eval()
    before = {n: b.clone() for n, b in joint.named_buffers()}
    outs = []
    for key in range(12):
        with keyed(key):
            outs.append(structure.unfold(joint(structure.feed(x, None)[0])))
    assert outs[0].shape[:2] == (1, len(x))
    assert any(not torch.allclose(outs[0], out) for out in outs[1:])
    with keyed(0):
        assert torch.equal(outs[0], structure.unfold(joint(x)))
    assert all(torch.equal(b, before[n]) for n, b in joint.named_buffers())
    member = structure.member(joint, 0)
    assert not any(isinstance(m, PatchedLayer) for m in member.modules())
    assert member(x).shape == outs[0].shape[1:]


def test_training_gives_every_used_component_its_gradient():
    network, x = make("resnet")
    structure = Patched(mixture=Mixture(components=3))
    joint = structure.convert(network, generator()).train()
    reached = set()
    for key in range(30):
        joint.zero_grad()
        with keyed(key):
            joint(x).square().sum().backward()
        for n, p in joint.named_parameters():
            if ".patches.weight" in n and p.grad is not None:
                reached |= {(n, k) for k in range(3) if p.grad[k].any()}
    assert reached == {(n, k) for n, _ in joint.named_parameters() if ".patches.weight" in n for k in range(3)}


def test_one_component_is_the_plain_network():
    network, x = make("resnet")
    joint = Patched(mixture=Mixture(components=1)).convert(network, generator())
    for training in (True, False):
        torch.testing.assert_close(joint.train(training)(x), network.train(training)(x))


def test_networks_and_draws_can_be_batched():
    network, x = make("resnet")
    structure = Patched(mixture=FAMILY["ecmp"])
    joint = structure.convert(network, generator()).eval()

    def run(words):
        with keyed(words, 2):
            return joint(x)

    together = torch.func.vmap(run)(draws.words(3, 4, 5))
    for i, key in enumerate((3, 4, 5)):
        with keyed(key, 2):
            torch.testing.assert_close(together[i], joint(x))


def test_attention_is_opened_when_it_is_named():
    network, x = make("vit")
    structure = Patched(norms=False, output=False, include=("attention*",))
    joint = structure.convert(network, generator())
    names = {n for n, m in joint.named_modules() if isinstance(m, PatchedLayer)}
    assert names == {f"attention.{part}" for part in ("query", "key", "value", "out")}
    assert structure.member(joint, 0)(x).shape == network(x).shape


def test_excluded_modules_stay_shared_with_everything_inside():
    network, _ = make("resnet")
    joint = Patched(exclude=("layer1.0",)).convert(network, generator())
    names = {n for n, m in joint.named_modules() if isinstance(m, PatchedLayer)}
    assert names == {"layer1.1.bn1", "layer1.1.bn2", "layer1.1.shortcut.1", "fc"}


def test_it_survives_json_and_says_what_it_accepts():
    structure = Patched(mixture=FAMILY["ecmp"], include=("fc*",))
    assert from_dict(json.loads(json.dumps(structure.to_dict()))) == structure
    with pytest.raises(InputError, match="members"):
        Patched(members=2)
    with pytest.raises(ConversionError, match="found nothing to patch"):
        Patched(output=False).convert(nn.Linear(2, 2), generator())
    with pytest.raises(ConversionError, match=r"'1' \(LSTM\) cannot be patched"):
        Patched(include=("1",)).convert(nn.Sequential(nn.Linear(2, 2), nn.LSTM(2, 2), nn.Linear(2, 2)), generator())


@pytest.mark.parametrize(("assignment", "size"), [("network", 2), ("layer", 4), ("scalar", 16)])
def test_the_effective_size_is_the_number_of_networks_that_passes_draw(assignment, size):
    plain = nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1), nn.Linear(1, 1))
    nn.init.ones_(plain[1].bias)
    structure = Patched(mixture=Mixture(components=2, assignment=assignment), jitter=0.5, keep_weights=True)
    joint = structure.convert(plain, torch.Generator().manual_seed(0)).eval()
    lines = set()
    for seed in range(300):
        with keyed(seed):
            lines.add(tuple(joint(torch.tensor([[1.0], [2.0]])).flatten().mul(1e4).round().tolist()))
    assert len(lines) == size


@pytest.mark.parametrize("assignment", ["layer", "scalar"])
def test_a_component_at_zero_stands_beside_the_trained_ones(assignment):
    torch.manual_seed(0)
    layer = PatchedLayer(
        nn.Linear(3, 2), Mixture(components=2, assignment=assignment, zero=0.25), generator=generator()
    )
    components, biases = layer.patches["weight"].detach(), layer.patches["bias"].detach()
    weights, shifts = [], []
    for key in range(4000):
        with keyed(key), torch.no_grad():
            drawn = layer._draw()
        weights.append(drawn["weight"])
        shifts.append(drawn["bias"])
    weights, shifts = torch.stack(weights), torch.stack(shifts)
    known = torch.stack([torch.zeros_like(components[0]), *components])
    assert (weights.unsqueeze(1) == known).any(1).all()  # each scalar is 0 or that of a component
    off = (weights == 0).flatten(1).double()
    assert off.mean().item() == pytest.approx(0.25, abs=0.03)
    assert ((off.mean(1) == 0) | (off.mean(1) == 1)).all().item() == (assignment == "layer")
    assert torch.allclose(weights.mean(0), layer.plain().weight, atol=0.06)
    assert torch.allclose(shifts.mean(0), biases.mean(0), atol=0.06)  # biases are never 0
    assert torch.allclose(layer.plain().bias, biases.mean(0))
    assert layer.probabilities().tolist() == [0.375, 0.375]


def test_layers_may_have_mixtures_of_their_own():
    network = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    own = Mixture(components=3, assignment="scalar")
    structure = Patched(mixture=Mixture(components=5), mixtures=(("3", own),))
    joint = structure.convert(network, generator())
    assert (joint[1].mixture, joint[3].mixture) == (structure.mixture, own)
    assert parameters(joint) == parameters(network) + 4 * 16 + 2 * 18
    assert from_dict(structure.to_dict()) == structure
