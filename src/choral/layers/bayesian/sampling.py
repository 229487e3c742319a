"""Layers with a posterior over their weights, drawn in every forward pass: Gaussian, and Gaussian with gates.

They draw in training and in evaluation mode, with `choral.base.draws`; within `at_means` they use the means of their posterior. Each tensor
X of the plain layer becomes the parameters `X_mean` and `X_rho`; its value, the same for the whole batch, is X_mean + softplus(X_rho) *
noise. The penalties are `choral.objectives.kl.GaussianKL` and `choral.objectives.kl.SpikeSlabKL`.

References: Blundell et al., "Weight Uncertainty in Neural Networks", 2015, arXiv:1505.05424; Jantre et al., "Sequential Bayesian
Neural Subnetwork Ensembles", 2022, arXiv:2206.00794, section 3.1 and appendix A.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from choral.base import draws
from choral.base.draws import now, under
from choral.base.values import Inside, typed
from choral.layers.functional import BATCH_NORMS, CONVOLUTIONS, Converted, Twin, filled, own_kind
from choral.objectives.kl import MEAN, RHO, std_of

RHO_START = -6.0
GAMMA_START = 0.99
SAMPLED = (nn.Linear, *CONVOLUTIONS)
"""Plain layers that have a sampled one."""


@contextmanager
def at_means() -> Iterator[None]:
    """Make every sampled layer of the block deterministic: posterior means, and nodes with gamma above one half.

    >>> layer, x = GaussianLayer(nn.Linear(3, 2), rho=0.0), torch.ones(1, 3)
    >>> with at_means():
    ...     torch.equal(layer(x), layer(x))
    True
    >>> torch.equal(layer(x), layer(x))
    False
    """
    with under(means=True):
        yield


def remembered(source: Tensor, make: Callable[[], Tensor]) -> Tensor:
    """Return a value drawn from a tensor and the running stream only, cached from call to call if the context caches values."""
    stream, kept = now().stream, now().kept
    if stream is None:
        return make()
    # mapped calls have many values, and a slice is another tensor each time
    if kept is not None and stream.by_number and isinstance(source, nn.Parameter):
        make = partial(kept.value, stream, source, make)
    if torch.is_grad_enabled():
        return make()
    if id(source) not in stream.values:
        stream.values[id(source)] = source, make()  # holding the source keeps its id from being reused
    return stream.values[id(source)][1]


def draw(mean: Tensor | None, rho: Tensor | None) -> Any:
    """Return mean + softplus(rho) * noise, or the mean within `at_means`; None for None (a layer without bias)."""
    if mean is None or rho is None or now().means:
        return mean
    return remembered(mean, lambda: torch.addcmul(mean, std_of(rho), draws.normal(mean.shape, like=mean)))


def add_posterior(layer: nn.Module, name: str, center: Tensor | None, rho: float) -> None:
    """Add the parameters `name_mean`, a copy of `center`, and `name_rho` to a layer; None twice if `center` is None."""
    mean = None if center is None else nn.Parameter(center.detach().clone())
    layer.register_parameter(name + MEAN, mean)
    layer.register_parameter(name + RHO, None if mean is None else nn.Parameter(torch.full_like(mean, rho)))


def fresh_weight(weight: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return a weight drawn by Kaiming's rule (normal, over the inputs) in the shape of another."""
    empty = torch.empty(weight.shape, dtype=weight.dtype, device=weight.device)
    return nn.init.kaiming_normal_(empty, nonlinearity="relu", generator=generator)


class SampledLayer(Converted):
    """A linear map or convolution with a Gaussian posterior of weight and bias.

    Args:
        layer: the plain layer, for its settings, device and dtype; not changed.
        rho: initial value of every rho; the standard deviation is softplus(rho), 0.0025 for the default.
        keep_weights: start means at the plain layer's weights instead of drawing them.
        generator: a generator for new means; torch's own if None.
    """

    weight_mean: nn.Parameter
    weight_rho: nn.Parameter
    bias_mean: nn.Parameter | None
    bias_rho: nn.Parameter | None

    def __init__(
        self,
        layer: nn.Module,
        *,
        rho: float = RHO_START,
        keep_weights: bool = False,
        generator: torch.Generator | None = None,
    ):
        super().__init__(layer, SAMPLED)
        weight, bias = layer.get_parameter("weight"), layer._parameters["bias"]
        zeros = None if bias is None else torch.zeros_like(bias)
        add_posterior(self, "weight", weight if keep_weights else fresh_weight(weight, generator), rho)
        add_posterior(self, "bias", bias if keep_weights else zeros, rho)

    @property
    def weight(self) -> nn.Parameter:
        """The mean of the weight, whose dtype or shape forward code may read."""
        return self.weight_mean

    @property
    def bias(self) -> nn.Parameter | None:
        """The mean of the bias."""
        return self.bias_mean


class GaussianLayer(SampledLayer):
    """A linear map or convolution with Gaussian weights and bias.

    Args are those of `SampledLayer`.

    >>> layer = GaussianLayer(nn.Linear(3, 2))
    >>> sorted(name for name, _ in layer.named_parameters())
    ['bias_mean', 'bias_rho', 'weight_mean', 'weight_rho']
    """

    def forward(self, x: Tensor) -> Tensor:
        tensors = {"weight": draw(self.weight_mean, self.weight_rho), "bias": draw(self.bias_mean, self.bias_rho)}
        return self.run(x, tensors)

    def plain(self) -> nn.Module:
        return filled(self.settings, {"weight": self.weight_mean, "bias": self.bias_mean})


_NORMS = (*BATCH_NORMS, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


class GaussianNorm(Twin):
    """A normalization layer whose scale and shift are Gaussian.

    `norm` is the plain layer without scale and shift, for the statistics; means start at the layer's own scale and shift.

    Args:
        norm: an `nn.BatchNorm1d`, `2d`, `3d`, `nn.GroupNorm`, `nn.LayerNorm` or `nn.RMSNorm` with a scale; not changed.
        rho: as in `SampledLayer`.

    >>> GaussianNorm(nn.LayerNorm(4)).weight_mean.tolist()
    [1.0, 1.0, 1.0, 1.0]
    """

    weight_mean: nn.Parameter
    weight_rho: nn.Parameter
    bias_mean: nn.Parameter | None
    bias_rho: nn.Parameter | None

    def __init__(self, norm: nn.Module, *, rho: float = RHO_START):
        super().__init__()
        self.norm = deepcopy(norm)
        for name in ("weight", "bias"):
            add_posterior(self, name, norm._parameters.get(name), rho)
        self.norm._parameters = dict.fromkeys(norm._parameters)

    @property
    def settings(self) -> nn.Module:
        """The plain layer, which states the sizes."""
        return self.norm

    def forward(self, x: Tensor) -> Tensor:
        drawn: Any = {"weight": draw(self.weight_mean, self.weight_rho), "bias": draw(self.bias_mean, self.bias_rho)}
        return functional_call(self.norm, drawn, (x,))

    def plain(self) -> nn.Module:
        return filled(self.norm, {name: getattr(self, name + MEAN) for name in self.norm._parameters})


def gaussian_twin(
    layer: nn.Module,
    *,
    keep_weights: bool = False,
    rho: float = RHO_START,
    generator: torch.Generator | None = None,
) -> GaussianLayer | GaussianNorm | None:
    """Return the Gaussian layer for a plain one, or None if there is none.

    Args:
        layer: any module; linear maps, convolutions and normalization with a scale have a Gaussian layer.
        keep_weights: start means at the plain layer's weights instead of drawing them; normalization always keeps its own.
        rho: as in `SampledLayer`.
        generator: for new means.
    """
    if type(layer) in _NORMS and layer._parameters.get("weight") is not None:
        return GaussianNorm(layer, rho=rho)
    if own_kind(layer, SAMPLED) is None:
        return None
    return GaussianLayer(layer, rho=rho, keep_weights=keep_weights, generator=generator)


class SpikeSlabLayer(SampledLayer):
    """A linear map or convolution with Gaussian weights and a gate for each output node.

    Node j has a gate z_j ~ Bernoulli(gamma_j) shared by all its incoming weights and its bias. The forward pass uses the
    hard gate, eta_j > 0, the backward pass the gradient of the relaxed one, sigmoid(eta_j / temperature), where
    eta_j = logit(gamma_j) + log(u / (1 - u)) with u uniform. The buffer `frozen_gate` fixes gates: -1 leaves a gate free, 0
    or 1 is its value from then on (`choral.objectives.kl.freeze_gates`). Within `at_means` a node is active if gamma is above
    one half.

    Args:
        layer, posterior: as in `SampledLayer`.
        gamma: initial inclusion probability of every node, strictly between 0 and 1.
        temperature: temperature of the relaxed gate (tau).
        sampled_gates: draw gates in evaluation mode too. If not, each gate is fixed to its more probable state (the median probability
            model), and only weights are drawn. BatchNorm after a gated layer needs that: its running variance includes the passes in which
            a node was inactive, so a rarely active node would be scaled up by 1 / sqrt(gamma) whenever it is drawn.

    >>> layer = SpikeSlabLayer(nn.Linear(3, 2))
    >>> [round(gamma, 2) for gamma in layer.gate_logit.sigmoid().tolist()]
    [0.99, 0.99]
    """

    frozen_gate: Tensor

    @typed
    def __init__(
        self,
        layer: nn.Module,
        *,
        gamma: Inside = GAMMA_START,
        temperature: float = 0.5,
        sampled_gates: bool = False,
        **posterior: Any,
    ):
        super().__init__(layer, **posterior)
        self.temperature = temperature
        self.sampled_gates = sampled_gates
        free = self.weight_mean.new_full(self.weight_mean.shape[:1], -1.0)
        self.gate_logit = nn.Parameter(torch.full_like(free, math.log(gamma) - math.log1p(-gamma)))
        self.register_buffer("frozen_gate", free)

    def gate(self) -> Tensor:
        """Return the gates of one pass, exactly 0 or 1, with the gradient of the relaxed gates if they are drawn."""
        if now().means or not (self.training or self.sampled_gates):
            drawn = (self.gate_logit > 0).to(self.gate_logit.dtype)
        else:
            u = draws.uniform(self.gate_logit.shape, like=self.gate_logit)
            eta = self.gate_logit + u.log() - (-u).log1p()
            relaxed = (eta / self.temperature).sigmoid()
            drawn = (eta > 0).to(eta.dtype) + (relaxed - relaxed.detach())
        return torch.where(self.frozen_gate < 0, drawn, self.frozen_gate)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias, gate = draw(self.weight_mean, self.weight_rho), draw(self.bias_mean, self.bias_rho), self.gate()
        weight = weight * gate.view((-1,) + (1,) * (weight.dim() - 1))
        return self.run(x, {"weight": weight, "bias": None if bias is None else bias * gate})

    def plain(self) -> nn.Module:
        """Return a plain layer with the posterior means as weights, zero for inactive nodes."""
        gate = torch.where(self.frozen_gate < 0, (self.gate_logit > 0).to(self.frozen_gate), self.frozen_gate)
        weight = self.weight_mean * gate.view((-1,) + (1,) * (self.weight_mean.dim() - 1))
        return filled(
            self.settings, {"weight": weight, "bias": None if self.bias_mean is None else self.bias_mean * gate}
        )
