import copy
from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from choral.base.errors import InputError
from choral.base.interface import Interface, detach, pick
from choral.base.values import Function, from_dict

Pair = namedtuple("Pair", "logits hidden")


@dataclass
class Outcome:
    logits: torch.Tensor
    loss: torch.Tensor | None = None


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, a, b):
        return Outcome(self.layer(a)[:, 0] + b)


A, B = torch.randn(4, 3), torch.arange(4.0)


@pytest.mark.parametrize("batch", [{"b": B, "a": A}, (A, B), [A, B]])
def test_hooks_spread_a_batch_and_pick_a_column(batch):
    network = Two()
    interface = Interface(spread=True, output="logits", column=True)
    wanted = network(A, B).logits.unsqueeze(1)
    assert torch.equal(interface.call(network, batch), wanted)
    twin = copy.deepcopy(interface.attach(network))
    assert torch.equal(twin(batch), wanted)
    assert isinstance(detach(twin)(A, B), Outcome)
    assert torch.equal(network(batch), wanted)


@pytest.mark.parametrize(
    ("found", "output"),
    [({"logits": A}, "logits"), (Outcome(A), "logits"), (Pair(A, B), "logits"), (Pair(A, B), 0), ((B, A), -1)],
)
def test_names_and_positions_pick(found, output):
    assert pick(found, output) is A
    assert pick(found, Function.of(lambda out: A)) is A


def test_what_cannot_be_picked_is_refused_with_what_there_is():
    with pytest.raises(InputError, match=r"a Outcome with 'logits'; .*output='logits'"):
        pick(Outcome(A), None)
    with pytest.raises(InputError, match="Did you mean 'logits'"):
        pick({"logits": A, "loss": B}, "logit")
    with pytest.raises(InputError, match="a tuple of 2 parts, 0 to 1"):
        pick((A, B), 2)
    with pytest.raises(InputError, match="'logits' picks no tensor from what the network returns, a Tensor"):
        pick(A, "logits")
    with pytest.raises(InputError, match="'loss' picks no tensor"):
        pick({"loss": None}, "loss")


def test_an_interface_survives_writing():
    for output in (None, 1, "logits", Function.of(len)):
        interface = Interface(spread=True, output=output)
        assert from_dict(interface.to_dict()) == interface
