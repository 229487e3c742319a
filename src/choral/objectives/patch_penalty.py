"""The penalty of patched layers: L2 over all components, weighted by their probabilities.

Reference: Chang et al., "Ensemble Model Patching", 2019, arXiv:1905.09453, equations 2 and 6.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from choral.base.types import Params, Slots
from choral.objectives.penalties import Penalty, matches

_PATCHES, _MIXING = "patches", "mixing"


@dataclass(frozen=True, kw_only=True)
class PatchedL2(Penalty):
    """The approximate KL of a patched network to a zero-centered Gaussian prior (the paper's equation 6).

    sum over components k of tau p_k / 2 ||M_k||^2 for weights, rho p_k / 2 ||m_k||^2 for biases; p = 1 for parameters that
    are not patched. Probabilities are uniform, or softmax(mixing) where they are learned.

    Args:
        precision: tau, the inverse prior variance of weights.
        bias_precision: rho, that of biases; tau if None.
        zero: probability of a component fixed at 0 beside the trained one, as in `choral.layers.bayesian.patched.Mixture`.
        include: patterns of the parameters it concerns; all by default.
        exclude: patterns of parameters it leaves alone.

    >>> PatchedL2(precision=2.0)({"norm.patches.weight": torch.ones(5, 3)}, {}, 0.0)
    tensor(3.)
    """

    precision: float = 1.0
    bias_precision: float | None = None
    zero: float = 0.0
    include: tuple[str, ...] = ("*",)
    exclude: tuple[str, ...] = ()

    def __call__(self, params: Params, slots: Slots, progress: float) -> Tensor:
        """Return the weighted sum of squares."""
        terms = []
        for name, p in params.items():
            *path, kind = name.split(".")
            if kind == _MIXING or not matches(name, self.include) or matches(name, self.exclude):
                continue
            precision = self.precision
            if kind == "bias" and self.bias_precision is not None:
                precision = self.bias_precision
            if path and path[-1] == _PATCHES:
                mixing = params.get(".".join((*path[:-1], _MIXING)))
                norms = p.square().flatten(1).sum(1)  # (component,)
                kept = 1 - self.zero if kind == "weight" else 1.0
                square = norms.mean() * kept if mixing is None else (mixing.softmax(0) * norms).sum()
            else:
                square = p.square().sum()
            terms.append(precision * square)
        return 0.5 * torch.stack(terms).sum() if terms else torch.zeros(())
