"""Early stopping and selection of members by validation scores during training."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from choral.base.errors import InputError, did_you_mean
from choral.base.text import grows
from choral.base.values import Count, Function, NotNegative, Value
from choral.plan.state import slot
from choral.predictions import Predictive, means_of

By = Literal["member", "ensemble"]


@dataclass(frozen=True, kw_only=True)
class Measure(Value):
    """A score of predictions.

    Args:
        name: its name; without a function, one of the scores of a prediction.
        larger_is_better: its direction.
        function: takes a prediction and its targets, returns the score.

    >>> Measure.of("accuracy").larger_is_better, Measure.of("nll").larger_is_better
    (True, False)
    """

    name: str
    larger_is_better: bool = False
    function: Function | None = None

    @staticmethod
    def of(
        given: "str | Measure | Callable[[Predictive, Tensor], float]", *, larger_is_better: bool | None = None
    ) -> "Measure":
        """Return a measure by its name, or from a function (prediction, y) -> float.

        Args:
            given: the name or function.
            larger_is_better: the direction; known for names, by default False for functions.
        """
        match given:
            case Measure():
                return given
            case str():
                grown = grows(given) if larger_is_better is None else larger_is_better
                return Measure(name=given, larger_is_better=grown)
        if not callable(given):
            raise InputError(
                f"monitor is {given!r}; give the name of a score such as 'nll', or a function (prediction, y)."
            )
        function = Function.of(given)
        return Measure(
            name=function.name.rpartition(".")[2], larger_is_better=bool(larger_is_better), function=function
        )

    def __call__(self, prediction: Predictive, targets: Tensor, weights: Tensor | None = None) -> float:
        """Return the score, weighted by rows (row,) if `weighs`."""
        if self.function is not None:
            return float(self.function(prediction, targets))
        if weights is not None:
            means = means_of(prediction.row_scores(targets), prediction.row_weights(targets, weights))
            if self.name in means:
                return means[self.name]
        brief = prediction.brief(targets)
        if self.name in brief:
            return brief[self.name]
        scores = prediction.scores(targets)
        if self.name not in scores:
            raise InputError(
                f"monitor is {self.name!r}; give one of {', '.join(sorted(scores))}, or a function (prediction, y).{did_you_mean(self.name, scores)}"
            )
        return scores[self.name]

    def weighs(self, prediction: Predictive, targets: Tensor) -> bool:
        """Return whether weights of rows are used: for scores that are means over rows."""
        return self.function is None and self.name in means_of(prediction.row_scores(targets))

    def improves(self, value: float, best: float | None, least: float = 0.0) -> bool:
        """Return whether a value is better than the best so far by more than `least`; never for NaN."""
        if best is None:
            return value == value
        return value > best + least if self.larger_is_better else value < best - least


@dataclass(frozen=True, kw_only=True)
class EarlyStopping(Value):
    """Stop a training phase when the validation score no longer improves, and choose the weights to keep.

    Args:
        patience: epochs without improvement after which training stops; None never stops it.
        restore_best: keep the weights with the best validation score; False keeps the last ones.
        monitor: 'nll', 'accuracy', 'rmse', ... (any score of a prediction), a `Measure`, or a function (prediction, y) -> float. By default
            'pinball' for quantiles, 'loss' for a loss of your own, 'nll' for all others.
        by: 'member' stops each network separately; 'ensemble' scores the mean prediction of all networks trained together, and stops them
            together.
        min_delta: smallest change that counts as an improvement.
        every: epochs between two validations; the last epoch is always validated.

    >>> EarlyStopping(patience=5, monitor="rmse").monitor
    Measure(name='rmse', larger_is_better=False, function=None)
    """

    patience: Count | None = 16
    restore_best: bool = True
    monitor: Any = None
    by: By = "member"
    min_delta: NotNegative = 0.0
    every: Count = 1

    def __post_init__(self) -> None:
        if self.monitor is not None:
            object.__setattr__(self, "monitor", Measure.of(self.monitor))


SHARE = slot("share")
"""What a network counts in the ensemble it was chosen for; 0 if it was not."""


@dataclass(frozen=True, kw_only=True)
class Select(Value):
    """Select members greedily, with replacement, by the score on held-out rows, after every epoch of a training phase.

    Candidates are each network as it is now, and as it was when last selected (or at its best, if it never was). A selection replaces the
    previous one if it predicts the held-out rows better. At the end each network has its selected weights, and the counts of the selection
    are the members' weights. Without held-out rows (`validation=` of `choral.fit`) all members are kept with equal weights.

    Args:
        picks: largest number of picks; a network may be picked several times.
        patience: epochs without a better selection after which the phase ends.

    Reference: Caruana et al., "Ensemble Selection from Libraries of Models", 2004, sections 2 and 2.1.
    """

    picks: Count = 32
    patience: Count = 32
