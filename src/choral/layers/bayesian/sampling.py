"""What sampled layers share: a base, a draw from a Gaussian posterior, the mean mode, and operations on given weights.

Sampled layers draw their weights anew in every forward pass, in training and in evaluation mode alike, through
`choral.base.draws`. Within `at_means` they draw nothing and use the center of their posterior.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from choral.base import draws
from choral.base.streams import now, under
from choral.layers.kernels import pointwise
from choral.objectives.kl import MEAN, RHO, std_of

RHO_START = -6.0
_CONVOLVE = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_CONVOLUTIONS: dict[int, type[nn.Module]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


@contextmanager
def at_means() -> Iterator[None]:
    """Make every sampled layer of the block deterministic: posterior means, and nodes with gamma above one half.

    >>> from choral.layers.bayesian.gaussian import GaussianLinear
    >>> layer, x = GaussianLinear(3, 2, rho=0.0), torch.ones(1, 3)
    >>> with at_means():
    ...     torch.equal(layer(x), layer(x))
    True
    >>> torch.equal(layer(x), layer(x))
    False
    """
    with under(means=True):
        yield


def means_wanted() -> bool:
    """Return whether an `at_means` block is running."""
    return now().means


@overload
def draw(mean: Tensor, rho: Tensor) -> Tensor: ...
@overload
def draw(mean: Tensor | None, rho: Tensor | None) -> Tensor | None: ...
def draw(mean: Tensor | None, rho: Tensor | None) -> Tensor | None:
    """Return mean + softplus(rho) * noise, or the mean within `at_means`; None (a layer without bias) stays None."""
    if mean is None or rho is None or means_wanted():
        return mean
    return draws.remembered(mean, lambda: torch.addcmul(mean, std_of(rho), draws.normal(mean.shape, like=mean)))


def add_posterior(layer: nn.Module, name: str, center: Tensor | None, rho: float) -> None:
    """Give a layer the parameters `name_mean`, a copy of `center`, and `name_rho`; None twice if `center` is None."""
    mean = None if center is None else nn.Parameter(center.detach().clone())
    layer.register_parameter(name + MEAN, mean)
    layer.register_parameter(name + RHO, None if mean is None else nn.Parameter(torch.full_like(mean, rho)))


def fresh_weights(
    operation: "Operation", generator: torch.Generator | None, *, device: torch.device | None, dtype: torch.dtype | None
) -> tuple[Tensor, Tensor | None]:
    """Return a weight drawn by Kaiming's rule (normal, over the inputs) and a zero bias, or None without one."""
    weight = nn.init.kaiming_normal_(
        torch.empty(operation.weight_shape, device=device, dtype=dtype), nonlinearity="relu", generator=generator
    )
    return weight, torch.zeros(operation.outputs, device=device, dtype=dtype) if operation.biased else None


def twin_arguments(layer: nn.Module) -> dict[str, Any]:
    """Return the arguments that make a sampled layer of a plain layer's shape, device and dtype."""
    weight = layer.get_parameter("weight")
    return operation_of(layer).arguments | {"device": weight.device, "dtype": weight.dtype}


@torch.no_grad()
def copy_means(twin: nn.Module, layer: nn.Module) -> None:
    """Set the means of a sampled layer to the weights of the plain layer it stands for."""
    for name, value in layer.named_parameters(recurse=False):
        twin.get_parameter(name + MEAN).copy_(value)


@dataclass(frozen=True)
class Operation:
    """A linear map or convolution as a function of its weights: what a plain layer does, without its parameters.

    Attributes:
        arguments: those of the plain layer's constructor, parsed.
        weight_shape: shape of the weight; the first axis is the output.
        biased: whether there is a bias.
        inputs: input features or channels.
        outputs: output features or channels.
        dims: spatial axes; 0 for a linear map.
    """

    arguments: dict[str, Any]
    weight_shape: tuple[int, ...]
    biased: bool
    inputs: int
    outputs: int
    dims: int

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the layer's output under these weights."""
        if self.dims == 0:
            return F.linear(x, weight, bias)
        a = self.arguments
        padding = a["padding"]
        if a["padding_mode"] != "zeros":
            x, padding = F.pad(x, self._pads(), mode=a["padding_mode"]), 0
        if pointwise.faulty(self.weight_shape[2:], a["stride"], a["groups"], self.inputs):
            x = F.pad(x, self._pads()) if padding != 0 and any(self._pads()) else x
            return pointwise.convolve(x, weight, bias, a["stride"])
        return _CONVOLVE[self.dims](x, weight, bias, a["stride"], padding, a["dilation"], a["groups"])

    def plain(self, weight: Tensor, bias: Tensor | None) -> nn.Module:
        """Return a plain layer that owns copies of these weights."""
        kind = _CONVOLUTIONS[self.dims] if self.dims else nn.Linear
        with torch.device("meta"):
            layer = kind(**self.arguments)
        layer.weight = nn.Parameter(weight.detach().clone())
        if bias is not None:
            layer.bias = nn.Parameter(bias.detach().clone())
        return layer

    def resized(self, name: str, size: int) -> "Operation":
        """Return the operation of a layer with another size, by the name the plain layer states it under."""
        arguments = self.arguments | {name: size}
        inputs = arguments["in_channels" if self.dims else "in_features"]
        outputs = arguments["out_channels" if self.dims else "out_features"]
        shape = (outputs, inputs // arguments.get("groups", 1), *self.weight_shape[2:])
        return replace(self, arguments=arguments, weight_shape=shape, inputs=inputs, outputs=outputs)

    def _pads(self) -> list[int]:
        """Return the sizes F.pad wants: last axis first, before and after."""
        a, pads = self.arguments, []
        for i in reversed(range(self.dims)):
            if a["padding"] == "same":
                total = a["dilation"][i] * (a["kernel_size"][i] - 1)
                pads += [total // 2, total - total // 2]
            else:
                size = 0 if a["padding"] == "valid" else a["padding"][i]
                pads += [size, size]
        return pads


def _size(name: str) -> Any:
    """Return a property that reads and sets one size of a layer's operation."""

    def read(layer: Any) -> int:
        if name not in layer.operation.arguments:
            raise AttributeError(f"{type(layer).__name__} has no size {name!r}")
        return int(layer.operation.arguments[name])

    def write(layer: Any, size: int) -> None:
        layer.operation = layer.operation.resized(name, size)

    return property(read, write)


def read_arguments(layer: Any, name: str) -> Any:
    """Serve as `__getattr__` of layers with an `operation`: forward code may read settings of the plain layer (`conv.stride`)."""
    try:
        return nn.Module.__getattr__(layer, name)
    except AttributeError:
        operation = layer.__dict__.get("operation")
        if operation is None or name == "bias" or name not in operation.arguments:
            raise
        return operation.arguments[name]


class SampledLayer(nn.Module, ABC):
    """A linear map or convolution whose weight and bias have a Gaussian posterior each.

    It states the sizes of its operation as the plain layer does, and can be given others by compaction.

    Args:
        *arguments: those of the plain layer, by position or by name.
        rho: where every rho starts; the standard deviation is softplus(rho), 0.0025 for the default.
        generator: a generator for the first means; torch's own if None.
        device: where the parameters live.
        dtype: their type.
        **options: more arguments of the plain layer.
    """

    plain_kind: ClassVar[type[nn.Module]]
    weight_mean: nn.Parameter
    weight_rho: nn.Parameter
    bias_mean: nn.Parameter | None
    bias_rho: nn.Parameter | None
    in_features, out_features = _size("in_features"), _size("out_features")
    in_channels, out_channels, groups = _size("in_channels"), _size("out_channels"), _size("groups")
    __getattr__ = read_arguments

    def __init__(
        self,
        *arguments: Any,
        rho: float = RHO_START,
        generator: torch.Generator | None = None,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ):
        super().__init__()
        self.operation = operation_of(self.plain_kind(*arguments, **options, device="meta"))
        weight, bias = fresh_weights(self.operation, generator, device=device, dtype=dtype)
        add_posterior(self, "weight", weight, rho)
        add_posterior(self, "bias", bias, rho)

    @property
    def weight(self) -> nn.Parameter:
        """The mean of the weight: forward code may read its dtype or shape."""
        return self.weight_mean

    @property
    def bias(self) -> nn.Parameter | None:
        """The mean of the bias."""
        return self.bias_mean

    @abstractmethod
    def plain(self) -> nn.Module:
        """Return a plain layer with the center of the posterior as its weights."""

    def extra_repr(self) -> str:
        """Return the arguments of the plain layer."""
        return describe(self.operation)


def operation_of(layer: nn.Module) -> Operation:
    """Return what a plain `nn.Linear` or `nn.Conv1d`, `2d`, `3d` does, as a function of its weights."""
    names = ["in_features", "out_features"]
    if not isinstance(layer, nn.Linear):
        assert isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)
        names = [
            "in_channels",
            "out_channels",
            "kernel_size",
            "stride",
            "padding",
            "dilation",
            "groups",
            "padding_mode",
        ]
    return Operation(
        arguments={name: getattr(layer, name) for name in names} | {"bias": layer.bias is not None},
        weight_shape=tuple(layer.weight.shape),
        biased=layer.bias is not None,
        inputs=getattr(layer, names[0]),
        outputs=getattr(layer, names[1]),
        dims=max(layer.weight.dim() - 2, 0),
    )


def describe(operation: Operation) -> str:
    """Return the operation's arguments for a module's printed form."""
    return ", ".join(f"{name}={value}" for name, value in operation.arguments.items())
