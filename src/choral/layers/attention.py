"""Attention with separate `nn.Linear` layers, which can be converted.

`nn.MultiheadAttention` keeps three projections in one parameter and reads the weights of the fourth without calling it; a replaced layer
would never run. `open_attention` replaces it by an equal module whose four projections are ordinary `nn.Linear` layers.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from choral.base.errors import ConversionError
from choral.base.text import matches
from choral.layers.convert import linear, swap, within


class OpenAttention(nn.Module):
    """Multi-head attention with four linear layers: `query`, `key`, `value` and `out`.

    Args:
        attention: the plain attention; weights are copied and settings kept.

    Shapes: those of `nn.MultiheadAttention`, with or without batch_first.

    >>> plain = nn.MultiheadAttention(8, 2, batch_first=True)
    >>> x = torch.ones(3, 5, 8)
    >>> torch.allclose(OpenAttention(plain)(x, x, x)[0], plain(x, x, x)[0], atol=1e-6)
    True
    """

    def __init__(self, attention: nn.MultiheadAttention):
        super().__init__()
        if attention.bias_k is not None or attention.bias_v is not None or attention.add_zero_attn:
            raise ConversionError(
                "MultiheadAttention with add_bias_kv or add_zero_attn cannot be opened into linear layers; build it without them."
            )
        self.heads, self.drop = attention.num_heads, nn.Dropout(attention.dropout)
        self.batch_first = False  # what torch's transformer layers look at: they must call this module, not read it
        self._batch_first = attention.batch_first
        if attention.in_proj_weight is None:
            weights = [attention.get_parameter(f"{p}_proj_weight") for p in "qkv"]
        else:
            weights = list(attention.in_proj_weight.chunk(3))
        biases = [None] * 3 if attention.in_proj_bias is None else list(attention.in_proj_bias.chunk(3))
        for name, weight, bias in zip(("query", "key", "value"), weights, biases):
            self.add_module(name, linear(weight, bias))
        self.out = linear(attention.out_proj.weight, attention.out_proj.bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the attended values and, if wanted, the attention weights."""
        single = query.dim() == 2
        if single:
            query, key, value = (t.unsqueeze(0) for t in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif not self._batch_first:
            query, key, value = (t.transpose(0, 1) for t in (query, key, value))
        given = {"query": query, "key": key, "value": value}
        projected = [self.get_submodule(name)(t) for name, t in given.items()]
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in projected)
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5  # (batch, head, query, key)
        if attn_mask is not None and attn_mask.dim() == 3:
            attn_mask = attn_mask.unflatten(0, (-1, self.heads))
        padding = None if key_padding_mask is None else key_padding_mask[:, None, None, :]
        for mask in (m for m in (attn_mask, padding) if m is not None):
            scores = scores.masked_fill(mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
        weights = self.drop(scores.softmax(-1))
        y = self.out((weights @ v).transpose(1, 2).flatten(2))
        if single:
            y, weights = y.squeeze(0), weights.squeeze(0)
        elif not self._batch_first:
            y = y.transpose(0, 1)
        if not need_weights:
            return y, None
        return y, weights.mean(-3) if average_attn_weights else weights

    def extra_repr(self) -> str:
        return f"heads={self.heads}, batch_first={self._batch_first}"


def open_attention(network: nn.Module, *, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> nn.Module:
    """Return a copy of the network with `OpenAttention` in place of `nn.MultiheadAttention`.

    Args:
        network: any nested network; not changed.
        include: name patterns of the layers to open; empty for all.
        exclude: name patterns of layers to keep.
    """

    def replace(name: str, module: nn.Module) -> nn.Module | None:
        if not isinstance(module, nn.MultiheadAttention) or within(name, exclude):
            return None
        if not all(p.requires_grad for p in module.parameters()):
            return None  # frozen: it stays as it is
        return OpenAttention(module) if not include or matches(name, include) else None

    return swap(network, replace)
