"""Prediction, the result of `Ensemble.predict`, and Predictive, the predictive distribution of each task behind it.

All tensors of a prediction are (member, batch, ...). A stochastic member has one row for each draw; `learners` gives the member of each
row. Code that scores, corrects, prints or draws predictions uses this interface and knows no task.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self, final

import numpy as np
import torch
from torch import Tensor

from choral import metrics
from choral.base.batches import tensor_of
from choral.base.errors import InputError, no_attribute
from choral.base.text import html_table, number, short, text_table
from choral.calibration import StackingWeights
from choral.calibration.members import Correction, Loss


@dataclass(frozen=True, kw_only=True)
class Predictive(ABC):
    """The predictive distribution of an ensemble for some rows; `choral.Prediction` is its public view.

    Class attributes: `task`, its name; `held`, the names of its tensors (member, batch, ...); `offers`, the attributes of
    `choral.Prediction`, the main array first; `like_targets`, whether that has the shape of targets; `score`, the score by which ensembles
    are compared, smaller is better; `shown`, the scores of a small table; `alone`, the scores that `scores` also gives for members;
    `followed`, those of `brief`; `unsure`, its measure of uncertainty; `alarming`, what `alarms` returns, the best out-of-distribution score
    first; `rules`, the names of its conformal rules, the default first; `accepts`, the corrections it accepts.

    Args:
        weights: weight of each member, uniform if None.
        conformal: the conformal rule, if one was fitted.
        learners: the member of each row; None if every row is a member.
    """

    task: ClassVar[str]
    held: ClassVar[tuple[str, ...]]
    offers: ClassVar[tuple[str, ...]]
    like_targets: ClassVar[bool] = True
    score: ClassVar[str] = "nll"
    shown: ClassVar[tuple[str, ...]]
    unsure: ClassVar[str] = "std"
    alone: ClassVar[tuple[str, ...]] = ()
    followed: ClassVar[tuple[str, ...]]
    alarming: ClassVar[tuple[str, ...]]
    rules: ClassVar[tuple[str, ...]] = ()
    accepts: ClassVar[tuple[type[Correction], ...]] = ()

    weights: tuple[float, ...] | None = None
    conformal: Any = None
    learners: tuple[int, ...] | None = None

    def __len__(self) -> int:
        """Return the number of member rows."""
        return len(getattr(self, self.held[0]))

    @property
    def shares(self) -> Tensor | None:
        """The weights (member,) in float64; None if uniform."""
        return None if self.weights is None else torch.tensor(self.weights, dtype=torch.float64)

    def average(self, values: Tensor) -> Tensor:
        """Return the weighted average over members. Shapes: (member, ...) -> (...)."""
        if self.weights is None:
            return values.mean(0)
        return torch.tensordot(torch.tensor(self.weights, dtype=values.dtype), values, dims=1)

    def member_variance(self, values: Tensor) -> Tensor:
        """Return the weighted (population) variance over members. Shapes: (member, ...) -> (...)."""
        return self.average((values - self.average(values)).square())

    def rows_by_member(self) -> list[list[int]]:
        """Return the rows of each member: one, or all its draws."""
        if self.learners is None:
            return [[i] for i in range(len(self))]
        rows: dict[int, list[int]] = {}
        for i, learner in enumerate(self.learners):
            rows.setdefault(learner, []).append(i)
        return list(rows.values())

    def by_member(self, values: Tensor) -> Tensor:
        """Return values averaged over the draws of each member. Shapes: (row, ...) -> (member, ...)."""
        if self.learners is None:
            return values
        return metrics.average_draws(values, self.learners, weights=self.shares)

    def of_rows(self, rows: Sequence[int]) -> Self:
        """Return the prediction of some member rows alone, with normalized weights."""
        kept = self.weights
        if kept is not None:
            total = sum(kept[i] for i in rows)
            kept = tuple(kept[i] / total for i in rows) if total else None
        learners = None if self.learners is None else tuple(self.learners[i] for i in rows)
        held = {name: getattr(self, name)[list(rows)] for name in self.held}
        return replace(self, **held, weights=kept, learners=learners)

    @property
    def rule(self) -> Any:
        """The conformal rule that was fitted."""
        if self.conformal is None:
            raise InputError(
                "this ensemble has no conformal rule; fit one on held-out data: ensemble.calibrated(x, y, level=0.9)."
            )
        return self.conformal

    def covered(self, targets: Tensor) -> Tensor:
        """Return whether the conformal interval or set of each row contains its target (batch, ...); for tasks with `rules`."""
        raise NotImplementedError

    def counts(self, targets: Tensor) -> Tensor:
        """Return which rows are scored (batch,): all, unless labels are ignored."""
        return torch.ones(len(targets), dtype=torch.bool)

    def of_points(self, points: slice | Tensor) -> Self:
        """Return the prediction for some of the rows."""
        return replace(self, **{name: getattr(self, name)[:, points] for name in self.held})

    def weighed(self, weights: Sequence[float]) -> Self:
        """Return the prediction with other weights of members."""
        return replace(self, weights=tuple(weights))

    def fit_temperature(self, targets: Tensor, *, per: Any) -> Correction:
        """Return the temperature fitted on held-out targets; InputError for tasks without logits."""
        raise InputError(f"temperature divides logits, so it does not apply to {self.task}; leave it out.")

    def fit_conformal(self, targets: Tensor, *, level: float, rule: str | None = None, seed: int = 0) -> Correction:
        """Return the conformal rule of a level fitted on held-out targets; `rule` is one of `rules`."""
        if not self.rules:
            raise InputError(f"there are no conformal rules for {self.task}; leave level out.")
        if rule is not None and rule not in self.rules:
            raise InputError(f"conformal is {rule!r}; for {self.task} give one of {', '.join(self.rules)}.")
        return self._conformal(targets, level, rule or self.rules[0], seed)

    def _conformal(self, targets: Tensor, level: float, rule: str, seed: int) -> Correction:
        raise NotImplementedError

    @property
    def mixes(self) -> bool:
        """Whether the prediction is the mixture of its members' predictions."""
        return True

    def check_mixture(self) -> None:
        """Raise InputError unless it is a mixture."""
        if not self.mixes:
            raise InputError(
                f"this ensemble predicts {self.task} by an average that is no mixture of probabilities: there is no log score by which members "
                "could be weighed or cooled one by one; leave stacking and temperature (of a vote; temperature='member' of mean logits) out."
            )

    @property
    @abstractmethod
    def mean(self) -> Tensor:
        """The mean prediction (batch, ...)."""

    @property
    @abstractmethod
    def variance(self) -> Tensor:
        """Predictive variance (batch, ...)."""

    @property
    def std(self) -> Tensor:
        """Predictive standard deviation (batch, ...)."""
        return self.variance.sqrt()

    @property
    @abstractmethod
    def aleatoric(self) -> Tensor:
        """The aleatoric part of the uncertainty: noise in the data."""

    @property
    @abstractmethod
    def epistemic(self) -> Tensor:
        """The epistemic part of the uncertainty: disagreement of the members."""

    @property
    @abstractmethod
    def member_values(self) -> Tensor:
        """The prediction of each row of members (member, batch, ...)."""

    @abstractmethod
    def targets(self, y: Any) -> Tensor:
        """Return targets in the form that scores take; InputError for targets that do not fit."""

    def log_scores(self, targets: Tensor) -> Tensor:
        """Return the log score of each member row for each target, if it `mixes`. Shapes: targets (batch, ...) -> (member, batch)."""
        raise NotImplementedError

    @abstractmethod
    def blend(self, targets: Tensor) -> tuple[Tensor, Loss]:
        """Return what is averaged over rows, (row, batch, ...), and the cost of an average at each row: the ensemble's `score`."""

    def scores(self, targets: Tensor) -> dict[str, float]:
        """Return all scalar scores (see `choral.metrics`) of the ensemble, and as `member_...` the means of members' own scores."""
        found = means_of(self.row_scores(targets)) | self.joint_scores(targets)
        each = [means_of(self.of_rows(rows).row_scores(targets)) for rows in self.rows_by_member() if self.alone]
        return found | {f"member_{n}": sum(one[n] for one in each) / len(each) for n in self.alone if n in found}

    def joint_scores(self, targets: Tensor) -> dict[str, float]:
        """Return the scores that are not means over rows."""
        return {}

    @abstractmethod
    def row_scores(self, targets: Tensor) -> dict[str, Tensor]:
        """Return the scores that are means over rows, for each row (batch,); 'mse' stands for rmse."""

    def row_weights(self, targets: Tensor, weights: Tensor) -> Tensor:
        """Return weights of rows (batch,) for the entries of `row_scores`."""
        return weights

    def brief(self, targets: Tensor) -> dict[str, float]:
        """Return a few scores, for curves over ensemble size or corruptions; `score` is among them."""
        found = means_of(self.row_scores(targets)) | self.joint_scores(targets)
        return {name: found[name] for name in self.followed}

    @abstractmethod
    def details(self, targets: Tensor) -> dict[str, Any]:
        """Return the data for the figures of a report, by name."""

    @abstractmethod
    def likeness(self, targets: Tensor) -> tuple[str, Tensor]:
        """Return the name and the matrix (member, member) of a measure between members, after averaging their draws."""

    def sureness(self) -> tuple[str, Tensor]:
        """Return a name and values (batch,) that are larger where the prediction is less certain."""
        return self.unsure, self._by_point(self.unsure)

    def alarms(self) -> dict[str, Tensor]:
        """Return scores (batch,) that are larger for out-of-distribution inputs."""
        return {name: self._by_point(name).double() for name in self.alarming}

    def _by_point(self, name: str) -> Tensor:
        """Return the mean of values (batch, ...) over all axes but the batch."""
        found: Tensor = getattr(self, name)
        return found.reshape(len(found), -1).mean(1)

    @abstractmethod
    def columns(self, level: float = 0.95) -> dict[str, list[Any]]:
        """Return the prediction as columns of a table, one entry for each row; intervals of numbers cover `level`."""


def scores_of(prediction: Predictive, targets: Tensor, weights: Tensor | None = None) -> dict[str, float]:
    """Return all scores; with weights of rows (batch,), the weighted means of those that are means over rows."""
    if weights is None:
        return prediction.scores(targets)
    return means_of(prediction.row_scores(targets), prediction.row_weights(targets, weights))


def means_of(rows: dict[str, Tensor], weights: Tensor | None = None) -> dict[str, float]:
    """Return scores from those of rows: weighted means, and the root of 'mse' as 'rmse'.

    >>> means_of({"mse": torch.tensor([1.0, 7.0])}, torch.tensor([1.0, 1.0]))
    {'rmse': 2.0}
    """
    found = {}
    for name, values in rows.items():
        mean = float(values.mean() if weights is None else (values * weights).sum() / weights.sum())
        found["rmse" if name == "mse" else name] = mean**0.5 if name == "mse" else mean
    return found


_ROWS, _COLUMNS = 3, 7  # of a table on the screen, at most


def _shown(name: str, doc: str, of: str = "", *, root: bool = False) -> Any:
    """Return a property: a tensor of the distribution in the shape of y, under its own name there, or the root of a variance."""

    def get(prediction: "Prediction") -> Tensor:
        found = prediction._like_y(getattr(prediction._task_has(name), of or name))
        return found.sqrt() if root else found

    return property(get, doc=doc)


@final
class Prediction:
    """The prediction of an ensemble for some rows.

    `len(p)` is the number of rows; `p[3]`, `p[:5]`, `p[mask]` and `p[indices]` are predictions of those rows. All values are tensors with the
    rows on the first axis (second in `members`). Numbers have the units and the shape of `y` in `fit`: (n,) for targets (n,), (n, k) for
    (n, k). An attribute that the task does not have raises an AttributeError that lists those it has.

    Args:
        found: the predictive distribution.
        target: the shape of one target in `fit`; None keeps the shapes of the networks' outputs.
    """

    __slots__ = ("_found", "_target")

    def __init__(self, found: Predictive, target: tuple[int, ...] | None = None):
        self._found = found
        self._target = target if found.like_targets else None

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(getattr(self._found, self._found.held[0]).shape[1])

    def __getitem__(self, rows: Any) -> "Prediction":
        """Return the prediction of some rows: an index, a slice, a boolean mask or an array of indices, as in numpy."""
        which = np.arange(len(self))[rows.cpu().numpy() if isinstance(rows, Tensor) else rows]
        if which.ndim > 1:
            raise IndexError(f"a prediction has one axis, its rows; the index makes {which.ndim}.")
        return Prediction(self._found.of_points(torch.from_numpy(np.atleast_1d(which))), self._target)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return the probabilities or the mean."""
        return np.asarray(getattr(self, self._found.offers[0]), dtype=dtype)

    def __dir__(self) -> list[str]:
        """Return the attributes of this task."""
        return [*self._found.offers, "members", "scores", "task", "to_frame"]

    if not TYPE_CHECKING:  # a type checker reports names that are not here

        def __getattr__(self, name: str) -> Any:
            if not name.startswith("_"):
                self._task_has(name)
            raise AttributeError(name)

    @property
    def task(self) -> str:
        """The task: 'classification', 'regression', 'counts', 'labels', 'quantiles' or 'outputs'."""
        return self._found.task

    mean: Tensor = _shown("mean", "Mean of the predictive distribution, in the shape of y.")
    std: Tensor = _shown("std", "Standard deviation: std² = aleatoric_std² + epistemic_std².", "variance", root=True)
    aleatoric_std: Tensor = _shown(
        "aleatoric_std", "Standard deviation of the noise in the data.", "aleatoric", root=True
    )
    epistemic_std: Tensor = _shown("epistemic_std", "Standard deviation of the members' means.", "epistemic", root=True)
    probs: Tensor = _shown("probs", "Probability of each class (row, class); of independent labels, in the shape of y.")
    labels: Tensor = _shown(
        "labels", "The most probable class (row,); of independent labels, whether each is likelier than not."
    )
    confidence: Tensor = _shown("confidence", "Probability of the predicted label.")
    entropy: Tensor = _shown("entropy", "Entropy of the probabilities, in nats: total uncertainty.")
    expected_entropy: Tensor = _shown(
        "expected_entropy", "Mean entropy of the members: aleatoric uncertainty, noise.", "aleatoric"
    )
    mutual_information: Tensor = _shown(
        "mutual_information", "Entropy minus expected entropy: epistemic, disagreement.", "epistemic"
    )

    def interval(self, level: float | None = None) -> tuple[Tensor, Tensor]:
        """Return the lower and upper ends of the central interval.

        Args:
            level: its probability; by default 0.95, or that between the outermost fitted quantiles.
        """
        low, high = self._task_has("interval").interval(*[] if level is None else [level])
        return self._like_y(low), self._like_y(high)

    def conformal_interval(self) -> tuple[Tensor, Tensor]:
        """Return the conformal interval fitted by `ensemble.calibrated(x, y, level=0.9)` or by cross-validation."""
        low, high = self._task_has("conformal_interval").conformal_interval()
        return self._like_y(low), self._like_y(high)

    def quantiles(self, levels: Sequence[float] | None = None) -> Tensor:
        """Return quantiles of the predictive distribution, with the levels on the last axis.

        Args:
            levels: probabilities; by default (0.05, 0.5, 0.95), or the fitted quantiles.
        """
        found = self._task_has("quantiles").quantiles_at(levels)
        return self._like_y(found.movedim(-1, 0), before=2).movedim(0, -1)

    def samples(self, count: int, *, seed: int = 0) -> Tensor:
        """Return draws of the predictive distribution (draw, row, ...); each draw takes all rows from one member."""
        return self._like_y(self._task_has("samples").samples(count, seed=seed), before=2)

    def sets(self, *, seed: int = 0) -> Tensor:
        """Return the conformal set of each row as booleans (row, class), or (..., 2) for no and yes of each label.

        Args:
            seed: seed of randomized sets of classes.
        """
        found = self._task_has("sets").sets(seed=seed)
        return self._like_y(found.movedim(-1, 0), before=2).movedim(0, -1) if self._target is not None else found

    @property
    def members(self) -> Tensor:
        """Predictions of each member (member, row, ...): means, probabilities or outputs, averaged over its draws."""
        return self._like_y(self._found.by_member(self._found.member_values), before=2)

    def scores(self, y: Any) -> dict[str, float]:
        """Return all scores against the targets of these rows, by name: NLL, accuracy or RMSE, calibration, diversity, ..."""
        return self._found.scores(self._found.targets(y))

    def to_frame(self, level: float = 0.95, index: Any = None) -> Any:
        """Return a pandas DataFrame with one line for each row: predictions, uncertainties and, for numbers, an interval.

        Args:
            level: coverage of the interval, which is that of the mixture; `conformal_interval()` is the fitted one.
            index: the index of the frame, such as that of the frame passed to predict.
        """
        import pandas

        return pandas.DataFrame(self._found.columns(level), index=index)

    def __repr__(self) -> str:
        return "\n".join([f"Prediction({self._summary()})", *text_table(self._head())])

    def _repr_html_(self) -> str:
        return html_table(self._head(), self._summary())

    def _summary(self) -> str:
        name = self._found.offers[0]
        members = len(self._found.rows_by_member())
        said = f"{self.task}, {len(self)} row{'s' * (len(self) != 1)}, {members} member{'s' * (members != 1)}"
        return f"{said}, {name} {tuple(getattr(self, name).shape)}"

    def _head(self) -> list[list[str]]:
        try:
            columns = self._found.of_points(slice(_ROWS)).columns()
        except InputError:
            return []
        shown = list(columns)[:_COLUMNS]
        rows = [[short(number(columns[name][i]), 20) for name in shown] for i in range(min(len(self), _ROWS))]
        more = ["..."] * (len(columns) > len(shown))
        return [[*shown, *more], *([*row, *more] for row in rows)]

    def _task_has(self, name: str) -> Any:
        if name not in self._found.offers:
            raise AttributeError(no_attribute(f"a prediction of {self.task}", name, self.__dir__()))
        return self._found

    def _like_y(self, values: Tensor, before: int = 1) -> Tensor:
        """Return values with the axes after the first `before` in the shape of one target."""
        if self._target is None or math.prod(values.shape[before:]) != math.prod(self._target):
            return values
        return values.reshape(*values.shape[:before], *self._target)


@dataclass(frozen=True)
class Outputs(Predictive):
    """Outputs of the members, their mean and their spread; no probabilities.

    Args:
        member_outputs: (member, batch, ...).
        function: the loss, a function of outputs and targets (batch, ...).
        shape: a function applied to the outputs; None shows the outputs themselves.
    """

    task = "outputs"
    held = ("member_outputs",)
    score = "loss"
    shown = ("loss", "member_loss", "spread")
    followed = ("loss",)
    alarming = ("spread",)
    mixes = False
    offers = ("mean", "std")
    accepts = (StackingWeights,)

    member_outputs: Tensor
    function: Callable[[Tensor, Tensor], Tensor]
    shape: Callable[[Tensor], Tensor] | None = None

    @cached_property
    def member_values(self) -> Tensor:
        return self.member_outputs if self.shape is None else self.shape(self.member_outputs)

    @cached_property
    def mean(self) -> Tensor:
        return self.average(self.member_values)

    @cached_property
    def variance(self) -> Tensor:
        return self.member_variance(self.member_values)

    @property
    def epistemic(self) -> Tensor:
        """The variance of outputs over members."""
        return self.variance

    @property
    def aleatoric(self) -> Tensor:
        """Zero: a loss contains no model of the noise."""
        return torch.zeros_like(self.mean)

    def targets(self, y: Any) -> Tensor:
        found = tensor_of(y)
        if len(found) != self.member_outputs.shape[1]:
            raise InputError(f"y has {len(found)} rows and the prediction {self.member_outputs.shape[1]}.")
        return found.float() if found.is_floating_point() else found.long()

    def blend(self, targets: Tensor) -> tuple[Tensor, Loss]:
        def loss(average: Tensor) -> Tensor:
            return torch.stack([self._rows(one.to(self.member_outputs.dtype), targets) for one in average])

        return self.member_outputs.double(), loss

    def _rows(self, outputs: Tensor, targets: Tensor) -> Tensor:
        each = self.function(outputs, targets.clone())
        if not each.dim():
            return each.double().expand(len(targets))
        return each.double().flatten(1).mean(1) if each.dim() > 1 else each.double()

    def row_weights(self, targets: Tensor, weights: Tensor) -> Tensor:
        """Return the weights; InputError for a loss that gives one number for all rows."""
        if not self.function(self.member_outputs[0], targets.clone()).dim():
            raise InputError(
                f"the loss {getattr(self.function, 'name', 'given')} returns one number for a batch, so weights of points cannot be honored; return "
                "the loss of each point, for example with reduction='none'."
            )
        return weights

    def row_scores(self, targets: Tensor) -> dict[str, Tensor]:
        alone = torch.stack([self._rows(o, targets) for o in self.member_outputs])
        return {
            "loss": self._rows(self.average(self.member_outputs), targets),
            "member_loss": self.average(alone),
            "spread": self.spread,
        }

    @property
    def spread(self) -> Tensor:
        """Mean deviation over members of each point (batch,)."""
        return self._by_point("std").double()

    def details(self, targets: Tensor) -> dict[str, Any]:
        return {}

    def likeness(self, targets: Tensor) -> tuple[str, Tensor]:
        return "correlation of outputs", metrics.correlation_matrix(self.by_member(self.member_values).flatten(1))

    def columns(self, level: float = 0.95) -> dict[str, list[Any]]:
        mean, std = (v.reshape(len(v), -1) for v in (self.mean, self.std))
        return {f"{n}_{i}": v[:, i].tolist() for i in range(mean.shape[1]) for n, v in (("mean", mean), ("std", std))}
