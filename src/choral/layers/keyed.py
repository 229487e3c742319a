"""torch's random functions by the running key: dropout, attention with dropout, and draws of a tensor's shape.

Within a `keyed` block they draw by the counters of `choral.base.draws`; everything else runs as torch runs it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode

from choral.base.draws import Part, Rate, Stream, dropout, normal, now, under, uniform


def _dropping(dims: int) -> Callable[..., Any]:
    """Return what stands for a dropout function: it drops elements or, with `dims` axes after theirs, whole channels."""

    def drop(input: Tensor, p: float, training: bool, **_: Any) -> Any:
        shape = (*input.shape[: input.dim() - dims], *[1] * dims)
        return dropout(input, now().dropout or p, shape=shape) if training else NotImplemented

    return drop


def _like(draw: Callable[..., Tensor], x: Tensor) -> Tensor:
    """Return draws of a tensor's shape; weights have no axis of the batch."""
    return draw(x.shape, like=x, rows=None if isinstance(x, Parameter) else 0)


def _embedding(input: Tensor, weight: Tensor, padding_idx: int | None, max_norm: float | None, **more: Any) -> Any:
    """Look up rows as torch does, also where weights are mapped: there torch lets the padding of all networks but the first learn."""
    stream = now().stream
    if stream is None or stream.by_number:
        return NotImplemented
    if max_norm is not None or more["scale_grad_by_freq"]:
        raise RuntimeError("an embedding with max_norm or scale_grad_by_freq looks at all rows of a batch at once")
    if padding_idx is None:
        return NotImplemented
    is_padding = torch.arange(weight.shape[0], device=weight.device) == padding_idx % weight.shape[0]
    return F.embedding(input, torch.where(is_padding.unsqueeze(1), weight.detach(), weight))


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Scaled dot-product attention whose dropout follows the running key."""
    if not dropout_p:
        return NotImplemented
    if enable_gqa:
        key, value = (t.repeat_interleave(query.size(-3) // t.size(-3), -3) for t in (key, value))
    hidden = [] if attn_mask is None else [~attn_mask if attn_mask.dtype == torch.bool else attn_mask]
    if is_causal:
        hidden.append(query.new_ones(query.shape[-2], key.shape[-2], dtype=torch.bool).triu(1))
    return _weights(query, key, hidden, dropout_p, scale) @ value


def _weights(query: Tensor, key: Tensor, masks: list[Tensor], rate: float, scale: float | None = None) -> Tensor:
    """Return the weights of attention; masks are added to the scores, or booleans that are True where nothing is attended to."""
    scores = query @ key.transpose(-2, -1) * (query.size(-1) ** -0.5 if scale is None else scale)
    for mask in masks:
        scores = scores.masked_fill(mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    return dropout(scores.softmax(-1), rate)


def _multi_head(*args: Any, **given: Any) -> Any:
    """Multi-head attention as torch's function computes it, whose dropout follows the running key; a mode does not see what it calls."""
    query, key, value, _, heads, weight, bias, bias_k, _, adds_zero, rate, out_weight, out_bias = args
    mask, padding, static = given["attn_mask"], given["key_padding_mask"], (given["static_k"], given["static_v"])
    if adds_zero or bias_k is not None or static != (None, None) or (given["is_causal"] and mask is None):
        return NotImplemented
    if not (given["training"] and rate):
        return NotImplemented
    if weight is not None and query is key is value:
        projected = F.linear(query, weight, bias).chunk(3, -1)
    else:
        own = weight.chunk(3) if weight is not None else [given[f"{n}_proj_weight"] for n in "qkv"]
        biases = (None, None, None) if bias is None else bias.chunk(3)
        projected = tuple(map(F.linear, (query, key, value), own, biases))
    query, key, value = (t.unflatten(-1, (heads, -1)).movedim(0, -2) for t in projected)
    masks = []  # queries, keys and values are ([row,] head, time, feature)
    if mask is not None:
        masks.append(mask.unflatten(0, query.shape[:-2]) if mask.dim() == 3 else mask)
    if padding is not None:
        masks.append(padding.unsqueeze(-2).unsqueeze(-2))
    weights = _weights(query, key, masks, rate)
    joined = (weights @ value).movedim(-2, 0).flatten(-2)  # (time, [row,] feature)
    outputs = F.linear(joined.reshape(-1, joined.shape[-1]), out_weight, out_bias).view(*joined.shape[:-1], -1)
    if not given["need_weights"]:
        return outputs, None
    return outputs, weights.mean(-3) if given["average_attn_weights"] else weights


_CAUGHT: dict[Any, Callable[..., Any]] = {
    torch.dropout: lambda input, p, train: _dropping(0)(input, p, train),
    F.dropout: _dropping(0),
    F.dropout1d: _dropping(1),
    F.dropout2d: _dropping(2),
    F.dropout3d: _dropping(3),
    torch.rand_like: lambda x, **_: _like(uniform, x),
    torch.randn_like: lambda x, **_: _like(normal, x),
    torch.bernoulli: lambda x, **_: (_like(uniform, x) < x).to(x.dtype),
    F.embedding: _embedding,
    F.multi_head_attention_forward: _multi_head,
    F.scaled_dot_product_attention: _attention,
}
"""What stands for functions of torch in keyed blocks; NotImplemented where torch's own does as well."""


class Catch(TorchFunctionMode):
    """Send the random functions of torch to the running stream."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        stream, instead = now().stream, _CAUGHT.get(func)
        if stream is not None and instead is not None:
            found = instead(*args, **(kwargs or {}))
            if found is not NotImplemented:
                stream.caught += 1
                return found
        return func(*args, **(kwargs or {}))


@contextmanager
def keyed(
    key: int | Tensor,
    step: int | Tensor = 0,
    *,
    catch: bool = True,
    part: Part | None = None,
    kept: Any = None,
    dropout: Rate | None = None,
) -> Iterator[Stream]:
    """Make every draw of the block follow (key, step).

    Args:
        key: an integer key, or the int32 words of one (`words`), which may be batched by vmap.
        step: any integer, or an int32 scalar that vmap may map.
        catch: also redirect torch's own random functions, at a few microseconds for each torch call.
        part: the part of a batch in the block; None for all of it.
        kept: cache of drawn weights.
        dropout: rate of dropout layers instead of their own.
    """
    stream = Stream(key, step)
    told = {"stream": stream, "part": part, "dropout": dropout, "kept": now().kept if kept is None else kept}
    with under(**told), Catch() if catch else nullcontext():
        yield stream
