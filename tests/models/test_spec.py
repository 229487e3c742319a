import copy
import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from choral.base.errors import InputError
from choral.models import MODELS, rebuild
from choral.models.spec import spec_of, zoo


@zoo
def toy(inputs: int, *, shape=(2, (3, 4)), rate=0.5, name=None) -> nn.Module:
    """Return a linear layer."""
    network = nn.Linear(inputs, 1)
    network.received = (inputs, shape, rate, name)  # type: ignore[assignment]  # an attribute of its own
    return network


def test_defaults_are_remembered_and_tuples_are_written_as_lists():
    assert spec_of(toy(3)) == {
        "name": "toy",
        "arguments": {"inputs": 3, "shape": [2, [3, 4]], "rate": 0.5, "name": None},
    }
    assert toy(3, shape=[1, [2]]).received == (3, (1, (2,)), 0.5, None)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=6,
)


@given(shape=plain, rate=plain, name=plain)
def test_arguments_survive_json(shape, rate, name):
    network = toy(2, shape=shape, rate=rate, name=name)
    spec = json.loads(json.dumps(spec_of(network)))
    again = toy(**spec["arguments"])
    assert again.received == network.received == (2, shape, rate, name)
    assert spec_of(again) == spec


def test_numbers_of_numpy_become_plain_ones():
    spec = spec_of(toy(np.int64(3), rate=np.float32(0.5), shape=(np.int32(1),)))  # type: ignore[arg-type]  # a spec is there, or its values are odd on purpose
    assert spec == {"name": "toy", "arguments": {"inputs": 3, "shape": [1], "rate": 0.5, "name": None}}
    assert [type(v) for v in spec["arguments"].values()][:1] == [int]
    json.dumps(spec)


@pytest.mark.parametrize("value", [torch.zeros(1), {"a": 1}, float("nan"), float("inf"), nn.ReLU, object(), 1j])
def test_what_json_cannot_hold_is_refused(value):
    with pytest.raises(InputError, match=r"toy: shape=.* cannot be saved"):
        toy(2, shape=(1, value))


def test_the_spec_belongs_to_the_network():
    network = toy(2)
    spec = spec_of(network)
    assert spec is not None
    spec["arguments"]["inputs"] = 99
    assert spec_of(network)["arguments"]["inputs"] == 2  # type: ignore[index]  # a spec is there, or its values are odd on purpose
    copied = copy.deepcopy(network)
    assert spec_of(copied) == spec_of(network)
    assert spec_of(nn.Linear(2, 1)) is None
    assert spec_of(nn.Sequential(network)) is None
    assert set(network.state_dict()) == {"weight", "bias"}


def test_a_builder_keeps_its_name_and_its_help():
    assert toy.__name__ == "toy"
    assert toy.__doc__ == "Return a linear layer."
    with pytest.raises(InputError, match="toy has no argument 'rat'"):
        toy(2, rat=0.1)  # type: ignore[call-arg]  # wrong on purpose


def test_a_network_of_ones_own_is_rebuilt_once_entered(monkeypatch):
    with pytest.raises(InputError, match="'toy' is not in the model zoo"):
        rebuild(spec_of(toy(2)))  # type: ignore[arg-type]  # a spec is there, or its values are odd on purpose
    monkeypatch.setitem(MODELS, "toy", toy)
    assert rebuild(spec_of(toy(2))).received == toy(2).received  # type: ignore[arg-type]  # a spec is there, or its values are odd on purpose
