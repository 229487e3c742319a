"""Penalties on parameters (L2, anchored), and the objective that adds them to the likelihood.

The convention for the whole library: N is the number of training rows. One member's loss on a batch is

    mean over the batch of the negative log likelihood  +  penalty / N

where the penalty is a *sum* over parameters (a negative log prior, a KL). So the expected loss for any batch size is 1/N of the negative log
posterior (or negative ELBO) of the full data. If members share a network, each parameter gets the gradient of the mean likelihood of the
members that use it: a member's own tensors the gradient that they would get alone, tensors of all members the average. Members that
coincide then train exactly as the plain network does at the same learning rate. The penalty is added once for every parameter. The
displayed loss is the mean over members, penalty included.

Scaled priors: the more inputs a unit sums, the smaller their weights. With one standard deviation for all parameters, a function drawn from
the prior grows with each layer by that standard deviation times the root of its width: 0.45 in a layer of 256 units is a factor of 7.
Divided by the root of the inputs, the prior's functions keep their size for all widths.

Reference: Neal, "Bayesian Learning for Neural Networks", 1996, section 2.1; Pearce et al., 2020, arXiv:1810.05546, section 4. Patched layers:
Chang et al., "Ensemble Model Patching", 2019, arXiv:1905.09453, equations 2 and 6.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from choral.base.text import matches
from choral.base.types import Params, Slots
from choral.base.values import NotNegative, Positive, Value
from choral.objectives.likelihoods import Likelihood


@dataclass(frozen=True, kw_only=True)
class Penalty(Value, ABC):
    """A sum over parameters that is added to the summed negative log likelihood.

    The class attribute `slots` names the state slots it reads (an anchor, for example), which the plan must provide.
    """

    slots: ClassVar[tuple[str, ...]] = ()

    @property
    def changes(self) -> bool:
        """Whether it depends on the progress of the phase (annealing)."""
        return False

    @abstractmethod
    def __call__(self, params: Params, slots: Slots, progress: float) -> Tensor:
        """Return the scalar penalty, not divided by N.

        Args:
            params: the joint network's parameters.
            slots: the declared slots, each a dict with names of parameters.
            progress: progress of the training phase, from 0 to 1.
        """


@dataclass(frozen=True, kw_only=True)
class L2(Penalty):
    """Half the precision times the squared norm: the negative log density of N(0, 1 / precision) up to a constant.

    Components of a patched layer are weighted by their probabilities, uniform or softmax(mixing): sum over k of p_k / 2 ||M_k||^2 times the
    precision approximates the KL of a patched network to that prior (Chang et al., equation 6).

    Args:
        precision: inverse prior variance (not weight decay: decay = precision / N).
        bias_precision: that of biases and shifts; `precision` if None.
        include: name patterns of the parameters; all by default.
        exclude: name patterns of parameters to leave out.

    >>> L2(precision=2.0)({"norm.patches.weight": torch.ones(5, 3)}, {}, 0.0)
    tensor(3.)
    """

    precision: NotNegative = 1.0
    bias_precision: NotNegative | None = None
    include: tuple[str, ...] = ("*",)
    exclude: tuple[str, ...] = ()

    def __call__(self, params: Params, slots: Slots, progress: float) -> Tensor:
        mixing = {name: _mixing_of(name) for name in params}
        logits_of, terms = set(mixing.values()), []
        for name, p in params.items():
            if name in logits_of or not matches(name, self.include) or matches(name, self.exclude):
                continue
            precision = self.precision
            if self.bias_precision is not None and name.rpartition(".")[2] == "bias":
                precision = self.bias_precision
            square = p.square().sum()
            if mixing[name]:
                norms, logits = p.square().flatten(1).sum(1), params.get(mixing[name])  # (component,)
                square = norms.mean() if logits is None else (logits.softmax(0) * norms).sum()
            terms.append(precision * square)
        return 0.5 * torch.stack(terms).sum() if terms else torch.zeros(())


def _mixing_of(name: str) -> str:
    """Return the name of the mixing logits of a component of a patched layer; empty for other parameters."""
    owner, _, part = name.rpartition(".")[0].rpartition(".")
    return f"{owner}.mixing".removeprefix(".") if part == "patches" else ""


@dataclass(frozen=True, kw_only=True)
class Objective(Value):
    """What one training step minimizes: likelihood + penalties / N.

    Args:
        likelihood: the meaning of the outputs; None infers it from the data.
        penalties: sums over parameters, divided by the number of training rows.
    """

    likelihood: Likelihood | None = None
    penalties: tuple[Penalty, ...] = ()

    @property
    def slots(self) -> tuple[str, ...]:
        """All state slots that the penalties read."""
        return tuple(dict.fromkeys(s for p in self.penalties for s in p.slots))

    def penalty(self, params: Params, slots: Slots, progress: float, points: float) -> Tensor:
        """Return the summed penalties divided by N; there must be one."""
        first, *others = (penalty(params, slots, progress) for penalty in self.penalties)
        return sum(others, first) / points


def scale(shape: Sequence[int]) -> float:
    """Return the factor of the prior's standard deviation for a tensor: 1 / sqrt(inputs of a unit), 1 for vectors.

    >>> scale((10, 64)), scale((16, 4, 3, 3)) == 1 / 6, scale((10,))
    (0.125, True, 1.0)
    """
    return 1 / math.sqrt(max(math.prod(shape[1:]), 1))


def in_parameters(units: Params) -> Params:
    """Return tensors in the units of the parameters, from units of `scale`."""
    return {name: value * scale(value.shape) for name, value in units.items()}


def in_units(params: Params) -> Params:
    """Return tensors in units of `scale`, from the units of the parameters."""
    return {name: value / scale(value.shape) for name, value in params.items()}


@dataclass(frozen=True, kw_only=True)
class Anchored(Penalty):
    """Squared distance to the anchor in units of the prior: sum (theta - anchor)^2 / (2 prior_std^2).

    With anchors drawn from the prior N(0, prior_std^2), the minima of likelihood + penalty spread around the posterior.
    For linear regression with prior precision P and posterior precision A, their mean is the posterior's and their
    covariance is A^-1 P A^-1: too narrow along directions determined by the data. It becomes exactly A^-1 if every member
    also has its own targets, y + noise of the likelihood. Only the parameters named in the slot `anchor` are regularized.

    Args:
        prior_std: standard deviation of the Gaussian prior, above 0.
        scaled: divide it by the root of a weight's inputs (`choral.objectives.penalties.scale`).

    Reference: Pearce et al., "Uncertainty in Neural Networks: Approximately Bayesian Ensembling", 2020,
    arXiv:1810.05546; Delaunoy & Louppe, "SAE: Sequential Anchored Ensembles", 2021, arXiv:2201.00649.

    >>> penalty = Anchored(prior_std=0.5)
    >>> penalty({"w": torch.tensor([1.0, 2.0])}, {"anchor": {"w": torch.tensor([0.0, 2.0])}}, 0.0).item()
    2.0
    """

    slots: ClassVar[tuple[str, ...]] = ("anchor",)
    prior_std: Positive = 1.0
    scaled: bool = False

    def __call__(self, params: Params, slots: Slots, progress: float) -> Tensor:
        anchor = slots["anchor"]
        squares = [
            (params[name] - target).square().sum() / (scale(target.shape) ** 2 if self.scaled else 1.0)
            for name, target in anchor.items()
        ]
        return torch.stack(squares).sum() / (2 * self.prior_std**2) if squares else torch.zeros(())
