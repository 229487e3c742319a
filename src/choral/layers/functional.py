"""torch's layers as functions of their tensors.

Layers that choose their tensors anew in every pass - a member's slice, a drawn component, a weight with dropped
entries - keep a plain layer without tensors (`holding`) for its settings and call `operate` with the tensors of the
moment. Padding modes, strides, momentum and all other settings are torch's own.
"""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from choral.base import rng
from choral.base.errors import ConversionError
from choral.layers.kernels import pointwise

Tensors = Mapping[str, Tensor | None]

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
WEIGHTED = (nn.Linear, *CONVOLUTIONS, *TRANSPOSED)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
NORMS = (*BATCH_NORMS, *INSTANCE_NORMS, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def own_kind(layer: nn.Module, kinds: tuple[type[nn.Module], ...]) -> type[nn.Module] | None:
    """Return which of these kinds a layer is and computes as, or None.

    A subclass may have its own `forward` if it gives the same results in a dry run, and no further tensors.

    >>> own_kind(nn.Linear(2, 2), WEIGHTED), own_kind(nn.ReLU(), WEIGHTED)
    (<class 'torch.nn.modules.linear.Linear'>, None)
    """
    for kind in kinds:
        if isinstance(layer, kind) and not parametrize.is_parametrized(layer):
            return kind if type(layer).forward is kind.forward or _computes_as(layer, kind) else None
    return None


def _computes_as(layer: Any, kind: Any) -> bool:
    """Return whether a linear map or convolution with its own forward computes the same as its kind, in both modes."""
    held = {*layer._parameters, *layer._buffers, *layer._modules}
    if kind not in WEIGHTED or held != {"weight", "bias"} or any(p.is_meta for p in layer.parameters()):
        return False
    dims, inputs = spatial(layer), layer.in_features if kind is nn.Linear else layer.in_channels
    least = max((d * (k - 1) + 1 for d, k in zip(layer.dilation, layer.kernel_size)), default=0) if dims else 0
    for more in range(max(layer.stride) + 1 if least else 1):
        x = numbers((2, inputs, *(least + more,) * dims), layer.weight)
        if not same_results(layer, x, lambda layer, x: kind.forward(layer, x), exact=True):
            return False
    return True


def numbers(shape: Sequence[int], like: Tensor) -> Tensor:
    """Return distinct numbers in a shape, with the dtype and device of a tensor."""
    return torch.arange(1, math.prod(shape) + 1, dtype=like.dtype, device=like.device).sin().view(*shape)


def same_results(layer: nn.Module, x: Tensor, wanted: Callable[[nn.Module, Tensor], Tensor], *, exact: bool) -> bool:
    """Return whether a layer gives the same results as a function of it in a dry run, in both modes."""
    layer = copy.deepcopy(layer)
    for training in (True, False):
        layer.train(training)
        try:
            with torch.no_grad(), rng.seeded(0, "look"):
                own, right = layer(x), wanted(layer, x)
        except Exception:  # code of the user's may fail in any way, and tensors may be stacked
            return False
        if not isinstance(own, Tensor) or own.shape != right.shape:
            return False
        if not (torch.equal(own, right) if exact else torch.allclose(own, right, atol=1e-4)):
            return False
    return True


def holding(layer: nn.Module, tensors: Tensors) -> nn.Module:
    """Return a module with the settings of a layer and these tensors, or None for some; the layer is not changed."""
    held = object.__new__(type(layer))
    own = {table: {n: tensors.get(n) for n in getattr(layer, table)} for table in ("_parameters", "_buffers")}
    vars(held).update(vars(layer) | own)
    return held


def filled(empty: nn.Module, tensors: Tensors) -> nn.Module:
    """Return a plain layer with the settings of an emptied one and these tensors, without copies."""
    layer = copy.deepcopy(empty)
    for name, tensor in tensors.items():
        if name in layer._buffers:
            layer._buffers[name] = tensor
        elif tensor is None or isinstance(tensor, nn.Parameter):
            layer.register_parameter(name, tensor)
        else:
            layer.register_parameter(name, nn.Parameter(tensor.detach()))
    return layer


def spatial(layer: nn.Module) -> int:
    """Return the number of spatial axes after a layer's channel axis: 0 for linear maps, 2 for images.

    >>> spatial(nn.Conv2d(1, 1, 1)), spatial(nn.Linear(1, 1))
    (2, 0)
    """
    return len(layer.kernel_size) if isinstance(layer, (*CONVOLUTIONS, *TRANSPOSED)) else 0


class Twin(nn.Module, ABC):
    """A layer, or a network, that replaces a plain one."""

    @abstractmethod
    def plain(self) -> nn.Module:
        """Return the plain one; for random layers or several components, at their mean."""


class Converted(Twin):
    """A layer with the settings of a plain one, which are also its own attributes.

    Args:
        layer: the plain layer; not changed.
        kinds: the accepted layers of torch.
    """

    shown: tuple[str, ...] = ()  # attributes of its own to show

    def __init__(self, layer: nn.Module, kinds: Sequence[type[nn.Module]]):
        super().__init__()
        if own_kind(layer, tuple(kinds)) is None:
            names = ", ".join(kind.__name__ for kind in kinds)
            raise ConversionError(
                f"{type(self).__name__} was given {layer}; it takes {names}, without parametrizations."
            )
        self._plain = (holding(layer, {}),)  # in a tuple, so that it is no submodule

    def take_over(self, layer: nn.Module, *, parameters: bool = True) -> None:
        """Take over the buffers of a layer, and its parameters, under the same names."""
        for name, p in layer._parameters.items() if parameters else ():
            self.register_parameter(name, p)
        for name, b in layer._buffers.items():
            self.register_buffer(name, b, persistent=name not in layer._non_persistent_buffers_set)

    @property
    def settings(self) -> Any:
        """The plain layer, without tensors."""
        return self._plain[0]

    def tensors(self) -> dict[str, Tensor | None]:
        """Return parameters and buffers by name."""
        return {**self._parameters, **self._buffers}

    def run(self, x: Tensor, tensors: Tensors) -> Tensor:
        """Return the output of the plain layer with these tensors."""
        return operate(self._plain[0], x, tensors, training=self.training)

    def __getattr__(self, name: str) -> Any:
        """Return a setting of the plain layer, which forward code may read (`fc.out_features`)."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            plain = self.__dict__.get("_plain")
            if plain is None or name in plain[0]._parameters or name in plain[0]._buffers:
                raise
            return getattr(plain[0], name)

    def extra_repr(self) -> str:
        return ", ".join([self._plain[0].extra_repr(), *(f"{name}={getattr(self, name)}" for name in self.shown)])


def operate(layer: nn.Module, x: Tensor, tensors: Tensors, *, training: bool) -> Tensor:
    """Return the output of a layer of these settings with these tensors.

    Running statistics among the tensors are updated in place in training, as by the layer itself.
    """
    for kind in type(layer).__mro__:
        if kind in _CALLS:
            return _CALLS[kind](layer, x, tensors, training)
    return _call(layer, x, tensors, training)


def _call(layer: nn.Module, x: Tensor, t: Tensors, training: bool) -> Tensor:
    """Run the layer's own forward on a copy: other threads may be running the layer."""
    held = holding(layer, t)
    held.training = training
    return held.forward(x)


def _linear(layer: Any, x: Tensor, t: Tensors, training: bool) -> Tensor:
    return F.linear(x, t["weight"], t["bias"])  # type: ignore[arg-type]  # a weight is never None


def _convolve(layer: Any, x: Tensor, t: Tensors, training: bool) -> Tensor:
    return pointwise.of_layer(layer, x, t["weight"], t["bias"])  # type: ignore[arg-type]  # a weight is never None


def _batch_norm(layer: Any, x: Tensor, t: Tensors, training: bool) -> Tensor:
    mean, variance, count = (t.get(n) for n in ("running_mean", "running_var", "num_batches_tracked"))
    batch_statistics = training or mean is None
    kept = (mean, variance)
    if training and count is not None:
        count.add_(1)
        if layer.momentum is None:  # a mean over all batches; where members are mapped, the count is no number
            _average(x.detach(), mean, variance, count)
            kept = (None, None)
    return F.batch_norm(x, *kept, t["weight"], t["bias"], batch_statistics, layer.momentum or 0.0, layer.eps)


@torch.no_grad()
def _average(x: Tensor, mean: Any, variance: Any, count: Tensor) -> None:
    axes = [axis for axis in range(x.dim()) if axis != 1]
    mean.add_((x.mean(axes) - mean) / count)
    variance.add_((x.var(axes) - variance) / count)


def _group_norm(layer: Any, x: Tensor, t: Tensors, training: bool) -> Tensor:
    try:
        return _call(layer, x, t, training)
    except RuntimeError as error:  # torch 2.13 cannot map it over members where it asks how memory is laid out
        if "inside of vmap" not in str(error):
            raise
        whole = x.unflatten(1, (layer.num_groups, -1)).flatten(2)
        normal = F.layer_norm(whole, whole.shape[2:], eps=layer.eps).view(x.shape)
        if t["weight"] is None:
            return normal
        shape = (-1, *(1 for _ in x.shape[2:]))
        assert t["bias"] is not None
        return normal * t["weight"].view(shape) + t["bias"].view(shape)


_CALLS: dict[type, Callable[[Any, Tensor, Tensors, bool], Tensor]] = {
    nn.Linear: _linear,
    **dict.fromkeys(CONVOLUTIONS, _convolve),
    **dict.fromkeys(BATCH_NORMS, _batch_norm),
    nn.GroupNorm: _group_norm,
}
"""Layers that are run in a shorter way, or otherwise than torch does."""
