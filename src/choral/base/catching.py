"""Catch functions of torch in networks that are not ours: random ones draw from the running stream, embeddings keep their padding."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode

from choral.base.streams import dropout, dropped, keep_mask, normal, now, uniform


def _dropout(x: Tensor, rate: float) -> Tensor:
    """Drop single elements, at the layer's rate or the one that is given from outside."""
    own = now().dropout
    return dropout(x, rate) if own is None else dropped(x, own, x.shape)


def _dropout_channels(x: Tensor, rate: float, dims: int) -> Tensor:
    """Drop whole channels; the channel axis is `dims + 1` from the end and the axes before it are batch axes."""
    own = now().dropout
    if own is not None:
        return dropped(x, own, tuple(x.shape[: x.dim() - dims]) + (1,) * dims)
    if rate <= 0:
        return x
    if rate >= 1:
        return x * 0
    shape = tuple(x.shape[: x.dim() - dims]) + (1,) * dims
    return x * (keep_mask(shape, rate, device=x.device, rows=0).to(x.dtype) * (1.0 / (1.0 - rate)))


def _alpha_dropout(x: Tensor, rate: float, shape: Sequence[int]) -> Tensor:
    """Drop to the negative saturation value of SELU and correct mean and variance (Klambauer et al., 2017)."""
    if rate <= 0:
        return x
    saturation = -1.7580993408473766
    keep = keep_mask(shape, rate, device=x.device, rows=0).to(x.dtype)
    a = ((1 - rate) * (1 + rate * saturation**2)) ** -0.5
    return a * (x * keep + saturation * (1 - keep)) - a * saturation * rate


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Scaled dot-product attention whose dropout follows the running key."""
    if enable_gqa:
        key = key.repeat_interleave(query.size(-3) // key.size(-3), -3)
        value = value.repeat_interleave(query.size(-3) // value.size(-3), -3)
    scores = query @ key.transpose(-2, -1) * (query.size(-1) ** -0.5 if scale is None else scale)
    if is_causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, float("-inf")) if attn_mask.dtype == torch.bool else scores + attn_mask
    return dropout(scores.softmax(-1), dropout_p) @ value


def _note() -> None:
    """Note in the running stream that a draw was caught."""
    stream = now().stream
    if stream is not None:
        stream.caught += 1


def _noting(function: Callable[..., Any]) -> Callable[..., Any]:
    def noted(*args: Any, **kwargs: Any) -> Any:
        _note()
        return function(*args, **kwargs)

    return noted


def _caught(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return _noting(_dropout)(x, p) if training else x


def _caught_functional(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return _noting(_dropout)(input, p) if training else input


def _caught_channels(dims: int) -> Callable[..., Tensor]:
    def catch(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        return _noting(_dropout_channels)(input, p, dims) if training else input

    return catch


def _caught_alpha(by_channel: bool) -> Callable[..., Tensor]:
    def catch(input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
        if not training:
            return input
        shape = tuple(input.shape[:2]) + (1,) * (input.dim() - 2) if by_channel else tuple(input.shape)
        return _noting(_alpha_dropout)(input, p, shape)

    return catch


def _caught_rrelu(
    input: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: bool = False
) -> Tensor:
    if not training:
        return F.rrelu(input, lower, upper)
    _note()
    slope = lower + (upper - lower) * uniform(input.shape, like=input, rows=0)
    return torch.where(input >= 0, input, input * slope)


def _rows(x: Tensor) -> int | None:
    """Return the axis of the batch; none in weights."""
    return None if isinstance(x, Parameter) else 0


_CAUGHT: dict[Any, Callable[..., Tensor]] = {
    torch.dropout: _caught,
    F.dropout: _caught_functional,
    F.dropout1d: _caught_channels(1),
    F.dropout2d: _caught_channels(2),
    F.dropout3d: _caught_channels(3),
    F.alpha_dropout: _caught_alpha(by_channel=False),
    F.feature_alpha_dropout: _caught_alpha(by_channel=True),
    F.rrelu: _caught_rrelu,
    torch.rand_like: _noting(lambda x, **_: uniform(x.shape, like=x, rows=_rows(x))),
    torch.randn_like: _noting(lambda x, **_: normal(x.shape, like=x, rows=_rows(x))),
    torch.bernoulli: _noting(lambda x, **_: (uniform(x.shape, like=x, rows=_rows(x)) < x).to(x.dtype)),
}


def _embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """Look up rows as torch does, also where weights are mapped: there torch lets the padding of all networks but the first learn."""
    if torch._C._functorch.maybe_current_level() is None:
        return F.embedding(input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
    if max_norm is not None or scale_grad_by_freq:
        raise RuntimeError("an embedding with max_norm or scale_grad_by_freq looks at all rows of a batch at once")
    if padding_idx is None:
        return F.embedding(input, weight)
    _note()
    is_padding = torch.arange(weight.shape[0], device=weight.device) == padding_idx % weight.shape[0]
    return F.embedding(input, torch.where(is_padding.unsqueeze(1), weight.detach(), weight))


def _drops(args: Any, kwargs: Any) -> bool:
    return bool(kwargs.get("dropout_p") or (len(args) > 4 and args[4]))


def _multi_head(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Multi-head attention as torch's function of these arguments computes it, with dropout by the running key; see there for the arguments.

    A mode does not see what that function calls.
    """
    if query.dim() == 2:  # (time, feature)
        query, key, value = (t.unsqueeze(1) for t in (query, key, value))
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        single = True
    else:
        single = False
    time, rows, width = query.shape
    each = width // num_heads
    hidden, padding = (_as_added(mask, query.dtype) for mask in (attn_mask, key_padding_mask))
    if is_causal and padding is None and not need_weights:
        hidden = None
    else:
        is_causal = False
    if in_proj_weight is not None and query is key is value:
        q, k, v = F.linear(query, in_proj_weight, in_proj_bias).chunk(3, -1)
    else:
        own: Any = (q_proj_weight, k_proj_weight, v_proj_weight) if in_proj_weight is None else in_proj_weight.chunk(3)
        biases = (None, None, None) if in_proj_bias is None else in_proj_bias.chunk(3)
        q, k, v = map(F.linear, (query, key, value), own, biases)
    if bias_k is not None and bias_v is not None:
        k, v = torch.cat([k, bias_k.repeat(1, rows, 1)]), torch.cat([v, bias_v.repeat(1, rows, 1)])
        hidden, padding = (None if mask is None else F.pad(mask, (0, 1)) for mask in (hidden, padding))
    q = q.reshape(time, rows * num_heads, each).transpose(0, 1)
    k, v = (
        t.reshape(len(t), rows * num_heads, each).transpose(0, 1) if given is None else given
        for t, given in ((k, static_k), (v, static_v))
    )
    if add_zero_attn:
        k, v = (torch.cat([t, t.new_zeros(len(t), 1, each)], 1) for t in (k, v))
        hidden, padding = (None if mask is None else F.pad(mask, (0, 1)) for mask in (hidden, padding))
    if hidden is not None and hidden.dim() == 2:
        hidden = hidden.unsqueeze(0)
    if padding is not None:
        spread = padding.view(rows, 1, 1, -1).expand(-1, num_heads, -1, -1).reshape(rows * num_heads, 1, -1)
        hidden = spread if hidden is None else hidden + spread
    found: Tensor | None = None
    if need_weights:
        scaled, keys = q * (1.0 / each) ** 0.5, k.transpose(-2, -1)
        scores = torch.bmm(scaled, keys) if hidden is None else torch.baddbmm(hidden, scaled, keys)
        found = _dropout(scores.softmax(-1), dropout_p)
        joined = torch.bmm(found, v).transpose(0, 1)
        found = found.view(rows, num_heads, time, -1)
        found = found.mean(1) if average_attn_weights else found
        found = found.squeeze(0) if single else found
    else:
        q, k, v = (t.view(rows, num_heads, -1, each) for t in (q, k, v))
        if hidden is not None:
            hidden = hidden.unsqueeze(0) if len(hidden) == 1 else hidden.view(rows, num_heads, -1, hidden.shape[-1])
        joined = _attention(q, k, v, hidden, dropout_p, is_causal).permute(2, 0, 1, 3)
    _note()
    outputs = F.linear(joined.reshape(time * rows, width), out_proj_weight, out_proj_bias).view(time, rows, -1)
    return (outputs.squeeze(1) if single else outputs), found


def _attends_dropping(args: Any, kwargs: Any) -> bool:
    """Return whether multi-head attention, called with these arguments, drops."""
    rate = kwargs.get("dropout_p", args[10] if len(args) > 10 else 0.0)
    training = kwargs.get("training", args[13] if len(args) > 13 else True)
    return bool(training and (rate or now().dropout is not None))


def _as_added(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Return a mask as numbers that are added to scores: minus infinity where a boolean one is True."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask, float("-inf"))


_methods = (
    "uniform_",
    "normal_",
    "bernoulli_",
    "exponential_",
    "random_",
    "geometric_",
    "cauchy_",
    "log_normal_",
    "multinomial",
)
_LENT = {torch.rand, torch.randn, torch.randint, torch.randperm, torch.normal, torch.multinomial, torch.poisson} | {
    getattr(torch.Tensor, name) for name in _methods
}
"""Functions that take a generator, and are given one of the next site."""


def _lend(func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    stream = now().stream
    if stream is None or kwargs.get("generator") is not None:
        return func(*args, **kwargs)
    _note()
    like = next((a for a in args if isinstance(a, Tensor)), None)
    device = like.device if like is not None else torch.device(kwargs.get("device") or "cpu")
    return func(*args, **kwargs | {"generator": stream.generator(device)})


def _gumbel_softmax(logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1) -> Tensor:
    """Draw from the Gumbel-softmax distribution as torch does, by the running key."""
    spread = _lend(Tensor.exponential_, (torch.empty_like(logits, memory_format=torch.legacy_contiguous_format),), {})
    soft = ((logits - spread.log()) / tau).softmax(dim)
    if not hard:
        return soft
    chosen = torch.zeros_like(logits).scatter_(dim, soft.max(dim, keepdim=True)[1], 1.0)
    return chosen - soft.detach() + soft


class Catch(TorchFunctionMode):
    """Send the random functions of torch to the running stream."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        replacement = _CAUGHT.get(func)
        if replacement is not None:
            return replacement(*args, **kwargs)
        if func is F.scaled_dot_product_attention and _drops(args, kwargs):
            return _noting(_attention)(*args, **kwargs)
        if func in _LENT:
            return _lend(func, args, kwargs)
        if func is F.embedding:
            return _embedding(*args, **kwargs)
        if func is F.multi_head_attention_forward and _attends_dropping(args, kwargs):
            return _multi_head(*args, **kwargs)
        if func is F.gumbel_softmax:
            return _gumbel_softmax(*args, **kwargs)
        return func(*args, **kwargs)
