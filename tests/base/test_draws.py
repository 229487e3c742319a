import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import nn

from choral.base import draws
from choral.layers.keyed import _attention, keyed

LIKE = torch.zeros(())


def uniforms(key: int, step: int, sites: int, n: int) -> np.ndarray:
    with keyed(key, step):
        return np.stack([draws.uniform((n,), like=LIKE).numpy() for _ in range(sites)])


@pytest.mark.parametrize("key", [0, 1, 2**62, 123456789])
def test_uniforms_pass_kolmogorov_smirnov_and_are_uncorrelated_over_elements_sites_steps_and_keys(key):
    a = uniforms(key, 0, 8, 20_000)
    assert min(stats.kstest(row, "uniform").pvalue for row in a) > 1e-4
    b, c = uniforms(key, 1, 1, 20_000)[0], uniforms(key + 1, 0, 1, 20_000)[0]
    pairs = [(a[0][:-1], a[0][1:]), (a[0], a[1]), (a[0], b), (a[0], c), (a[0][:-7], a[0][7:])]
    assert max(abs(np.corrcoef(x, y)[0, 1]) for x, y in pairs) < 5 / np.sqrt(20_000)


def test_first_element_over_many_steps_sites_and_keys_is_uniform():
    by_step = [uniforms(5, s, 1, 1)[0, 0] for s in range(4000)]
    by_key = [uniforms(k, 0, 1, 1)[0, 0] for k in range(4000)]
    by_site = uniforms(9, 0, 4000, 1)[:, 0]
    for sample in (by_step, by_key, by_site):
        assert stats.kstest(sample, "uniform").pvalue > 1e-4


def test_bits_are_balanced_and_independent_of_each_other():
    with keyed(77):
        bits = draws._bits((65536,), torch.device("cpu"), draws.now().stream, None).numpy().view(np.uint32)
    columns = ((bits[:, None] >> np.arange(32)) & 1).astype(float)
    assert np.abs(columns.mean(0) - 0.5).max() < 5 * 0.5 / 256
    off = np.corrcoef(columns.T) - np.eye(32)
    assert np.abs(off).max() < 5.5 / 256


def test_normals_are_normal_in_body_and_tail():
    with keyed(3):
        z = draws.normal((200_000,), like=LIKE).numpy()
    assert stats.kstest(z, "norm").pvalue > 1e-4
    assert abs((z**4).mean() - 3) < 0.1
    assert np.isfinite(z).all()
    assert (abs(z) > 3).mean() == pytest.approx(0.0027, abs=0.0005)


def test_integers_are_uniform_and_in_range():
    with keyed(3):
        k = draws.integers(7, (70_000,), device=torch.device("cpu"))
    counts = torch.bincount(k, minlength=7)
    assert counts.numel() == 7
    assert stats.chisquare(counts.numpy()).pvalue > 1e-4


@given(st.integers(0, 2**62), st.integers(0, 10**6), st.integers(1, 4))
@settings(max_examples=25, deadline=None)
def test_vmapped_keys_give_the_same_numbers_as_single_keys(key, step, branches):
    keys = [key + i for i in range(branches)]

    def run(words):
        with keyed(words, step):
            return (
                F.dropout(torch.ones(5, 3), 0.4),
                draws.normal((4,), like=LIKE),
                draws.integers(9, (6,), device=LIKE.device),
            )

    mapped = torch.func.vmap(run)(draws.words(*keys).view(-1, 2))
    for i, k in enumerate(keys):
        with keyed(k, step):
            alone = (
                F.dropout(torch.ones(5, 3), 0.4),
                draws.normal((4,), like=LIKE),
                draws.integers(9, (6,), device=LIKE.device),
            )
        for a, b in zip(alone, mapped):
            assert torch.equal(a, b[i])


def test_dropout_keeps_the_mean_and_the_rate():
    x = torch.ones(400, 500)
    with keyed(11):
        out = F.dropout(x, 0.3)
    assert float((out == 0).float().mean()) == pytest.approx(0.3, abs=5 * (0.21 / x.numel()) ** 0.5)
    assert out.unique().tolist() == pytest.approx([0.0, 1 / 0.7])


@pytest.mark.parametrize(
    ("layer", "shape", "axes"),
    [
        (nn.Dropout2d(0.5), (3, 4, 5, 5), (2, 3)),
        (nn.Dropout1d(0.5), (3, 4, 5), (2,)),
        (nn.Dropout3d(0.5), (2, 4, 3, 3, 3), (2, 3, 4)),
    ],
)
def test_channel_dropout_drops_whole_channels(layer, shape, axes):
    with keyed(1):
        out = layer(torch.ones(shape))
    means = out.mean(axes)
    assert set(means.unique().tolist()) == {0.0, 2.0}


def test_attention_dropout_is_caught_and_without_dropout_attention_is_torch_s_own():
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
    x = torch.randn(2, 5, 8)
    with keyed(1) as first:
        a = layer(x, x, x, need_weights=False)[0]
    with keyed(1):
        b = layer(x, x, x, need_weights=False)[0]
    with keyed(2):
        c = layer(x, x, x, need_weights=False)[0]
    assert first.caught
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    q, k, v = torch.randn(3, 2, 4, 6, 8)
    mask = torch.zeros(6, 6).masked_fill(torch.ones(6, 6).triu(1) > 0, float("-inf"))
    for options in ({"attn_mask": mask}, {"is_causal": True}, {"attn_mask": mask == 0}):
        found = _attention(q, k, v, dropout_p=1e-12, **options)
        assert torch.allclose(found, F.scaled_dot_product_attention(q, k, v, **options), atol=1e-6)


def test_outside_a_keyed_block_draws_follow_torch_s_generator():
    torch.manual_seed(4)
    a = draws.normal((3,), like=LIKE)
    torch.manual_seed(4)
    assert torch.equal(a, torch.randn(3))


def test_evaluation_mode_is_left_alone():
    with keyed(0):
        assert torch.equal(F.dropout(torch.ones(10), 0.5, training=False), torch.ones(10))


def test_members_of_a_joint_network_draw_apart_and_the_same_in_every_way():
    like = torch.zeros(())

    def numbers(key, index):
        with keyed(key, 4):
            draws.uniform((1,), like=like)
            members = draws.Branch()
            with members.member(index):
                return draws.uniform((500,), like=like)

    alone = [numbers(9, i) for i in range(4)]
    assert abs(torch.corrcoef(torch.stack(alone)) - torch.eye(4)).max() < 0.15
    index = torch.arange(4, dtype=torch.int32)
    mapped = torch.func.vmap(lambda i: numbers(9, i))(index)
    by_words = torch.stack([numbers(draws.words(9), i) for i in range(4)])
    nested = torch.func.vmap(lambda w: torch.func.vmap(lambda i: numbers(w, i))(index))(draws.words(9, 10))
    for other in (mapped, by_words, nested[0]):
        assert torch.equal(torch.stack(alone), other)
    assert not torch.equal(nested[0], nested[1])


def test_members_count_what_is_caught_for_the_outer_stream_and_two_branches_differ():
    with keyed(3) as stream:
        first, second = draws.Branch(), draws.Branch()
        found = []
        for streams in (first, second):
            with streams.member(0):
                found.append(torch.nn.functional.dropout(torch.ones(100)))
    assert stream.caught == 2
    assert not torch.equal(*found)


@pytest.mark.parametrize("key", [0, 5, 2**31 + 7, 2**63 - 1])
def test_a_single_number_is_the_same_for_a_key_and_for_its_words(key):
    for step in range(40):
        with keyed(key, step):
            alone = [int(draws.integers(1000, shape, device=torch.device("cpu"))) for shape in ((), (1,), (1, 1))]
        with keyed(draws.words(key), step):
            wanted = [int(draws.integers(1000, shape, device=torch.device("cpu"))) for shape in ((), (1,), (1, 1))]
        with keyed(key, step):
            first = int(draws.integers(1000, (7,), device=torch.device("cpu"))[0])
        with keyed(key, step):
            assert draws.index(1000, device=torch.device("cpu")) == wanted[0]
        assert alone == wanted
        assert first == wanted[0]


def test_draws_hashed_in_blocks_are_those_hashed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = (3, 1001)
    with keyed(2**40 + 5, 3):
        whole = [draws.uniform(shape, like=torch.zeros(())) for _ in range(2)]
    monkeypatch.setattr(draws, "_BLOCK", 128)
    with keyed(2**40 + 5, 3):
        assert all(torch.equal(draws.uniform(shape, like=torch.zeros(())), w) for w in whole)
