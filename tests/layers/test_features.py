"""Features for tables, against the package they were first published in."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from choral.base.errors import InputError
from choral.layers import Piecewise, piecewise_embedding, quantile_edges
from choral.layers.features import Apiece

rtdl = pytest.importorskip("rtdl_num_embeddings")
G = torch.Generator().manual_seed(0)
X = torch.cat([torch.randn(200, 2, generator=G), torch.randint(0, 6, (200, 1), generator=G).float()], 1)


def bins():
    return [torch.tensor(e) for e in quantile_edges(X, bins=8)]


def test_edges_are_those_of_the_package():
    for ours, theirs in zip(quantile_edges(X, bins=8), rtdl.compute_bins(X, n_bins=8)):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-6)


def test_the_encoding_is_that_of_the_package_also_outside_the_training_range():
    x = 4 * torch.randn(50, 3, generator=G)
    theirs = rtdl.PiecewiseLinearEncoding(bins())(x)
    torch.testing.assert_close(Piecewise([e.tolist() for e in bins()])(x), theirs, rtol=1e-5, atol=1e-5)


def test_the_embedding_is_that_of_the_package_after_copying_weights():
    ours, theirs = (
        piecewise_embedding([e.tolist() for e in bins()], 4),
        rtdl.PiecewiseLinearEmbeddings(bins(), 4, activation=False, version="B"),
    )
    with torch.no_grad():
        torch.nn.init.normal_(theirs.linear.weight)
        maps = ours[1].maps.weight.view(3, 4, -1)  # (feature, width, line then bins)
        maps[:, :, 0] = theirs.linear0.weight
        maps[:, :, 1:] = theirs.linear.weight.movedim(1, 2)[:, :, : maps.shape[2] - 1]
        for feature, edges in enumerate(bins()):  # theirs fills short features from the end
            used, room = len(edges) - 1, theirs.linear.weight.shape[1]
            if used < room:
                kept = torch.cat([theirs.linear.weight[feature, : used - 1], theirs.linear.weight[feature, room - 1 :]])
                maps[feature, :, 1 : 1 + used] = kept.T
                maps[feature, :, 1 + used :] = 0
        ours[1].maps.bias.copy_(theirs.linear0.bias.flatten())
    x = 2 * torch.randn(40, 3, generator=G)
    torch.testing.assert_close(ours(x), theirs(x).flatten(1), rtol=1e-5, atol=1e-5)


def test_at_first_an_embedding_is_a_line():
    embedding = piecewise_embedding([e.tolist() for e in bins()], 4)
    steps = embedding(torch.arange(5.0).unsqueeze(1).expand(5, 3)).diff(dim=0)
    torch.testing.assert_close(steps, steps[:1].expand_as(steps))


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=3, max_size=40, unique=True), st.integers(1, 12))
def test_the_sum_of_a_features_columns_rises_from_edge_to_edge(values, count):
    column = torch.tensor(values).unsqueeze(1)
    edges = quantile_edges(column, bins=count)
    if not edges[0]:
        return
    at = Piecewise(edges)(torch.tensor(edges[0]).unsqueeze(1)).sum(1)
    torch.testing.assert_close(at, torch.arange(len(edges[0]), dtype=torch.float32), rtol=1e-3, atol=1e-3)


def test_large_numbers_with_narrow_bins_do_not_round():
    x = torch.tensor([[1e6], [1e6 + 0.25], [1e6 + 0.5]])
    assert Piecewise([(1e6, 1e6 + 0.5, 1e6 + 1)])(x)[:, 0].tolist() == [0.0, 0.5, 1.0]


def test_a_copy_and_another_type_give_the_same():
    encoding = Piecewise([(0.0, 1.0, 3.0)])
    x = torch.linspace(-1, 5, 7).unsqueeze(1)
    assert torch.equal(copy.deepcopy(encoding)(x), encoding(x))
    assert encoding(x.double()).dtype == torch.float64
    assert not encoding.state_dict()
    torch.testing.assert_close(encoding(x.double()).float(), encoding(x))


@pytest.mark.parametrize("edges", [[(1.0,)], [(2.0, 1.0)], [(0.0, float("nan"))], [(0.0, 0.0)]])
def test_edges_that_do_not_rise_are_refused(edges):
    with pytest.raises(InputError, match="finite numbers that rise"):
        Piecewise(edges)


@pytest.mark.parametrize("x", [np.zeros(3), np.array([[np.nan]]), np.zeros((2, 2, 2))])
def test_edges_need_rows_of_finite_numbers(x):
    with pytest.raises(InputError, match="finite numbers of shape"):
        quantile_edges(x)


def test_predictions_take_the_maps_of_all_features_at_once():
    maps = Apiece(5, 3, 4)
    x = torch.randn(7, 15, generator=G)
    trained = maps(x)
    with torch.no_grad():
        torch.testing.assert_close(maps(x), trained, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(maps(x[::2]), trained[::2], rtol=1e-5, atol=1e-6)
