"""The members of larger networks of the zoo: rows are the members, and they are independent."""

import pytest
import torch
from benchmarks.protocols.reference_networks import cnn_lstm
from tests.networks import NETWORKS, generator
from tests.structures.independence import check_independence

from choral import models
from choral.layers.convert import ends_of
from choral.structures import BatchEnsemble, Masksembles, Mimo, Packed, TreeNet

IMAGES = (3, 16, 16)
ZOO = {
    "mlp": (lambda: models.mlp(12, 3, hidden=(64, 64)), (12,), "linear2"),
    "concatenating": (NETWORKS["concatenating"][0], (2, 7, 7), "join"),
    "lenet": (lambda: models.lenet("S"), (3, 32, 32), "fc1"),
    "resnet_cifar20": (lambda: models.resnet_cifar(20), IMAGES, "layer3"),
    "resnet20_frn": (lambda: models.resnet20_frn(), IMAGES, "layer3"),
    "resnet50": (lambda: models.resnet50(classes=10, stem="cifar", width=8), IMAGES, "layer4"),
    "resnext50": (lambda: models.resnext50(classes=10, stem="cifar"), (3, 8, 8), "layer4"),
    "wide_resnet": (lambda: models.wide_resnet(10, 1), IMAGES, "layer3"),
    "vit": (lambda: models.vit(16, patch=4), IMAGES, "blocks.2"),
    "transformer": (lambda: models.transformer(50, dropout=0.0), None, "blocks.1"),
    "cnn_lstm": (lambda: cnn_lstm(50), None, "lstm"),
}
STRUCTURES = {
    "packed": lambda start: Packed(members=4, width=2),
    "batch_ensemble": lambda start: BatchEnsemble(members=2),
    "masksembles": lambda start: Masksembles(members=2),
    "treenet": lambda start: TreeNet(members=2, start=start),
    "mimo": lambda start: Mimo(members=3),
}
TEXT = ("transformer", "cnn_lstm")  # tokens cannot be put side by side
QUICK = {("mlp", "mimo"), ("concatenating", "packed"), ("wide_resnet", "batch_ensemble"), ("cnn_lstm", "treenet")}
CASES = [
    pytest.param(name, kind, marks=() if (name, kind) in QUICK else pytest.mark.full)
    for name in ZOO
    for kind in STRUCTURES
    if kind != "mimo" or name not in TEXT
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_rows_are_members_and_members_are_independent(name, kind):
    build, shape, start = ZOO[name]
    torch.manual_seed(0)
    network = build()
    x = torch.randint(1, 50, (3, 20)) if shape is None else torch.randn(3, *shape)
    structure = STRUCTURES[kind](start)
    joint = structure.convert(network, generator())
    check_independence(structure, joint, x)
    joint.train()
    with torch.no_grad():  # moves running statistics away from their start
        joint(structure.feed(x, None)[0])
        joint.eval()
        rows = structure.unfold(joint(structure.feed(x, None)[0]))
        for i in range(structure.members):
            torch.testing.assert_close(rows[i], structure.member(joint, i)(x), atol=1e-5, rtol=1e-5)
        assert (rows[0] - rows[1]).abs().max() > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ZOO if name not in TEXT])
def test_an_output_of_mimo_reaches_no_other_output_layer(name):
    build, shape, _ = ZOO[name]
    torch.manual_seed(0)
    structure = Mimo(members=3)
    joint = structure.convert(build(), generator())
    rows = structure.unfold(joint(structure.feed(torch.randn(3, *shape), None)[0]))
    last = joint.get_submodule(ends_of(joint)[-1][0])
    for i in range(3):
        for gradient in torch.autograd.grad(rows[i].square().sum(), list(last.parameters()), retain_graph=True):
            reached = gradient.unflatten(0, (3, -1)).flatten(1).any(1)
            assert reached.tolist() == [j == i for j in range(3)]
