"""Forms: slicing, shrinking without data, refusing what does not fit."""

from typing import Any

import pytest
import torch
from torch import nn

from choral.base.errors import InputError
from choral.compaction import compact, shrink, slice_params
from choral.layers.bayesian.sampling import SpikeSlabLayer, at_means
from choral.plan.bayes import variational_form


def network():
    return nn.Sequential(
        nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6, affine=False), nn.ReLU(), nn.Conv2d(6, 4, 3), nn.Flatten()
    )


KEEP = {"0": torch.tensor([True, False, True, True, False, True])}
X = torch.randn(2, 2, 7, 7, generator=torch.Generator().manual_seed(0))


def test_a_form_says_what_is_left_of_every_tensor():
    form = compact(network(), KEEP, X).form
    left = [0, 2, 3, 5]
    assert form == {
        "axes": {
            "0.weight": {"0": left},
            "0.bias": {"0": left},
            "1.running_mean": {"0": left},
            "1.running_var": {"0": left},
            "3.weight": {"1": left},
        },
        "attributes": {"0": {"out_channels": 4}, "1": {"num_features": 4}, "3": {"in_channels": 4}},
    }


def test_shrink_needs_no_data_and_leaves_the_original_alone():
    form, plain = compact(network(), KEEP, X).form, network()
    plain[0].weight.requires_grad_(False)
    small: Any = shrink(plain, form)
    assert plain[0].weight.shape == (6, 2, 3, 3)
    assert torch.equal(small[0].weight, plain[0].weight[[0, 2, 3, 5]])
    assert torch.equal(small[3].weight, plain[3].weight[:, [0, 2, 3, 5]])
    assert not small[0].weight.requires_grad
    assert small[3].weight.requires_grad
    assert small(X).shape == (2, 36)
    small.load_state_dict(slice_params(plain.state_dict(), form))


def test_anything_with_the_names_of_parameters_can_be_sliced():
    form = compact(network(), KEEP, X).form
    momenta = {"0.bias": torch.arange(6.0), "elsewhere": torch.ones(2)}
    sliced = slice_params(momenta, form)
    assert sliced["0.bias"].tolist() == [0, 2, 3, 5]
    assert sliced["elsewhere"] is momenta["elsewhere"]


def test_forms_of_other_networks_are_refused():
    form = compact(network(), KEEP, X).form
    with pytest.raises(InputError, match=r"index 5 of axis 0 of '0\.weight', which has shape \(4, 2, 3, 3\)"):
        shrink(shrink(network(), form), form)
    with pytest.raises(InputError, match=r"names '0\.weight',"):
        shrink(nn.ReLU(), form)
    with pytest.raises(InputError, match="'axes' and 'attributes'"):
        slice_params({}, {})


@pytest.mark.parametrize("attributes", [{"0": {"forward": 3}}, {"9": {"groups": 1}}, {"0": {"groups": "2"}}])
def test_a_form_can_only_set_sizes(attributes):
    with pytest.raises(InputError, match="only sizes of layers"):
        shrink(network(), {"axes": {}, "attributes": attributes})


def test_shared_parameters_stay_shared():
    plain = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    plain.add_module("again", plain[0])
    small: Any = shrink(plain, {"axes": {"0.weight": {"0": [1]}, "again.weight": {"0": [1]}}, "attributes": {}})
    assert small[0].weight is small.again.weight
    assert small[0].weight.shape == (1, 4)


def test_the_posterior_of_a_weight_follows_its_form():
    """A spike-and-slab network whose gates are frozen is cut where its plain form is, and gives the same outputs."""
    plain = nn.Sequential(nn.Conv2d(2, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 3), nn.Flatten())

    def joint(network):
        return nn.Sequential(*[SpikeSlabLayer(layer) if isinstance(layer, nn.Conv2d) else layer for layer in network])

    big = joint(plain)
    big[0].frozen_gate.copy_(KEEP["0"].float())
    form = compact(nn.Sequential(*[m.plain() if hasattr(m, "plain") else m for m in big]), KEEP, X).form
    small = joint(shrink(plain, form))
    small.load_state_dict(slice_params(big.state_dict(), variational_form(form, list(big.state_dict()))))
    assert small[0].gate_logit.shape == (4,)
    with torch.no_grad(), at_means():
        torch.testing.assert_close(small(X), big(X), rtol=1e-5, atol=1e-5)
