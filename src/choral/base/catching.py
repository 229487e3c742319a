"""Catch functions of torch in networks that are not ours: random ones draw from the running stream, embeddings keep their padding."""

from collections.abc import Callable, Sequence
from types import FunctionType
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


def _attended(*args: Any, **kwargs: Any) -> Tensor:
    """Attention inside multi-head attention: ours if it drops, else torch's."""
    return (
        _noting(_attention)(*args, **kwargs)
        if _drops(args, kwargs)
        else F.scaled_dot_product_attention(*args, **kwargs)
    )


_theirs: Any = F.multi_head_attention_forward
_multi_head = FunctionType(  # while torch runs it, a mode does not see what it calls: this copy calls ours
    _theirs.__code__,
    {
        **_theirs.__globals__,
        "scaled_dot_product_attention": _attended,
        "dropout": _caught_functional,
        "has_torch_function": lambda *_: False,
    },
    _theirs.__name__,
    _theirs.__defaults__,
    _theirs.__closure__,
)
_multi_head.__kwdefaults__ = _theirs.__kwdefaults__


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
_their_softmax: Any = F.gumbel_softmax
_gumbel_softmax = FunctionType(
    _their_softmax.__code__,
    {**_their_softmax.__globals__, "has_torch_function_unary": lambda *_: False},
    _their_softmax.__name__,
    _their_softmax.__defaults__,
)


def _lend(func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    stream = now().stream
    if stream is None or kwargs.get("generator") is not None:
        return func(*args, **kwargs)
    _note()
    like = next((a for a in args if isinstance(a, Tensor)), None)
    device = like.device if like is not None else torch.device(kwargs.get("device") or "cpu")
    return func(*args, **kwargs | {"generator": stream.generator(device)})


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
        if func is F.multi_head_attention_forward:
            return _multi_head(*args, **kwargs)
        if func is F.gumbel_softmax:
            with self:
                return _gumbel_softmax(*args, **kwargs)
        return func(*args, **kwargs)
