import pytest
import torch
from torch import nn

from choral.base.errors import ConversionError
from choral.layers.attention import OpenAttention, open_attention


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("sizes", [{}, {"kdim": 6, "vdim": 5}])
def test_open_attention_is_attention(batch_first, bias, sizes):
    torch.manual_seed(0)
    plain = nn.MultiheadAttention(8, 2, batch_first=batch_first, bias=bias, **sizes).double()
    if bias:
        nn.init.normal_(plain.in_proj_bias)
    attention = OpenAttention(plain)
    q, k, v = (
        torch.randn(3, length, size, dtype=torch.float64)
        for length, size in ((4, 8), (5, sizes.get("kdim", 8)), (5, sizes.get("vdim", 8)))
    )
    if not batch_first:
        q, k, v = (t.transpose(0, 1) for t in (q, k, v))
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[1, 3:] = True
    added = torch.randn(4, 5, dtype=torch.float64)
    each = torch.rand(6, 4, 5) > 0.7
    each[..., 0] = False
    for options in (
        {},
        {"key_padding_mask": padding},
        {"attn_mask": added, "average_attn_weights": False},
        {"attn_mask": each, "key_padding_mask": padding},
    ):
        for got, wanted in zip(attention(q, k, v, **options), plain(q, k, v, **options)):
            torch.testing.assert_close(got, wanted)
    assert attention(q, k, v, need_weights=False)[1] is None


def test_unbatched_inputs():
    plain = nn.MultiheadAttention(8, 2)
    q, k = torch.randn(4, 8), torch.randn(5, 8)
    for got, wanted in zip(OpenAttention(plain)(q, k, k), plain(q, k, k)):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("training", [True, False])
def test_transformer_layers_call_the_opened_attention(training):
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).train(training)
    opened = open_attention(layer)
    x = torch.randn(3, 5, 8)
    with torch.no_grad():
        torch.testing.assert_close(opened(x), layer(x))
        for p in opened.self_attn.out.parameters():  # type: ignore[union-attr]  # a tensor or layer, as built above
            p.zero_()
        assert not torch.allclose(opened(x), layer(x))


def test_names_decide_what_is_opened():
    network = nn.ModuleDict({"a": nn.MultiheadAttention(4, 2), "b": nn.MultiheadAttention(4, 2)})
    assert isinstance(open_attention(network, exclude=("b",)).b, nn.MultiheadAttention)
    assert isinstance(open_attention(network, include=("b",)).b, OpenAttention)


def test_extra_biases_are_refused():
    with pytest.raises(ConversionError, match="add_bias_kv"):
        OpenAttention(nn.MultiheadAttention(4, 2, add_bias_kv=True))
