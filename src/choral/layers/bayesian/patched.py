"""The variational family of ensembles: every tensor of a layer is drawn from a mixture of components.

A layer's tensors are W = sum_k 1[Z = k] * M_k (equation 1 of the paper, without its noise, since sigma is the machine's precision).
Methods differ in the number of components, in what is fixed and in which entries of Z are drawn together (the paper's Table 2 and
equations 4 and 5):

| method            | components K       | assignments Z drawn  | fixed                             |
|-------------------|--------------------|----------------------|-----------------------------------|
| dropout           | 2                  | for every input unit | second component 0; biases whole  |
| DropConnect       | 2                  | for every scalar     | second component 0; biases whole  |
| explicit ensemble | K                  | once for the network |                                   |
| EMP               | K in each layer    | once for a layer     |                                   |
| ECMP              | K in each layer    | for every scalar     |                                   |

`FAMILY` has them as values; `PatchedLayer` implements all of them.

Reference: Chang et al., "Ensemble Model Patching: A Parameter-Efficient Variational Bayesian Neural Network", 2019,
arXiv:1905.09453.

Running statistics of BatchNorm are averages over draws and fit none of them: after a patched layer each draw has its own means and
variances. Passes at prediction are numbered and their draws follow from the number, so the statistics of each can be estimated once after
training and stored with the weights.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from choral.base import draws
from choral.base.draws import now, under
from choral.base.errors import ConversionError, InputError
from choral.base.values import BelowOne, Count, Positive, Value
from choral.layers.convert import plain_network
from choral.layers.functional import (
    BATCH_NORMS,
    TRANSPOSED,
    WEIGHTED,
    Converted,
    Tensors,
    Twin,
    filled,
    operate,
    own_kind,
)
from choral.layers.packed.layers import PACKABLE
from choral.layers.packed.narrow import redrawn


def keeps_statistics(layer: nn.Module) -> bool:
    """Return whether a layer is a BatchNorm with running statistics."""
    return own_kind(layer, BATCH_NORMS) is not None and layer._buffers.get("running_mean") is not None


class DrawnStatistics(nn.Module):
    """Means and variances by pass, used once they are estimated, instead of the running ones.

    Args:
        passes: number of passes.
        like: running means, for their number and dtype.

    Shapes: mean and var (pass, channel).
    """

    mean: Tensor
    var: Tensor
    known: Tensor

    def __init__(self, passes: int, like: Tensor):
        super().__init__()
        self.passes = passes
        self.number: int | None = None  # the pass being estimated
        self._seen = 0
        self.register_buffer("mean", torch.zeros(passes, *like.shape, dtype=like.dtype, device=like.device))
        self.register_buffer("var", torch.ones(passes, *like.shape, dtype=like.dtype, device=like.device))
        self.register_buffer("known", torch.zeros((), dtype=torch.bool, device=like.device))

    def begin(self, number: int) -> None:
        """Start to estimate the statistics of a pass, as an average over batches of equal weight."""
        self.number, self._seen = number, 0

    def end(self) -> None:
        """Use the estimates from now on."""
        self.number = None
        self.known.fill_(True)

    def normalize(self, layer: Any, x: Tensor, tensors: Tensors) -> Tensor:
        """Return the layer's output in evaluation with the statistics of the running pass.

        Args:
            layer: the BatchNorm, for its settings.
            x: its input.
            tensors: its scale, shift and running statistics.
        """
        if self.number is not None:
            self._seen += 1
            own = self.mean[self.number], self.var[self.number]
            return F.batch_norm(x, *own, tensors["weight"], tensors["bias"], True, 1 / self._seen, layer.eps)
        stream = draws.now().stream
        drawn: dict[str, Tensor] = {}
        if stream is not None:
            for name, rows in (("running_mean", self.mean), ("running_var", self.var)):
                running = tensors[name]
                assert running is not None
                drawn[name] = torch.where(self.known, _row(rows, stream.step % self.passes), running)
        return operate(layer, x, {**tensors, **drawn}, training=False)


class DrawnNorm(Converted):
    """A BatchNorm that is shared by all draws and has statistics for each pass.

    Args:
        layer: the BatchNorm, whose tensors are taken over.
        passes: see `DrawnStatistics`.
    """

    def __init__(self, layer: nn.Module, *, passes: int):
        super().__init__(layer, BATCH_NORMS)
        self.take_over(layer)
        self.drawn = DrawnStatistics(passes, layer.get_buffer("running_mean"))

    def forward(self, x: Tensor) -> Tensor:
        tensors = self.tensors()
        return self.run(x, tensors) if self.training else self.drawn.normalize(self.settings, x, tensors)

    def plain(self) -> nn.Module:
        """Return the BatchNorm with its running statistics."""
        return filled(self.settings, self.tensors())


Assignment = Literal["network", "layer", "unit", "scalar"]


@dataclass(frozen=True, kw_only=True)
class Mixture(Value):
    """One member of the family: how a layer's tensors are drawn.

    Args:
        components: K, trained components of each tensor.
        assignment: which entries share one draw of Z: those of the 'network', of a 'layer', of an input 'unit', or none
            ('scalar').
        zero: probability of an additional component fixed at 0 (weights only), drawn as `assignment` says; 0 for none.
        learned: whether the mixing probabilities are learned; otherwise they are uniform.
        temperature: temperature of the relaxed assignments, which carry the gradient of learned probabilities.
    """

    components: Count = 5
    assignment: Assignment = "layer"
    zero: BelowOne = 0.0
    learned: bool = False
    temperature: Positive = 0.5

    def __post_init__(self) -> None:
        if self.zero and self.assignment == "network":
            raise InputError("Mixture: a component fixed at 0 goes with layers, units or scalars, not with 'network'.")
        if self.assignment == "unit" and (not self.zero or self.components > 1):
            raise InputError(
                "Mixture: assignment='unit' is dropout: one component, and zero=, the probability of dropping."
            )


def family(*, components: int = 5, rate: float = 0.5) -> dict[str, Mixture]:
    """Return the paper's special cases by name.

    >>> family(components=3)["emp"]
    Mixture(components=3, assignment='layer', zero=0.0, learned=False, temperature=0.5)
    """
    return {
        "dropout": Mixture(components=1, assignment="unit", zero=rate),
        "drop_connect": Mixture(components=1, assignment="scalar", zero=rate),
        "explicit_ensemble": Mixture(components=components, assignment="network"),
        "emp": Mixture(components=components, assignment="layer"),
        "ecmp": Mixture(components=components, assignment="scalar"),
    }


FAMILY = family()


class PatchedLayer(Converted):
    """A plain layer whose tensors are drawn from components in every pass, in training and in evaluation.

    Components are the parameters `patches.weight`, `patches.bias` and so on, with the component axis first; buffers (running statistics) are
    shared. Learned mixing probabilities are softmax(`mixing`). Their gradient flows through assignments that are hard in the forward pass and
    relaxed (Gumbel-softmax) in the backward pass; the gradient of the components is that of the hard draw, so it is unbiased.

    Args:
        layer: the plain layer; not changed.
        mixture: how its tensors are drawn.
        jitter: initial spread of constant tensors (norm scales) over components, relative to their value.
        keep_weights: start all components near the layer's own weights (jittered) instead of drawing them.
        generator: draws the components; a new one with seed 0 by default.
        passes: number of passes at prediction. A BatchNorm then has statistics for each, and in evaluation mode draws follow from the number
            of the pass and `key`. 0 disables both.
        key: key of the draws by pass, different for each layer.

    Component 0 always starts at the layer's own weights, so K = 1 is the plain layer.

    >>> layer = PatchedLayer(nn.Linear(3, 2), Mixture(components=5))
    >>> layer(torch.ones(4, 3)).shape, sum(p.numel() for p in layer.parameters())
    (torch.Size([4, 2]), 40)
    """

    mixing: nn.Parameter | None
    shown = ("mixture",)

    def __init__(
        self,
        layer: nn.Module,
        mixture: Mixture,
        *,
        jitter: float = 0.1,
        keep_weights: bool = False,
        generator: torch.Generator | None = None,
        passes: int = 0,
        key: int = 0,
    ):
        super().__init__(layer, PACKABLE)
        if mixture.zero and own_kind(layer, WEIGHTED) is None:
            raise ConversionError(f"a component fixed at 0 stands for dropped weights, which {layer} does not have.")
        self.mixture = mixture
        generator = generator or torch.Generator().manual_seed(0)
        self.patches = nn.ParameterDict(
            {n: nn.Parameter(self._components(p, jitter, keep_weights, generator)) for n, p in layer.named_parameters()}
        )
        if mixture.zero:
            self.patches["weight"].data /= 1 - mixture.zero  # the mean over assignments is the layer's own weight
        self.take_over(layer, parameters=False)
        first = next(layer.parameters())
        logits = torch.zeros(mixture.components, dtype=first.dtype, device=first.device)
        self.register_parameter("mixing", nn.Parameter(logits) if mixture.learned else None)
        self._key = key if passes else None
        drawn = passes and keeps_statistics(layer)
        self.drawn = DrawnStatistics(passes, self._buffers["running_mean"]) if drawn else None  # type: ignore[arg-type]  # it has some

    def _components(self, p: Tensor, jitter: float, keep_weights: bool, generator: torch.Generator) -> Tensor:
        k = self.mixture.components
        stack = p.detach().expand(k, *p.shape).clone()
        if p.is_meta or k == 1:
            return stack
        if not keep_weights and not bool((p == p.flatten()[0]).all()):
            return redrawn(p, p.shape, members=k, spread=1.0, generator=generator)
        noise = torch.randn(k, *p.shape, generator=generator).to(p)
        noise[0] = 0
        return stack + jitter * p.detach().square().mean().sqrt() * noise

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output under one draw of the assignments."""
        with draws_by_pass(self._key, self.training):
            tensors = self._with(self._draw())
        if self.drawn is not None and not self.training:
            return self.drawn.normalize(self.settings, x, tensors)
        return self.run(x, tensors)

    def _with(self, drawn: dict[str, Tensor]) -> Tensors:
        return {**dict.fromkeys(self.settings._parameters), **self._buffers, **drawn}

    def _draw(self) -> dict[str, Tensor]:
        drawn, zero = self._assigned(), self.mixture.zero
        if zero:
            weight = drawn["weight"]
            inputs = 0 if isinstance(self.settings, TRANSPOSED) else 1
            unit = tuple(size if axis == inputs else 1 for axis, size in enumerate(weight.shape))
            shape = {"scalar": weight.shape, "layer": ()}.get(self.mixture.assignment, unit)
            drawn["weight"] = weight * draws.keep_mask(shape, zero, device=weight.device).to(weight.dtype)
        return drawn

    def _assigned(self) -> dict[str, Tensor]:
        patches, mixture = dict(self.patches.items()), self.mixture
        if mixture.components == 1:
            return {n: p.squeeze(0) for n, p in patches.items()}
        if mixture.assignment == "scalar":
            return {n: self._mixed(p, tuple(p.shape[1:])) for n, p in patches.items()}
        component = now().component
        if mixture.assignment == "network" and component is not None:
            return {n: _row(p, component) for n, p in patches.items()}
        if self.mixing is not None:
            parts = self._relaxed(())
            return {n: (parts.view(-1, *(1,) * (p.dim() - 1)) * p).sum(0) for n, p in patches.items()}
        first = next(iter(patches.values()))
        picked = draws.index(mixture.components, device=first.device)
        return {n: _row(p, picked) for n, p in patches.items()}

    def _mixed(self, components: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return a tensor whose every scalar comes from a component of its own."""
        if self.mixing is not None:
            return (self._relaxed(shape) * components).sum(0)
        assigned = draws.integers(self.mixture.components, (1, *shape), device=components.device)
        return components.gather(0, assigned).squeeze(0)

    def _relaxed(self, shape: tuple[int, ...]) -> Tensor:
        """Return assignments (component, *shape): one-hot in value, with the gradient of a softmax."""
        assert self.mixing is not None
        uniform = draws.uniform((self.mixture.components, *shape), like=self.mixing)
        scores = self.mixing.log_softmax(0).view(-1, *(1,) * len(shape)) - (-uniform.log()).log()
        soft = (scores / self.mixture.temperature).softmax(0)
        hard = torch.zeros_like(soft).scatter(0, scores.argmax(0, keepdim=True), 1.0)
        return hard + soft - soft.detach()

    def probabilities(self) -> Tensor:
        """Return the mixing probabilities of the trained components."""
        if self.mixing is not None:
            return self.mixing.softmax(0) * (1 - self.mixture.zero)
        first = next(iter(self.patches.values()))
        return torch.full((len(first),), (1 - self.mixture.zero) / len(first), dtype=first.dtype, device=first.device)

    def plain(self) -> nn.Module:
        p = self.probabilities().detach()
        shares = {n: p if n == "weight" else p / p.sum() for n in self.patches}  # biases are never 0
        means = {n: torch.tensordot(shares[n], c.detach(), dims=1) for n, c in self.patches.items()}
        return filled(self.settings, self._with(means))


class PatchedNetwork(Twin):
    """A network of patched layers that share their assignments: one draw for every pass.

    Args:
        network: contains patched layers with assignment='network'; not copied.
        components: K.
        key: key of the draws by pass in evaluation mode, see `PatchedLayer`; None follows the running draws.
    """

    def __init__(self, network: nn.Module, *, components: int, key: int | None = None):
        super().__init__()
        self.network, self.components, self._key = network, components, key

    def forward(self, x: Tensor) -> Tensor:
        with draws_by_pass(self._key, self.training):
            component = draws.index(self.components, device=x.device)
        with under(component=component):
            return self.network(x)

    def plain(self) -> nn.Module:
        return plain_network(self.network)


def draws_by_pass(key: int | None, training: bool) -> AbstractContextManager[None]:
    """Return a block in which draws of evaluation mode follow from the number of the pass alone."""
    return nullcontext() if training or key is None else draws.repeated(key)


def _row(values: Tensor, number: int | Tensor) -> Tensor:
    return values[number] if isinstance(number, int) else values.index_select(0, number.reshape(1).long()).squeeze(0)
