"""Random draws inside a forward pass, by counting instead of by state.

A draw is a hash of (key, step, site, element): the n-th random call of a forward pass is site n. It needs no generator state, so it
works under `torch.func.vmap` with one key per member and gives the same numbers under every executor, after a resume and on every
device. Layers call `uniform`, `normal`, `integers` or `dropout`; within a `keyed` block these follow the key, outside of one they use
torch's generator, so that layers also work in other training loops. Draws for each row of a batch say which axis is the batch
(`rows`), so that a part of a batch (`part`) draws what it would draw in the whole one; draws without it, such as weights, are the same
for all parts. `keyed` also catches the random functions of torch in networks that are not ours.
"""

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint

from choral.base.streams import (
    Branch,
    Kept,
    Part,
    Rate,
    Stream,
    branch,
    common,
    dropout,
    folded,
    index,
    integers,
    keep_mask,
    normal,
    now,
    remembered,
    repeated,
    step,
    under,
    uniform,
    words,
)  # fmt: skip

__all__ = [
    "Branch", "Kept", "Part", "Rate", "branch", "common", "dropout", "folded", "index", "integers", "keep_mask", "keyed",
    "normal", "remembered", "repeated", "step", "uniform", "words",
]  # fmt: skip

Caught = Callable[..., Tensor]


def _note() -> None:
    """Note in the running stream that a draw was caught."""
    stream = now().stream
    if stream is not None:
        stream.caught += 1


def _noting(function: Caught) -> Caught:
    def noted(*args: Any, **kwargs: Any) -> Tensor:
        _note()
        return function(*args, **kwargs)

    return noted


def _in_training(drop: Callable[[Tensor, float], Tensor], default: bool = True) -> Caught:
    """Return a function with the arguments of torch's dropout functions."""

    def catch(input: Tensor, p: float = 0.5, training: bool = default, inplace: bool = False) -> Tensor:
        return _noting(drop)(input, p) if training else input

    return catch


def _dropout(x: Tensor, rate: float) -> Tensor:
    """Drop single elements, at the layer's rate or the one that is given from outside."""
    return dropout(x, now().dropout or rate)


def _channels(dims: int) -> Caught:
    """Drop whole channels; the channel axis is `dims + 1` from the end and the axes before it are batch axes."""
    return _in_training(lambda x, rate: dropout(x, now().dropout or rate, shape=(*x.shape[:-dims], *[1] * dims)))


def _alpha_dropout(x: Tensor, rate: float, *, by_channel: bool = False) -> Tensor:
    """Drop to the negative saturation value of SELU and correct mean and variance (Klambauer et al., 2017)."""
    if rate <= 0:
        return x
    saturation = -1.7580993408473766
    shape = (*x.shape[:2], *[1] * (x.dim() - 2)) if by_channel else x.shape
    keep = keep_mask(shape, rate, device=x.device, rows=0).to(x.dtype)
    a = ((1 - rate) * (1 + rate * saturation**2)) ** -0.5
    return a * (x * keep + saturation * (1 - keep)) - a * saturation * rate


def _rrelu(
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


_CAUGHT: dict[Any, Caught] = {
    torch.dropout: lambda input, p, train: _in_training(_dropout)(input, p, train),
    F.dropout: _in_training(_dropout),
    F.dropout1d: _channels(1),
    F.dropout2d: _channels(2),
    F.dropout3d: _channels(3),
    F.alpha_dropout: _in_training(_alpha_dropout, default=False),
    F.feature_alpha_dropout: _in_training(lambda x, rate: _alpha_dropout(x, rate, by_channel=True), default=False),
    F.rrelu: _rrelu,
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
    stream = now().stream
    if stream is None or stream.by_number:
        return F.embedding(input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
    if max_norm is not None or scale_grad_by_freq:
        raise RuntimeError("an embedding with max_norm or scale_grad_by_freq looks at all rows of a batch at once")
    if padding_idx is None:
        return F.embedding(input, weight)
    _note()
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


_MULTI_HEAD = inspect.signature(F.multi_head_attention_forward)


def _multi_head(*args: Any, **kwargs: Any) -> Any:
    """Multi-head attention as torch's function computes it, whose dropout follows the running key; a mode does not see what it calls."""
    call = _MULTI_HEAD.bind(*args, **kwargs)
    call.apply_defaults()
    given = SimpleNamespace(**call.arguments)
    if not (given.training and given.dropout_p) or (given.is_causal and given.attn_mask is None):
        return F.multi_head_attention_forward(*args, **kwargs)
    _note()
    query, key, value = _heads(given)  # ([row,] head, time, feature)
    scores = query @ key.transpose(-2, -1) * query.size(-1) ** -0.5
    if given.attn_mask is not None:
        mask = given.attn_mask
        scores = scores + _added(mask.view(*scores.shape[:-2], *mask.shape[1:]) if mask.dim() == 3 else mask, scores)
    if given.key_padding_mask is not None:
        scores = scores + _added(given.key_padding_mask.unsqueeze(-2).unsqueeze(-2), scores)
    weights = dropout(scores.softmax(-1), given.dropout_p)
    joined = (weights @ value).movedim(-2, 0).flatten(-2)  # (time, [row,] feature)
    outputs = F.linear(joined.reshape(-1, joined.shape[-1]), given.out_proj_weight, given.out_proj_bias)
    averaged = weights.mean(-3) if given.average_attn_weights else weights
    return outputs.view(*joined.shape[:-1], -1), (averaged if given.need_weights else None)


def _heads(given: SimpleNamespace) -> tuple[Tensor, ...]:
    """Return queries, keys and values of all heads ([row,] head, time, feature)."""
    read, weight, bias = (given.query, given.key, given.value), given.in_proj_weight, given.in_proj_bias
    if weight is not None and given.query is given.key is given.value:
        projected = F.linear(given.query, weight, bias).chunk(3, -1)
    else:
        own = (given.q_proj_weight, given.k_proj_weight, given.v_proj_weight) if weight is None else weight.chunk(3)
        projected = tuple(map(F.linear, read, own, (None, None, None) if bias is None else bias.chunk(3)))
    found = []
    more = ((None, None), (given.bias_k, given.static_k), (given.bias_v, given.static_v))
    for i, (values, (last, static)) in enumerate(zip(projected, more)):
        if last is not None:
            values = torch.cat([values, last.view(-1).expand_as(values[:1])])
        values = values.unflatten(-1, (given.num_heads, -1)).movedim(0, -2)
        values = values if static is None else static.view(*values.shape[:-2], *static.shape[1:])
        found.append(F.pad(values, (0, 0, 0, 1)) if i and given.add_zero_attn else values)
    return tuple(found)


def _added(mask: Tensor, scores: Tensor) -> Tensor:
    """Return a mask as numbers that are added to scores: minus infinity where a boolean one is True, zero for appended keys."""
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=scores.dtype, device=mask.device).masked_fill(mask, float("-inf"))
    return F.pad(mask, (0, scores.shape[-1] - mask.shape[-1]))


_LENT = {torch.rand, torch.randn, torch.randint, torch.randperm, torch.normal, torch.multinomial, torch.poisson} | {
    *(Tensor.uniform_, Tensor.normal_, Tensor.bernoulli_, Tensor.exponential_, Tensor.random_),
    *(Tensor.geometric_, Tensor.cauchy_, Tensor.log_normal_, Tensor.multinomial),
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


_CAUGHT |= {F.embedding: _embedding, F.multi_head_attention_forward: _multi_head}


class Catch(TorchFunctionMode):
    """Send the random functions of torch to the running stream."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        replacement = _CAUGHT.get(func)
        if replacement is not None:
            return replacement(*args, **kwargs)
        if func is F.scaled_dot_product_attention and (kwargs.get("dropout_p") or (len(args) > 4 and args[4])):
            return _noting(_attention)(*args, **kwargs)
        if func in _LENT:
            return _lend(func, args, kwargs)
        return func(*args, **kwargs)


_prepare: Any = checkpoint._checkpoint_without_reentrant_generator
_counting, _blocks = threading.Lock(), 0


def replayed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs, whenever it is called, with the draws that come next at this place of the program.

    `torch.utils.checkpoint` runs a part of a network again in the backward pass, when the stream has gone on or is closed.
    """
    told = now()
    if told.stream is None:
        return function
    part = function if told.holding is None else told.holding(function)
    begun = told._replace(stream=told.stream.copy(), outer=told.outer and told.outer.copy())

    def again(*args: Any, **kwargs: Any) -> Any:
        own = begun._replace(stream=begun.stream and begun.stream.copy(), outer=begun.outer and begun.outer.copy())
        with under(**own._asdict()), Catch():
            return part(*args, **kwargs)

    return again


def _prepared(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return _prepare(replayed(function), *args, **kwargs)


def _applied(cls: type, function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
    """Compute a part as `use_reentrant=True` asks for; in a keyed block without reentry, which `torch.autograd.grad` needs."""
    if now().stream is None or cls is not checkpoint.CheckpointFunction:
        return super(checkpoint.CheckpointFunction, cls).apply(function, preserve, *args)  # type: ignore[misc]  # cls is a subclass
    return checkpoint.checkpoint(function, *args, use_reentrant=False, preserve_rng_state=preserve)


@contextmanager
def _replaying() -> Iterator[None]:
    """Exchange the functions of `torch.utils.checkpoint` that prepare a second run while keyed blocks run; torch has no hook for it."""
    global _blocks
    with _counting:
        _blocks += 1
        checkpoint._checkpoint_without_reentrant_generator = _prepared  # type: ignore[assignment]  # it takes any arguments
        checkpoint.CheckpointFunction.apply = classmethod(_applied)  # type: ignore[method-assign, assignment]  # a method of torch's
    try:
        yield
    finally:
        with _counting:
            _blocks -= 1
            if not _blocks:
                checkpoint._checkpoint_without_reentrant_generator = _prepare
                del checkpoint.CheckpointFunction.apply  # the inherited one shows again


@contextmanager
def keyed(
    key: int | Tensor,
    step: int | Tensor = 0,
    *,
    catch: bool = True,
    part: Part | None = None,
    kept: Kept | None = None,
    dropout: Rate | None = None,
) -> Iterator[Stream]:
    """Make every draw of the block follow (key, step).

    Args:
        key: an integer key, or the int32 words of one (`words`), which may be batched by vmap.
        step: any integer; another step gives other draws. An int32 scalar may be mapped by vmap.
        catch: also redirect torch's own dropout functions; leave out when the network is known to have none,
            since catching costs a few microseconds for each torch call.
        part: which rows of a batch the block is given; None for all.
        kept: drawn weights of earlier calls, if there are any.
        dropout: what dropout layers drop instead of what they say themselves.
    """
    stream = Stream(key, step)
    told: dict[str, Any] = {"stream": stream, "part": part, "dropout": dropout}
    kept_too = {} if kept is None else {"kept": kept}
    with under(**told, **kept_too), _replaying(), Catch() if catch else nullcontext():
        yield stream
