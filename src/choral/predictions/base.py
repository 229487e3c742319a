"""The contract of a prediction: what all tasks share, and what each must say about itself.

Members come first: every tensor a prediction holds is (member, batch, ...). A stochastic member has one row for each draw,
and `learners` says which rows are draws of one member. Whoever judges, corrects, prints or draws a prediction asks it, and
knows no task.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from choral import metrics
from choral.base.errors import InputError
from choral.base.values import Value
from choral.calibration.selection import GreedySelection, Loss, greedy_selection, mixture

UNFITTED = "this ensemble has no conformal rule; fit one on held-out data: ensemble.calibrated(x, y, level=0.9)."


@dataclass(frozen=True, kw_only=True)
class Predictive(ABC):
    """The predictive distribution of an ensemble for some points; `choral.Prediction` is what users see of it.

    Facts of a class: `task`, what it is called; `held`, the names of its tensors (member, batch, ...); `offers`, what
    `choral.Prediction` shows of it, the array it stands for first; `like_targets`, whether that has the shape of targets;
    `score`, by which ensembles are compared, smaller is better; `shown`, the scores of a small table; `alarm`, the one of `alarms` that tells
    strange inputs best; `rules`, the names of its conformal rules, the usual one first; `accepts`, the corrections it takes.

    Args:
        weights: weight of each member, uniform if None.
        conformal: the conformal rule, if one was fitted.
        learners: the member each row is a draw of; None if every row is a member of its own.
    """

    task: ClassVar[str]
    held: ClassVar[tuple[str, ...]]
    offers: ClassVar[tuple[str, ...]]
    like_targets: ClassVar[bool] = True
    score: ClassVar[str] = "nll"
    shown: ClassVar[tuple[str, ...]]
    alarm: ClassVar[str]
    rules: ClassVar[tuple[str, ...]] = ()
    accepts: ClassVar[tuple[type[Value], ...]] = ()

    weights: tuple[float, ...] | None = None
    conformal: Any = None
    learners: tuple[int, ...] | None = None

    def __len__(self) -> int:
        """Return the number of member rows."""
        return len(getattr(self, self.held[0]))

    @property
    def shares(self) -> Tensor | None:
        """The weights as the metrics take them, (member,) in float64; None if uniform."""
        return None if self.weights is None else torch.tensor(self.weights, dtype=torch.float64)

    def average(self, values: Tensor) -> Tensor:
        """Return the average over members by their weights. Shapes: (member, ...) -> (...)."""
        if self.weights is None:
            return values.mean(0)
        return torch.tensordot(torch.tensor(self.weights, dtype=values.dtype), values, dims=1)

    def rows_by_member(self) -> list[list[int]]:
        """Return the rows of each member: one, or all its draws."""
        if self.learners is None:
            return [[i] for i in range(len(self))]
        rows: dict[int, list[int]] = {}
        for i, learner in enumerate(self.learners):
            rows.setdefault(learner, []).append(i)
        return list(rows.values())

    def by_member(self, values: Tensor) -> Tensor:
        """Return what each member says, its draws averaged. Shapes: (row, ...) -> (member, ...)."""
        if self.learners is None:
            return values
        return metrics.average_draws(values, self.learners, weights=self.shares)

    def of_rows(self, rows: Sequence[int]) -> Self:
        """Return the prediction of some member rows alone; their weights are brought to sum 1 again."""
        kept = self.weights
        if kept is not None:
            total = sum(kept[i] for i in rows)
            kept = tuple(kept[i] / total for i in rows) if total else None
        learners = None if self.learners is None else tuple(self.learners[i] for i in rows)
        held = {name: getattr(self, name)[list(rows)] for name in self.held}
        return replace(self, **held, weights=kept, learners=learners)

    def with_rule(self, rule: Any) -> Self:
        """Return the prediction with a conformal rule."""
        return replace(self, conformal=rule)

    def covered(self, targets: Tensor) -> Tensor:
        """Return whether the conformal interval or set of each point holds its target (batch, ...)."""
        raise InputError(f"there are no conformal rules for {self.task}.")

    def counts(self, targets: Tensor) -> Tensor:
        """Return which points are judged (batch,): all, where no label is left out of scores."""
        return torch.ones(len(targets), dtype=torch.bool)

    def of_points(self, points: slice | Tensor) -> Self:
        """Return the prediction of some of the points."""
        return replace(self, **{name: getattr(self, name)[:, points] for name in self.held})

    def weighed(self, weights: Sequence[float]) -> Self:
        """Return the prediction with other weights of the members."""
        if len(weights) != len(self):
            raise InputError(f"there are {len(weights)} stacking weights for {len(self)} members; fit them again.")
        return replace(self, weights=tuple(weights))

    def cooled(self, temperature: Any) -> Self:
        """Return the prediction with a fitted temperature applied; tasks without logits refuse."""
        raise InputError(f"temperature divides logits, so it does not apply to {self.task}; leave it out.")

    def fit_temperature(self, targets: Tensor, *, per: Any) -> Value:
        """Return the temperature fitted on held-out targets; tasks without logits refuse."""
        raise InputError(f"temperature divides logits, so it does not apply to {self.task}; leave it out.")

    def fit_conformal(self, targets: Tensor, *, level: float, rule: str | None = None, seed: int = 0) -> Value:
        """Return the conformal rule of a level fitted on held-out targets; `rule` is one of `rules`."""
        if not self.rules:
            raise InputError(f"there are no conformal rules for {self.task}; leave level out.")
        if rule is not None and rule not in self.rules:
            raise InputError(f"conformal is {rule!r}; for {self.task} give one of {', '.join(self.rules)}.")
        return self._conformal(targets, level, rule or self.rules[0], seed)

    def _conformal(self, targets: Tensor, level: float, rule: str, seed: int) -> Value:
        raise NotImplementedError(f"{type(self).__name__} names conformal rules and fits none.")

    @property
    def mixes(self) -> bool:
        """Whether it is the mixture of its members' predictions, so that scores of mixtures say something about it."""
        return True

    def check_mixture(self) -> None:
        """Raise InputError unless it is a mixture."""
        if not self.mixes:
            raise InputError(
                "this ensemble averages logits, not probabilities, so members cannot be weighed, selected or cooled by the "
                "score of their mixture; use temperature='ensemble' and conformal sets."
            )

    @property
    @abstractmethod
    def mean(self) -> Tensor:
        """The mean prediction (batch, ...)."""

    @property
    @abstractmethod
    def variance(self) -> Tensor:
        """Variance of what is predicted (batch, ...)."""

    @property
    @abstractmethod
    def aleatoric(self) -> Tensor:
        """The part of the uncertainty that is noise in the data."""

    @property
    @abstractmethod
    def epistemic(self) -> Tensor:
        """The part of the uncertainty that is disagreement of the members."""

    @property
    @abstractmethod
    def member_values(self) -> Tensor:
        """What each row predicts, (member, batch, ...): its place in function space."""

    @abstractmethod
    def targets(self, y: Any) -> Tensor:
        """Return targets as this prediction compares itself with; raises InputError for ones that cannot be its targets."""

    @abstractmethod
    def log_scores(self, targets: Tensor) -> Tensor:
        """Return the log score of each row for each point. Shapes: targets (batch, ...) -> (member, batch)."""

    def blend(self, targets: Tensor) -> tuple[Tensor, Loss]:
        """Return what is averaged over rows, (row, batch, ...), and what an average costs at each point: the ensemble's `score`.

        The mixture of log scores; tasks that average something else, or entry by entry, say so.
        """
        return mixture(self.log_scores(targets))

    def greedy(self, targets: Tensor, *, picks: int = 32, weights: Tensor | None = None) -> GreedySelection:
        """Return how often greedy selection takes each member, its draws as one, by the score of held-out targets.

        Args:
            targets: of these points, as `targets` gives them.
            picks: largest number of choices.
            weights: of the points (batch,), equal if None.
        """
        values, loss = self.blend(targets)
        members = torch.stack([values[rows].mean(0) for rows in self.rows_by_member()])
        return greedy_selection(members, loss, picks=picks, weights=weights)

    def weights_of(self, selection: GreedySelection) -> tuple[float, ...]:
        """Return the weight of each row: the members' shares, spread over their draws."""
        members = self.rows_by_member()
        if len(members) != len(selection.counts):
            raise InputError(f"there are {len(members)} members but {len(selection.counts)} counts; choose again.")
        found = {row: w / len(rows) for rows, w in zip(members, selection.weights) for row in rows}
        return tuple(found[i] for i in range(len(self)))

    @abstractmethod
    def scores(self, targets: Tensor) -> dict[str, float]:
        """Return every scalar measure, as the ensemble combines its members (see `choral.metrics`)."""

    @abstractmethod
    def row_scores(self, targets: Tensor) -> dict[str, Tensor]:
        """Return those measures that are means over points, for each point (batch,); 'mse' stands for rmse."""

    def row_weights(self, targets: Tensor, weights: Tensor) -> Tensor:
        """Return the weights of points (batch,) for the entries of `row_scores`."""
        return weights

    @abstractmethod
    def brief(self, targets: Tensor) -> dict[str, float]:
        """Return the few measures that are followed while members are added or inputs corrupted; `score` is among them."""

    @abstractmethod
    def details(self, targets: Tensor) -> dict[str, Any]:
        """Return what a report draws of the task: tensors or plain numbers under the names the report knows."""

    @abstractmethod
    def likeness(self, targets: Tensor) -> tuple[str, Tensor]:
        """Return the name of a measure between members and its matrix (member, member), draws averaged first."""

    @abstractmethod
    def sureness(self) -> tuple[str, Tensor, float | None]:
        """Return a name, a number for each point (batch,) that says how sure it is, and its largest value if there is one."""

    @abstractmethod
    def alarms(self) -> dict[str, Tensor]:
        """Return scores (batch,) that are larger for stranger inputs."""

    @abstractmethod
    def columns(self) -> dict[str, list[Any]]:
        """Return the prediction as columns of a table, one entry for each point."""

    def __post_init__(self) -> None:
        if self.weights is not None and len(self.weights) != len(self):
            raise InputError(f"there are {len(self.weights)} weights for {len(self)} members; give one for each.")


def scores_of(prediction: Predictive, targets: Tensor, weights: Tensor | None = None) -> dict[str, float]:
    """Return every measure; with weights of the points (batch,), those that are means over points, each point by its weight."""
    if weights is None:
        return prediction.scores(targets)
    return means_of(prediction.row_scores(targets), prediction.row_weights(targets, weights))


def brief_of(prediction: Predictive, targets: Tensor, weights: Tensor | None = None) -> dict[str, float]:
    """Return the few measures that are followed, by weights of the points (batch,) if there are any."""
    plain = prediction.brief(targets)
    if weights is None:
        return plain
    weighted = scores_of(prediction, targets, weights)
    return {name: weighted[name] for name in plain if name in weighted}


def means_of(rows: dict[str, Tensor], weights: Tensor | None = None) -> dict[str, float]:
    """Return measures from those of points: their means, by weight; the root of 'mse' as 'rmse'.

    >>> means_of({"mse": torch.tensor([1.0, 7.0])}, torch.tensor([1.0, 1.0]))
    {'rmse': 2.0}
    """
    found = {}
    for name, values in rows.items():
        mean = float(values.mean() if weights is None else (values * weights).sum() / weights.sum())
        found["rmse" if name == "mse" else name] = mean**0.5 if name == "mse" else mean
    return found
