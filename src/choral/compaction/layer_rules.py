"""Rules for layers with weights: what they do to channels, and what they read.

Rules get the tracer, the call and the call's own arguments, and return the channels of the result (None where it has
none that could be removed), or NotImplemented, which locks all channels that the call reads.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from choral.compaction.tracer import Call, Rule, Tracer, Use
from choral.compaction.units import Channels


def _outputs(tracer: Tracer, weight: Tensor, bias: Tensor | None, axis: int) -> Channels:
    """Return new output channels: constant, equal to the bias, where the row of the weight is zero."""
    name = tracer.own(weight)
    assert name is not None
    units = tracer.units.fresh(weight.shape[0])
    tracer.rows.setdefault(name, units)
    tracer.bind(name, 0, units)
    values = torch.zeros(weight.shape[0], dtype=weight.dtype) if bias is None else bias.detach().cpu()
    if bias is not None:
        bias_name = tracer.own(bias)
        assert bias_name is not None
        tracer.bind(bias_name, 0, units)
    return Channels(axis, units, values.where(tracer.dead_rows(name, weight.shape[0]), torch.nan))


def _known_layer(tracer: Tracer, weight: Tensor, bias: Tensor | None) -> bool:
    """Return whether weight and bias are parameters as they are, not computed ones."""
    return tracer.own(weight) is not None and (bias is None or tracer.own(bias) is not None)


def _reads(
    tracer: Tracer, channels: Channels | None, weight: Tensor, bias: Tensor | None, *, padded: bool = False
) -> None:
    name = tracer.own(weight)
    assert name is not None
    tracer.bind(name, 1, None if channels is None else channels.units)
    if channels is not None:
        bias_name = None if bias is None else tracer.own(bias)
        tracer.uses.append(Use(channels.units, channels.constants, name, bias_name, padded))


def _linear(tracer: Tracer, call: Call, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    channels = tracer.channels(input)
    last = input.dim() - 1
    if not _known_layer(tracer, weight, bias) or weight.dim() != 2 or (channels and channels.axis != last):
        return NotImplemented
    _reads(tracer, channels, weight, bias)
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
    if not _known_layer(tracer, weight, bias) or (channels and channels.axis != axis):
        return NotImplemented
    if isinstance(padding, str):
        padded = padding == "same" and any(size > 1 for size in weight.shape[2:])
    else:
        padded = any(padding) if isinstance(padding, list | tuple) else bool(padding)
    if groups == 1:
        _reads(tracer, channels, weight, bias, padded=padded)
        return _outputs(tracer, weight, bias, axis)
    return _grouped(tracer, channels, weight, bias, groups, axis, padded)


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
        tracer.units.lock(outputs.units, f"grouped {tracer.place} reads channels that cannot be removed")
        return outputs
    inputs = channels.zero_only() if padded else channels
    into = inputs.units.view(groups, -1)
    _tie_columns(tracer, into)
    tracer.units.tie(into[:, 0], by_group[:, 0])
    # an output is also constant where all inputs of its group are
    sums = weight.detach().cpu().flatten(2).sum(2).view(groups, -1, weight.shape[1])  # (group, output, input)
    values = (sums * inputs.constants.view(groups, 1, -1)).sum(2).flatten()
    values = values + (0 if bias is None else bias.detach().cpu())
    if tracer.silence(tracer.own(weight), values):
        tracer.silence(tracer.own(bias), values)
        values = values * 0
    return outputs.valued(outputs.constants.where(~outputs.constants.isnan(), values))


def _tie_columns(tracer: Tracer, units: Tensor) -> None:
    """Tie all units of each row of (group, channel)."""
    if units.shape[1] > 1:
        tracer.units.tie(units[:, :1].expand_as(units).flatten(), units.flatten())


def _batch_norm(
    tracer: Tracer,
    call: Call,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    channels = tracer.channels(input)
    if channels is None:
        return None
    mine = [running_mean, running_var, weight, bias]
    if channels.axis != 1 or any(t is not None and tracer.own(t) is None for t in mine):
        return NotImplemented
    tracer.norms[tracer.module] = channels.units
    for statistic in (running_mean, running_var):
        if statistic is not None:
            tracer.bind(tracer.own(statistic) or "", 0, channels.units)
    scale, shift = (None if t is None else tracer.act(t, channels) for t in (weight, bias))
    if training or running_mean is None or running_var is None:
        # statistics of the batch itself: a constant is its own mean
        shifts = torch.zeros_like(channels.constants) if shift is None else shift.cpu()
        return channels.valued(shifts.where(~channels.constants.isnan(), torch.nan))
    values = F.batch_norm(channels.constants.to(input)[None], running_mean, running_var, scale, shift, False, 0.0, eps)
    return channels.valued(values[0].cpu())


def _instance_norm(
    tracer: Tracer,
    call: Call,
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    channels = tracer.channels(input)
    if channels is not None and channels.axis != 1:
        return NotImplemented
    return _batch_norm(tracer, call, input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)


def _group_norm(
    tracer: Tracer,
    call: Call,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    """Statistics go over a group, so a group is removed as a whole or not at all."""
    channels = tracer.channels(input)
    if channels is None:
        return None
    if channels.axis != 1 or any(t is not None and tracer.own(t) is None for t in (weight, bias)):
        return NotImplemented
    _tie_columns(tracer, channels.units.view(num_groups, -1))
    tracer.norms[tracer.module] = channels.units
    whole = channels.constants.view(num_groups, -1).isnan().any(1, keepdim=True)
    whole = whole.expand(num_groups, channels.units.numel() // num_groups).flatten()
    inside = channels.valued(channels.constants.masked_fill(whole, torch.nan))
    scale, shift = (None if t is None else tracer.act(t, inside) for t in (weight, bias))
    places = inside.constants.to(input)[None, :, None].expand(1, -1, 2)  # the function refuses a single place
    return channels.valued(F.group_norm(places, num_groups, scale, shift, eps)[0, :, 0].cpu())


def _layer_norm(
    tracer: Tracer,
    call: Call,
    input: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float | None = 1e-5,
) -> Any:
    """Statistics go over all channels, so each of them has to stay."""
    channels = tracer.channels(input)
    if channels is None:
        return None
    if channels.axis < input.dim() - len(normalized_shape):
        return NotImplemented
    tracer.units.lock(channels.units, f"{tracer.place} takes statistics over all channels")
    return None


def _prelu(tracer: Tracer, call: Call, input: Tensor, weight: Tensor) -> Any:
    channels = tracer.channels(input)
    if channels is None:
        return None
    if weight.numel() == 1:
        slopes = weight.detach().cpu()
    else:
        acting = tracer.act(weight, channels) if channels.axis == 1 else None
        if acting is None:
            return NotImplemented
        slopes = acting.cpu()
    values = channels.constants
    return channels.valued(values.where(values.isnan() | (values > 0), values * slopes))


LAYER_RULES: dict[str, Rule] = {
    "linear": _linear,
    "conv1d": _conv,
    "conv2d": _conv,
    "conv3d": _conv,
    "batch_norm": _batch_norm,
    "instance_norm": _instance_norm,
    "group_norm": _group_norm,
    "layer_norm": _layer_norm,
    "rms_norm": _layer_norm,
    "prelu": _prelu,
}
