"""Rules for functions that act on every element by itself: activations, dropout, sums and products."""

from typing import Any

import torch
from torch import Tensor

from choral.compaction.tracer import Call, Rule, Tracer
from choral.compaction.units import Channels


def _unary(tracer: Tracer, call: Call, input: Tensor, *args: Any, **options: Any) -> Any:
    """The constants go through the very same function; NaN (varying) stays NaN."""
    if any(isinstance(a, Tensor) for a in (*args, *options.values())):
        return NotImplemented
    channels = tracer.channels(input)
    if channels is None:
        return None if tracer.note_vector(call.result, input, unchanged=False) else NotImplemented
    values = call.function(channels.constants.to(input, copy=True), *args, **options)
    return channels.valued(values.cpu().where(~channels.constants.isnan(), torch.nan))


def _dropout(
    tracer: Tracer, call: Call, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Any:
    channels = tracer.channels(input)
    if channels is None:
        return NotImplemented
    return channels.zero_only() if training else channels


def _binary(tracer: Tracer, call: Call, input: Any, other: Any, *, alpha: float = 1, rounding_mode: Any = None) -> Any:
    """Elementwise functions of two tensors tie their channels; parameters of matching length are bound to them."""
    operands = (input, other)
    known = [tracer.channels(t) if isinstance(t, Tensor) else None for t in operands]
    if not any(known) or not isinstance(call.result, Tensor):
        return NotImplemented
    rank = call.result.dim()
    axes = {c.axis - t.dim() for c, t in zip(known, operands) if c is not None}
    counts = {c.units.numel() for c in known if c is not None}
    if len(axes) != 1 or len(counts) != 1 or call.result.shape[(axis := axes.pop())] != (count := counts.pop()):
        return NotImplemented
    present = [c for c in known if c is not None]
    if len(present) == 2:
        tracer.units.tie(present[0].units, present[1].units)
    values = [
        item if channels is None and not isinstance(item, Tensor) else _values(tracer, item, channels, present[0], axis)
        for item, channels in zip(operands, known)
    ]
    if any(v is None for v in values):
        tracer.units.lock(present[0].units, f"{tracer.place} combines it with channels that cannot be removed")
        return None
    options = {key: call.kwargs[key] for key in ("alpha", "rounding_mode") if key in call.kwargs}
    result = call.function(*[v.clone() if isinstance(v, Tensor) else v for v in values], **options)
    if call.name.strip("_") in ("mul", "multiply", "rmul", "imul"):
        # zero times anything is zero, also where the other factor varies
        zero = torch.zeros(count, dtype=torch.bool)
        for v in values:
            zero |= v == 0 if isinstance(v, Tensor) else torch.tensor(v == 0)
        result = result.masked_fill(zero, 0)
    return Channels(rank + axis, present[0].units, result.to(present[0].constants))


def _values(tracer: Tracer, tensor: Tensor, channels: Channels | None, partner: Channels, axis: int) -> Tensor | None:
    """Return an operand's constants, (channel,): its own, a parameter's, NaN if unknown; None if it must lock."""
    if channels is not None:
        return channels.constants
    count = partner.units.numel()
    unknown = torch.full((count,), torch.nan, dtype=partner.constants.dtype)
    size = tensor.shape[axis] if tensor.dim() >= -axis else 1
    if size == 1 and count > 1:
        is_number = tensor.numel() == 1 and tracer.name(tensor) is not None
        return tensor.detach().cpu().flatten().to(unknown).expand(count) if is_number else unknown
    if tensor.numel() == size:
        acting = tracer.act(tensor, partner)
        if acting is not None:
            return acting.cpu().to(unknown)
    name = tracer.own(tensor)
    if name is None:
        return None
    tracer.bind(name, tensor.dim() + axis, partner.units)
    return unknown


_ACTIVATIONS = (
    "relu relu6 leaky_relu rrelu elu selu celu gelu silu mish sigmoid logsigmoid hardsigmoid hardswish hardtanh tanh "
    "softplus softsign tanhshrink hardshrink softshrink threshold"
)
_FUNCTIONS = "neg abs exp expm1 log log1p sqrt rsqrt square reciprocal sin cos erf clamp clip clamp_min clamp_max"
_PAIRS = "add sub subtract mul multiply div divide true_divide maximum minimum pow"
_OPERATORS = "add radd iadd sub rsub isub mul rmul imul truediv rtruediv itruediv div rdiv idiv pow rpow ipow"

POINTWISE_RULES: dict[str, Rule] = {
    **dict.fromkeys((_ACTIVATIONS + " " + _FUNCTIONS).split(), _unary),
    **dict.fromkeys(
        ("dropout", "alpha_dropout", "feature_alpha_dropout", "dropout1d", "dropout2d", "dropout3d"), _dropout
    ),
    **dict.fromkeys([*_PAIRS.split(), "max", "min"], _binary),
    **{f"__{name}__": _binary for name in _OPERATORS.split()},
}
