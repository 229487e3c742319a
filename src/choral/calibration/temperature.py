"""Temperature: divide logits by a number so that confidence matches accuracy on held-out data.

The number minimizes the held-out negative log likelihood of the *ensemble*, the members' average of softmax(logits /
T), so that members and ensemble are not calibrated against each other. With one member it is the usual convex problem.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from choral.base.errors import InputError
from choral.base.values import Value
from choral.metrics.classification import logits_nll
from choral.metrics.inputs import checked_finite, checked_labels, checked_weights

_COLDEST, _HOTTEST = 0.05, 20.0


@dataclass(frozen=True, kw_only=True)
class Temperature(Value):
    """What the logits are divided by.

    Args:
        temperatures: one for all members or one for each member, all positive; 1 changes nothing.

    >>> Temperature(temperatures=(2.0,)).apply(torch.tensor([[[1.0, 3.0]]])).tolist()
    [[[0.5, 1.5]]]
    """

    temperatures: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if not self.temperatures or not all(0 < t < math.inf for t in self.temperatures):
            raise InputError(f"temperatures are {self.temperatures}; give one or more finite numbers above 0.")

    def apply(self, member_logits: Tensor) -> Tensor:
        """Return the logits divided by their temperature. Shapes: (member, batch, class) -> the same."""
        if len(self.temperatures) not in (1, len(member_logits)):
            raise InputError(
                f"member_logits has {len(member_logits)} members but there are {len(self.temperatures)} temperatures; "
                "there must be one for all or one for each."
            )
        divisors = torch.tensor(self.temperatures, dtype=torch.float64).to(member_logits)
        return member_logits / divisors.reshape(-1, *[1] * (member_logits.ndim - 1))


def fit_temperature(
    member_logits: Tensor,
    labels: Tensor,
    *,
    per: Literal["ensemble", "member"] = "ensemble",
    weights: Tensor | None = None,
) -> Temperature:
    """Return the temperature that minimizes the ensemble's negative log likelihood on held-out data.

    A grid over [0.05, 20] finds the valley, L-BFGS its floor. If the result is not below the likelihood at 1 (in the
    given precision), it is 1: fitting never raises the likelihood of the data it is fitted on.

    Args:
        member_logits: (member, batch, class), of rows no member was trained on.
        labels: (batch,).
        per: one temperature for the whole "ensemble" or one for each "member".
        weights: (member,) of the average, uniform by default.

    Reference: Guo et al., "On Calibration of Modern Neural Networks", 2017, arXiv:1706.04599, section 4.2; for
    ensembles Rahaman & Thiery, "Uncertainty Quantification and Deep Ensembles", 2021, arXiv:2007.08792.
    """
    from scipy.optimize import minimize

    if per not in ("ensemble", "member"):
        raise InputError(f"per is {per!r}; it must be 'ensemble' or 'member'.")
    logits = checked_finite(member_logits, "member_logits")
    if logits.ndim != 3 or not logits.numel():
        raise InputError(
            f"member_logits has shape {tuple(logits.shape)}; it must be (member, batch, class), not empty."
        )
    members, batch, classes = logits.shape
    labels = checked_labels(labels, batch=batch, classes=classes).to(logits.device)
    shares = checked_weights(weights, members=members, like=logits)

    grid = np.linspace(-np.log(_HOTTEST), -np.log(_COLDEST), 9)  # of log inverse temperatures
    start = min(grid, key=lambda point: _nll_and_slope(np.full(members, point), logits, labels, shares)[0])

    def objective(point: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = _nll_and_slope(np.broadcast_to(point, members), logits, labels, shares)
        return value, slope if per == "member" else slope.sum(keepdims=True)

    free = members if per == "member" else 1
    fitted = minimize(objective, np.full(free, start), jac=True, method="L-BFGS-B", bounds=[(grid[0], grid[-1])] * free)
    found = Temperature(temperatures=tuple(float(t) for t in np.exp(-fitted.x)))
    before = logits_nll(member_logits, labels, weights=weights)
    return found if logits_nll(found.apply(member_logits), labels, weights=weights) < before else Temperature()


def _nll_and_slope(point: np.ndarray, logits: Tensor, labels: Tensor, weights: Tensor) -> tuple[float, np.ndarray]:
    """Return the mixture's mean NLL at log inverse temperatures `point` and its derivative by each of them.

    With b = exp(point), s = log softmax(b z)_y: ds / dpoint = b (z_y - E_p z), weighed by the member's responsibility.
    """
    log_scores, slopes = [], []
    for inverse, z in zip(np.exp(point).tolist(), logits):  # one member at a time keeps memory at (batch, class)
        log_probs = (inverse * z).log_softmax(-1)
        own = labels.unsqueeze(-1)
        log_scores.append(log_probs.gather(-1, own).squeeze(-1))
        slopes.append(inverse * (z.gather(-1, own).squeeze(-1) - (log_probs.exp() * z).sum(-1)))
    joint = torch.stack(log_scores) + weights.log().unsqueeze(-1)
    total = joint.logsumexp(0)
    responsibility = (joint - total).exp()
    slope = -(responsibility * torch.stack(slopes)).mean(1)
    return float(-total.mean()), slope.cpu().numpy()
