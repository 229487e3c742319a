"""Rules of the tracer: how each layer or function maps channels, and which it reads.

Rules return the channels of the result (None if none of them could be removed), or NotImplemented, which locks all channels that the call
reads. Rules in `RULES` get the tracer, the call and its arguments. Rules in `ALONG` are for functions of one tensor and get its channels
instead; they are only called if there are some.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from choral.compaction.tracer import Call, Channels, Rule, Tracer, Use


def _outputs(tracer: Tracer, weight: Tensor, bias: Tensor | None, axis: int) -> Channels:
    units = tracer.units.fresh(weight.shape[0])
    name = tracer.names[id(weight)]
    tracer.rows.setdefault(name, units)
    for tensor in (weight,) if bias is None else (weight, bias):
        tracer.bind(tracer.names[id(tensor)], 0, units)
    values = torch.zeros(weight.shape[0], dtype=weight.dtype) if bias is None else bias.detach().cpu()
    dead = tracer.dead.get(name, torch.zeros(weight.shape[0], dtype=torch.bool))
    return Channels(axis, units, values.where(dead, torch.nan))


def _are_own(tracer: Tracer, *tensors: Tensor | None) -> bool:
    return all(t is None or id(t) in tracer.names for t in tensors)


def _reads(tracer: Tracer, channels: Channels | None, weight: Tensor, bias: Tensor | None, padded: bool) -> None:
    name = tracer.names[id(weight)]
    tracer.bind(name, 1, None if channels is None else channels.units)
    if channels is not None:
        tracer.uses.append(Use(channels.units, channels.constants, name, tracer.names.get(id(bias)), padded))


def _linear(tracer: Tracer, call: Call, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    channels = tracer.channels(input)
    elsewhere = channels is not None and channels.axis != input.dim() - 1
    if not _are_own(tracer, weight, bias) or weight.dim() != 2 or elsewhere:
        return NotImplemented
    _reads(tracer, channels, weight, bias, False)
    return _outputs(tracer, weight, bias, call.result.dim() - 1)


def _conv(
    tracer: Tracer,
    call: Call,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    channels = tracer.channels(input)
    axis = input.dim() - weight.dim() + 1
    if not _are_own(tracer, weight, bias) or (channels is not None and channels.axis != axis):
        return NotImplemented
    padded = padding == "same" and any(size > 1 for size in weight.shape[2:])
    padded = padded or (padding not in ("same", "valid") and _any(padding))
    if groups > 1:
        return _grouped(tracer, channels, weight, bias, groups, axis, padded)
    _reads(tracer, channels, weight, bias, padded)
    return _outputs(tracer, weight, bias, axis)


def _any(sizes: int | Sequence[int]) -> bool:
    return any(sizes) if isinstance(sizes, list | tuple) else bool(sizes)


def _grouped(
    tracer: Tracer,
    channels: Channels | None,
    weight: Tensor,
    bias: Tensor | None,
    groups: int,
    axis: int,
    padded: bool,
) -> Channels:
    """Grouped convolutions lose whole groups only: all inputs and outputs of a group are tied into one unit."""
    outputs = _outputs(tracer, weight, bias, axis)
    by_group = outputs.units.view(groups, -1)
    _tie_columns(tracer, by_group)
    if channels is None:
        tracer.units.lock(outputs.units)
        return outputs
    inputs = channels.zero_only() if padded else channels
    into = inputs.units.view(groups, -1)
    _tie_columns(tracer, into)
    tracer.units.tie(into[:, 0], by_group[:, 0])
    # an output is also constant where all inputs of its group are
    sums = weight.detach().cpu().flatten(2).sum(2).view(groups, -1, weight.shape[1])  # (group, output, input)
    values = (sums * inputs.constants.view(groups, 1, -1)).sum(2).flatten()
    values = values + (0 if bias is None else bias.detach().cpu())
    if tracer.silence(tracer.names[id(weight)], values):
        tracer.silence(tracer.names.get(id(bias)), values)
        values = values * 0
    return outputs.valued(outputs.constants.where(~outputs.constants.isnan(), values))


def _tie_columns(tracer: Tracer, units: Tensor) -> None:
    if units.shape[1] > 1:
        tracer.units.tie(units[:, :1].expand_as(units).flatten(), units.flatten())


def _batch_norm(
    tracer: Tracer,
    call: Call,
    channels: Channels,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    if channels.axis != 1 or not _are_own(tracer, running_mean, running_var, weight, bias):
        return NotImplemented
    tracer.norms[tracer.module] = channels.units
    for statistic in (running_mean, running_var):
        if statistic is not None:
            tracer.bind(tracer.names[id(statistic)], 0, channels.units)
    scale, shift = (None if t is None else tracer.act(t, channels) for t in (weight, bias))
    if training or running_mean is None or running_var is None:
        # statistics of the batch itself: a constant is its own mean
        shifts = torch.zeros_like(channels.constants) if shift is None else shift.cpu()
        return channels.valued(shifts.where(~channels.constants.isnan(), torch.nan))
    constants = channels.constants.to(running_mean)[None]
    return channels.valued(F.batch_norm(constants, running_mean, running_var, scale, shift, False, 0.0, eps)[0].cpu())


def _group_norm(
    tracer: Tracer,
    call: Call,
    channels: Channels,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    """Statistics go over a group, so a group is removed as a whole or not at all."""
    if channels.axis != 1 or not _are_own(tracer, weight, bias):
        return NotImplemented
    _tie_columns(tracer, channels.units.view(num_groups, -1))
    tracer.norms[tracer.module] = channels.units
    varying = channels.constants.view(num_groups, -1).isnan().any(1)
    varying = varying.repeat_interleave(channels.units.numel() // num_groups)
    inside = channels.valued(channels.constants.masked_fill(varying, torch.nan))
    scale, shift = (None if t is None else tracer.act(t, inside) for t in (weight, bias))
    places = inside.constants.to(call.result)[None, :, None].expand(1, -1, 2)  # the function refuses a single place
    return channels.valued(F.group_norm(places, num_groups, scale, shift, eps)[0, :, 0].cpu())


def _layer_norm(tracer: Tracer, call: Call, channels: Channels, normalized_shape: Any, *_: Any, **__: Any) -> Any:
    """Statistics go over all channels, so each of them has to stay."""
    if channels.axis < call.result.dim() - len(normalized_shape):
        return NotImplemented
    tracer.units.lock(channels.units)
    return None


def _prelu(tracer: Tracer, call: Call, channels: Channels, weight: Tensor) -> Any:
    acting = tracer.act(weight, channels) if weight.numel() > 1 and channels.axis == 1 else weight.detach()
    if acting is None or (weight.numel() > 1 and channels.axis != 1):
        return NotImplemented
    values = channels.constants
    return channels.valued(values.where(values.isnan() | (values > 0), values * acting.cpu()))


def moved(channels: Channels, source: Tensor, function: Callable[[Tensor], Tensor]) -> Channels | None:
    """Return the channels after a function that moves the entries of a tensor, or takes their means or extremes over other axes.

    The function is applied to the channel numbers, which shows where they end; None if no single axis has them all.

    >>> channels = Channels(1, torch.tensor([7, 8]), torch.zeros(2))
    >>> moved(channels, torch.zeros(5, 2, 3), lambda t: t.flatten(1)).units.tolist()
    [7, 7, 7, 8, 8, 8]
    """
    count = channels.units.numel()
    numbers = torch.arange(count, dtype=torch.float64).view(
        [-1 if axis == channels.axis else 1 for axis in range(source.dim())]
    )
    places = function(torch.empty_like(source, dtype=torch.float64).copy_(numbers)).round().long().cpu()
    axes = [axis for axis in range(places.dim()) if bool((places != places.narrow(axis, 0, 1)).any())]
    if len(axes) != 1:
        return None
    line = places.movedim(axes[0], 0).flatten(1)[:, 0] if places.dim() > 1 else places
    whole = line.unique().numel() == count
    return Channels(axes[0], channels.units[line], channels.constants[line]) if whole else None


def _moved(tracer: Tracer, call: Call, channels: Channels, *index: Any, **_: Any) -> Any:
    entries = index[0] if isinstance(index[0] if index else None, tuple) else index
    chosen = call.name == "__getitem__" and any(hasattr(entry, "__len__") for entry in entries)  # by a list or tensor
    if chosen or not isinstance(call.result, Tensor):
        return NotImplemented
    found = moved(channels, call.args[0], lambda t: call.function(t, *call.args[1:], **call.kwargs))
    return found or NotImplemented


def _same(tracer: Tracer, call: Call, channels: Channels, *_: Any, **__: Any) -> Any:
    return channels


def _cat(tracer: Tracer, call: Call, tensors: Sequence[Tensor], dim: int = 0) -> Any:
    known = [tracer.channels(t) for t in tensors]
    present = [channels for channels in known if channels is not None]
    if len({channels.axis for channels in present}) != 1:
        return NotImplemented
    first, *others = present
    if dim % call.result.dim() == first.axis:
        parts = [c or _fixed(tracer, t.shape[dim], first, torch.nan) for c, t in zip(known, tensors)]
        return _joined(first.axis, parts)
    if len(present) < len(known):
        return NotImplemented
    constants = first.constants
    for other in others:
        tracer.units.tie(first.units, other.units)
        constants = constants.where(constants == other.constants, torch.nan)
    return first.valued(constants)


def _joined(axis: int, parts: Sequence[Channels]) -> Channels:
    return Channels(axis, torch.cat([c.units for c in parts]), torch.cat([c.constants for c in parts]))


def _fixed(tracer: Tracer, count: int, like: Channels, value: float) -> Channels:
    units = tracer.units.fresh(count)
    tracer.units.lock(units)
    return Channels(0, units, torch.full((count,), value, dtype=like.constants.dtype))


def _pad(
    tracer: Tracer, call: Call, channels: Channels, pad: Sequence[int], mode: str = "constant", value: Any = None
) -> Any:
    fill = float(value or 0.0)
    pairs = dict(zip(range(call.result.dim() - 1, -1, -1), zip(pad[::2], pad[1::2])))
    before, after = pairs.pop(channels.axis, (0, 0))
    if mode == "constant" and any(size > 0 for pair in pairs.values() for size in pair):
        channels = channels.valued(channels.constants.where(channels.constants == fill, torch.nan))
    if before == after == 0:
        return channels
    if before < 0 or after < 0 or mode != "constant":
        return NotImplemented
    first, last = (_fixed(tracer, count, channels, fill) for count in (before, after))
    return _joined(channels.axis, [first, channels, last])


def _summed(tracer: Tracer, call: Call, channels: Channels, *_: Any, **__: Any) -> Any:
    """Sums grow with the number of places, so only zero stays a constant."""
    mean = moved(channels.zero_only(), call.args[0], lambda t: t.mean(*call.args[1:], **call.kwargs))
    return mean or NotImplemented


def _pooled(tracer: Tracer, call: Call, channels: Channels, *_: Any, **__: Any) -> Any:
    """Pooling and resizing act on each channel by itself and leave constants alone."""
    fits = channels.axis == 1 and isinstance(call.result, Tensor) and call.result.dim() > 2
    return channels if fits else NotImplemented


def _average_pooled(
    tracer: Tracer,
    call: Call,
    channels: Channels,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    changed = (_any(padding) and count_include_pad) or divisor_override
    return _pooled(tracer, call, channels.zero_only() if changed else channels)


def _unary(tracer: Tracer, call: Call, channels: Channels, *args: Any, **options: Any) -> Any:
    """The constants go through the very same function; NaN (varying) stays NaN."""
    if any(isinstance(a, Tensor) for a in (*args, *options.values())):
        return NotImplemented
    values = call.function(channels.constants.to(call.result, copy=True), *args, **options)
    return channels.valued(values.cpu().where(~channels.constants.isnan(), torch.nan))


def _dropout(
    tracer: Tracer, call: Call, channels: Channels, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Any:
    return channels.zero_only() if training else channels


def _binary(tracer: Tracer, call: Call, input: Any, other: Any, *, alpha: float = 1, rounding_mode: Any = None) -> Any:
    """Elementwise functions of two tensors tie their channels; parameters of matching length are bound to them."""
    operands = (input, other)
    known = [tracer.channels(t) for t in operands]
    present = [c for c in known if c is not None]
    if not present or not isinstance(call.result, Tensor):
        return NotImplemented
    first, axis, count = present[0], 0, present[0].units.numel()
    axes = {c.axis - t.dim() for c, t in zip(known, operands) if c is not None}
    if len(axes) != 1 or {c.units.numel() for c in present} != {count}:
        return NotImplemented
    axis = axes.pop()
    if call.result.shape[axis] != count:
        return NotImplemented
    if len(present) == 2:
        tracer.units.tie(present[0].units, present[1].units)
    values = [
        _values(tracer, item, c, first, axis) if isinstance(item, Tensor) else item for item, c in zip(operands, known)
    ]
    if any(v is None for v in values):
        tracer.units.lock(first.units)
        return None
    options = {key: call.kwargs[key] for key in ("alpha", "rounding_mode") if key in call.kwargs}
    result = call.function(*[v.clone() if isinstance(v, Tensor) else v for v in values], **options)
    if call.name.strip("_") in ("mul", "multiply", "rmul", "imul"):
        for v in values:  # zero times anything is zero, also where the other factor varies
            result = result.masked_fill(torch.as_tensor(v == 0), 0)
    return Channels(call.result.dim() + axis, first.units, result.to(first.constants))


def _values(tracer: Tracer, tensor: Tensor, channels: Channels | None, partner: Channels, axis: int) -> Tensor | None:
    """Return an operand's constants, (channel,): its own, a parameter's, NaN if unknown; None if it must be locked."""
    if channels is not None:
        return channels.constants
    count = partner.units.numel()
    unknown = torch.full((count,), torch.nan, dtype=partner.constants.dtype)
    size = tensor.shape[axis] if tensor.dim() >= -axis else 1
    if size == 1 and count > 1:
        is_number = tensor.numel() == 1 and tracer.name(tensor) is not None
        return tensor.detach().cpu().flatten().to(unknown).expand(count) if is_number else unknown
    acting = tracer.act(tensor, partner) if tensor.numel() == size else None
    if acting is not None:
        return acting.cpu().to(unknown)
    if id(tensor) not in tracer.names:
        return None
    tracer.bind(tracer.names[id(tensor)], tensor.dim() + axis, partner.units)
    return unknown


_PAIRS = "add sub subtract mul multiply div divide true_divide maximum minimum pow max min"
_OPERATORS = "add radd iadd sub rsub isub mul rmul imul truediv rtruediv itruediv div rdiv idiv pow rpow ipow"

RULES: dict[str, Rule] = {
    "linear": _linear,
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _conv),
    **dict.fromkeys(("cat", "concat", "concatenate"), _cat),
    **dict.fromkeys(_PAIRS.split(), _binary),
    **{f"__{name}__": _binary for name in _OPERATORS.split()},
}

_COPIES = "clone contiguous detach to type type_as float double half bfloat16 cpu"
_MOVES = (
    "flatten view reshape unflatten squeeze unsqueeze view_as reshape_as transpose swapaxes swapdims permute expand expand_as "
    "__getitem__"
)
_ELEMENTWISE = (
    "relu relu6 leaky_relu rrelu elu selu celu gelu silu mish sigmoid logsigmoid hardsigmoid hardswish hardtanh tanh "
    "softplus softsign tanhshrink hardshrink softshrink threshold neg abs exp expm1 log log1p sqrt rsqrt square reciprocal "
    "sin cos erf clamp clip clamp_min clamp_max"
)
_DROPOUTS = "dropout alpha_dropout feature_alpha_dropout dropout1d dropout2d dropout3d"
COPIES, MOVES, ELEMENTWISE = _COPIES.split(), _MOVES.split(), _ELEMENTWISE.split()
"""Functions that give the numbers they are given, in another shape perhaps, and functions of each number."""

ALONG: dict[str, Rule] = {
    **dict.fromkeys(("batch_norm", "instance_norm"), _batch_norm),
    "group_norm": _group_norm,
    **dict.fromkeys(("layer_norm", "rms_norm"), _layer_norm),
    "prelu": _prelu,
    **dict.fromkeys(MOVES, _moved),
    **dict.fromkeys(COPIES, _same),
    "pad": _pad,
    **dict.fromkeys(("mean", "amax", "amin"), _moved),
    "sum": _summed,
    **dict.fromkeys([f"{k}_pool{n}d" for k in ("max", "adaptive_avg", "adaptive_max") for n in (1, 2, 3)], _pooled),
    **dict.fromkeys(("interpolate", "upsample"), _pooled),
    **dict.fromkeys(("avg_pool1d", "avg_pool2d", "avg_pool3d"), _average_pooled),
    **dict.fromkeys(ELEMENTWISE, _unary),
    **dict.fromkeys(_DROPOUTS.split(), _dropout),
}

_SAME = {"axis": "dim", "use_input_stats": "training"}  # names of arguments that mean the same


def apply(tracer: Tracer, call: Call) -> Any:
    """Return the result of the rule of a called function, or NotImplemented."""
    name = call.name if call.name.startswith("__") else call.name.rstrip("_")
    source, given = next(iter(call.args), None), call.args
    rule = RULES.get(name)
    if name in ALONG and isinstance(source, Tensor):
        rule, channels = ALONG[name], tracer.channels(source)
        if channels is None:
            copied, changed = name in COPIES or name.endswith("_as"), name in ELEMENTWISE
            follows = copied or changed or name in MOVES
            known = follows and tracer.note_vector(call.result, source, unchanged=not changed)
            return None if known or copied else NotImplemented
        given = (channels, *given[1:])
    kwargs = {_SAME.get(key, key): value for key, value in call.kwargs.items()}
    try:
        bound = None if rule is None else inspect.signature(rule).bind(tracer, call, *given, **kwargs)
    except TypeError:
        bound = None
    return NotImplemented if bound is None or rule is None else rule(*bound.args, **bound.kwargs)
