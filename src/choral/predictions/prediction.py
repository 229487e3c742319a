"""Prediction: what `Ensemble.predict` returns, an array over rows."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import Tensor

from choral.base.errors import InputError, did_you_mean
from choral.base.text import html_table, number, text_table
from choral.predictions.base import Predictive

_ROWS, _COLUMNS = 3, 7  # of a table on the screen, at most


@final
class Prediction:
    """What an ensemble predicts for some rows.

    `len(p)` is the number of rows, and `p[3]`, `p[:5]`, `p[mask]` and `p[indices]` are predictions of those rows. All values are tensors whose
    first axis is the rows (the members' axis comes before it in `members`). Numbers have the units and the shape of `y` in `fit`: (n,) for
    targets (n,), (n, k) for (n, k). What a task does not have raises AttributeError, which names what it has.

    Args:
        found: the predictive distribution of all members.
        target: the shape of one target in `fit`; None leaves every shape as the networks give it.
    """

    __slots__ = ("_found", "_target")

    def __init__(self, found: Predictive, target: tuple[int, ...] | None = None):
        self._found = found
        self._target = target if found.like_targets else None

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(getattr(self._found, self._found.held[0]).shape[1])

    def __getitem__(self, rows: Any) -> "Prediction":
        """Return the prediction of some rows: an index, a slice, a boolean mask or an array of indices, as numpy takes them."""
        which = np.arange(len(self))[rows.cpu().numpy() if isinstance(rows, Tensor) else rows]
        if which.ndim > 1:
            raise IndexError(f"a prediction has one axis, its rows; the index makes {which.ndim}.")
        return Prediction(self._found.of_points(torch.from_numpy(np.atleast_1d(which))), self._target)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return the probabilities or the mean."""
        return np.asarray(self._of(self._found.offers[0]), dtype=dtype)

    def __dir__(self) -> list[str]:
        """Return what this task has."""
        return [*self._found.offers, "members", "scores", "task", "to_frame"]

    if not TYPE_CHECKING:  # a type checker reports names that are not here

        def __getattr__(self, name: str) -> Any:
            if not name.startswith("_"):
                self._task_has(name)
            raise AttributeError(name)

    @property
    def task(self) -> str:
        """What is predicted: 'classification', 'regression', 'counts', 'labels', 'quantiles' or 'outputs'."""
        return self._found.task

    @property
    def mean(self) -> Tensor:
        """Mean of the predictive distribution, in the shape of y."""
        return self._of("mean")

    @property
    def std(self) -> Tensor:
        """Standard deviation of the predictive distribution: std² = aleatoric_std² + epistemic_std²."""
        return self._of("std", "variance").sqrt()

    @property
    def aleatoric_std(self) -> Tensor:
        """Standard deviation of the noise in the data, which more data does not lower."""
        return self._of("aleatoric_std", "aleatoric").sqrt()

    @property
    def epistemic_std(self) -> Tensor:
        """Standard deviation of the members' means: their disagreement."""
        return self._of("epistemic_std", "epistemic").sqrt()

    def interval(self, level: float | None = None) -> tuple[Tensor, Tensor]:
        """Return the lower and upper ends of the central interval.

        Args:
            level: its probability; None is 0.95, or the outermost of the quantiles that were fitted.
        """
        low, high = self._task_has("interval").interval(*[] if level is None else [level])
        return self._like_y(low), self._like_y(high)

    def conformal_interval(self) -> tuple[Tensor, Tensor]:
        """Return the interval fitted by `ensemble.calibrated(x, y, level=0.9)`, or by folds: it covers the target with that probability."""
        low, high = self._task_has("conformal_interval").conformal_interval()
        return self._like_y(low), self._like_y(high)

    def quantiles(self, levels: Sequence[float] | None = None) -> Tensor:
        """Return quantiles of the predictive distribution, the levels in the last axis.

        Args:
            levels: probabilities; None is (0.05, 0.5, 0.95), or the quantiles that were fitted.
        """
        found = self._task_has("quantiles").quantiles_at(levels)
        return self._like_y(found.movedim(-1, 0), before=2).movedim(0, -1)

    def samples(self, count: int, *, seed: int = 0) -> Tensor:
        """Return draws of the predictive distribution (draw, row, ...); each draw takes all rows from one member."""
        return self._like_y(self._task_has("samples").samples(count, seed=seed), before=2)

    @property
    def probs(self) -> Tensor:
        """Probability of each class (row, class); of labels that do not exclude each other, in the shape of y."""
        return self._of("probs")

    @property
    def labels(self) -> Tensor:
        """The most probable class (row,), an integer; of labels that do not exclude each other, whether each is more probable than not."""
        return self._of("labels")

    @property
    def confidence(self) -> Tensor:
        """Probability of the predicted label."""
        return self._of("confidence")

    @property
    def entropy(self) -> Tensor:
        """Entropy of the probabilities, in nats: total uncertainty."""
        return self._of("entropy")

    @property
    def expected_entropy(self) -> Tensor:
        """Mean entropy of the members, in nats: aleatoric uncertainty, noise in the data."""
        return self._of("expected_entropy", "aleatoric")

    @property
    def mutual_information(self) -> Tensor:
        """Entropy of the mean minus mean entropy of the members, in nats: epistemic uncertainty, their disagreement."""
        return self._of("mutual_information", "epistemic")

    def sets(self, *, seed: int = 0) -> Tensor:
        """Return the conformal set of each row as booleans (row, class), or (..., 2) for no and yes of each label.

        Args:
            seed: of the randomized sets of classes, which draw one number for each row.
        """
        found = self._task_has("sets").sets(seed=seed)
        return self._like_y(found.movedim(-1, 0), before=2).movedim(0, -1) if self._target is not None else found

    @property
    def members(self) -> Tensor:
        """What each member predicts (member, row, ...): its mean, probabilities or outputs, averaged over its draws."""
        return self._like_y(self._found.by_member(self._found.member_values), before=2)

    def scores(self, y: Any) -> dict[str, float]:
        """Return every score against the targets of these rows, by name: NLL, accuracy or RMSE, calibration, diversity, ..."""
        return self._found.scores(self._found.targets(y))

    def to_frame(self) -> Any:
        """Return a pandas DataFrame with one line for each row: predictions, uncertainties and, for numbers, a 95 % interval."""
        try:
            import pandas
        except ImportError as error:
            raise InputError("to_frame needs pandas; pip install pandas.") from error
        return pandas.DataFrame(self._found.columns())

    def __repr__(self) -> str:
        return "\n".join([f"Prediction({self._summary()})", *text_table(self._head())])

    def _repr_html_(self) -> str:
        return html_table(self._head(), self._summary())

    def _summary(self) -> str:
        name = self._found.offers[0]
        members = len(self._found.rows_by_member())
        said = f"{self.task}, {len(self)} row{'s' * (len(self) != 1)}, {members} member{'s' * (members != 1)}"
        return f"{said}, {name} {tuple(self._of(name).shape)}"

    def _head(self) -> list[list[str]]:
        """Return the first rows of its table as text, under their names; nothing for predictions that make no table."""
        try:
            columns = self._found.of_points(slice(_ROWS)).columns()
        except InputError:
            return []
        shown = list(columns)[:_COLUMNS]
        rows = [[number(columns[name][i]) for name in shown] for i in range(min(len(self), _ROWS))]
        more = ["..."] * (len(columns) > len(shown))
        return [[*shown, *more], *([*row, *more] for row in rows)]

    def _task_has(self, name: str) -> Any:
        """Return the distribution if its task has something of this name."""
        if name not in self._found.offers:
            offers = ", ".join((*self._found.offers, "members"))
            raise AttributeError(
                f"a prediction of {self.task} has no {name!r}; it has {offers}.{did_you_mean(name, self._found.offers)}"
            )
        return self._found

    def _of(self, name: str, inner: str | None = None) -> Tensor:
        return self._like_y(getattr(self._task_has(name), inner or name))

    def _like_y(self, values: Tensor, before: int = 1) -> Tensor:
        """Return values whose axes after the first `before` have the shape of one target."""
        if self._target is None or math.prod(values.shape[before:]) != math.prod(self._target):
            return values
        return values.reshape(*values.shape[:before], *self._target)
