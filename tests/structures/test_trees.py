import pytest
import torch
from tests.structures.independence import check_independence
from torch import nn

from choral.base.errors import ConversionError
from choral.base.interface import Interface, detach
from choral.layers.bayesian.sampling import at_means
from choral.layers.keyed import keyed
from choral.structures import (
    BatchEnsemble,
    Gaussian,
    Independent,
    Masksembles,
    Mimo,
    Packed,
    RankOneGaussian,
    Stochastic,
    TreeNet,
)

JOINT = [
    BatchEnsemble(members=3, kernel="loop"),
    BatchEnsemble(members=3, kernel="matmul"),
    Packed(members=2, width=2, kernel="loop", last=("last",)),
    Packed(members=2, width=2, kernel="grouped", last=("last",)),
    Masksembles(members=3, kernel="loop"),
    Masksembles(members=3, kernel="grouped"),
    TreeNet(members=3),
    RankOneGaussian(members=3),
    Independent(),
    Gaussian(draws=1),
    Stochastic(draws=1, rate=0.1),
]


class Two(nn.Module):
    """Words and numbers, read by name."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.first = nn.Linear(3, 6)
        self.last = nn.Linear(6, 2)

    def forward(self, numbers, words):
        return {"logits": self.last(torch.tanh(self.first(numbers) + self.words(words).mean(1)))}


BATCH = {"words": torch.randint(11, (6, 4)), "numbers": torch.randn(6, 3)}
READS = Interface(spread=True, output="logits")


def joint_of(structure):
    torch.manual_seed(0)
    return structure.convert(READS.attach(Two()), torch.Generator().manual_seed(1)).eval()


@pytest.mark.parametrize("structure", JOINT, ids=lambda s: f"{type(s).__name__}-{getattr(s, 'kernel', '')}")
def test_each_row_of_a_joint_call_is_the_member_alone(structure):
    network = joint_of(structure)
    inputs, targets = structure.feed(BATCH, None)
    assert targets is None
    with keyed(3), at_means(), torch.no_grad():
        outputs = structure.unfold(network(inputs))
        assert outputs.shape == (structure.members, 6, 2)
        for i in range(structure.members):
            member = structure.member(network, i).eval()
            if not isinstance(structure, Stochastic):  # whose member does not draw
                assert torch.allclose(member(BATCH), outputs[i], atol=1e-6)
            assert set(detach(member)(**BATCH)) == {"logits"}
    check_independence(structure, network, BATCH)


def test_a_split_batch_keeps_inputs_and_targets_together():
    structure = Masksembles(members=4)
    y = torch.arange(6)
    x = {"a": torch.arange(6.0).view(6, 1), "b": (torch.arange(6) * 10,)}
    inputs, targets = structure.feed(x, y)
    assert torch.equal(inputs["a"][..., 0].long(), targets)
    assert torch.equal(inputs["b"][0], targets * 10)


def test_what_concatenates_inputs_refuses_several():
    with pytest.raises(ConversionError, match="MIMO puts the inputs "):
        Mimo(members=2).feed(BATCH, None)
