"""What candidates are judged by: rows that all of them hold out, or, of folds, every row by the members that did not see it."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from choral.data.sources import Source
from choral.ensemble.ensemble import Ensemble
from choral.ensemble.held_out import OutOfFold, complete
from choral.predictions import Predictive

_SEEN = 64  # rows on which members are compared with themselves among their siblings


class Judge(ABC):
    """Judges predictions of points that were not trained on.

    Attributes:
        y: the targets of the points, as they are in the data.
        weights: what each point counts, None if all count alike.
        apart: whether members are chosen one by one, or all of a candidate together.
        word: how the points are called where scores are told.
    """

    y: Tensor
    weights: Tensor | None
    apart: ClassVar[bool]
    word: ClassVar[str]

    @abstractmethod
    def prediction(self, ensemble: Ensemble) -> Predictive:
        """Return what a candidate says about the points."""

    @abstractmethod
    def outputs(self, ensemble: Ensemble) -> Tensor:
        """Return its raw outputs for the points (row, point, ...)."""

    @abstractmethod
    def looked_at(self, ensemble: Ensemble) -> Any:
        """Return some inputs, the same for all candidates, on which members can be compared with themselves."""

    @abstractmethod
    def lacks(self, ensemble: Ensemble) -> str:
        """Return why a candidate cannot be judged, in words; nothing if it can."""

    @abstractmethod
    def finish(self, made: Ensemble, outputs: Tensor, shares: Sequence[float]) -> None:
        """Give the chosen ensemble what its predictions of the points tell.

        Args:
            made: the ensemble.
            outputs: for the points, of the rows that were chosen.
            shares: what each row counts.
        """

    @abstractmethod
    def forget(self) -> None:
        """Forget the candidates judged so far: the first one is trained further."""

    def score(self, prediction: Predictive) -> float:
        """Return the score of the points, by weight; NaN counts as worst."""
        return self._mean(prediction, prediction.score)

    def point(self, prediction: Predictive) -> float:
        """Return how far off the prediction is, whatever it says about its own sureness: smaller is better."""
        known = prediction.row_scores(prediction.targets(self.y))
        if "mse" in known:
            return self._mean(prediction, "mse")
        return -self._mean(prediction, "accuracy") if "accuracy" in known else self.score(prediction)

    def said(self, prediction: Predictive) -> str:
        """Return the scores of the points, in words."""
        known, point = prediction.row_scores(prediction.targets(self.y)), self.point(prediction)
        more = (
            f", rmse {point**0.5:.4g}" if "mse" in known else f", accuracy {-point:.4f}" if "accuracy" in known else ""
        )
        return f"{self.word} {prediction.score} {self.score(prediction):.4f}{more}"

    def _mean(self, prediction: Predictive, name: str) -> float:
        targets = prediction.targets(self.y)
        rows = prediction.row_scores(targets)[name]
        shares = None if self.weights is None else prediction.row_weights(targets, self.weights)
        value = float(rows.mean() if shares is None else (rows * shares).sum() / shares.sum())
        return math.inf if math.isnan(value) else value


class ByValidation(Judge):
    """Judges by validation points, the same for all.

    Args:
        held: the points, with targets as they are in the data.
    """

    apart, word = True, "validation"

    def __init__(self, held: Source):
        self.x, self.y = next(iter(held.epoch(torch.arange(held.points), held.points)))
        self.weights = held.weights

    def prediction(self, ensemble: Ensemble) -> Predictive:
        """Return what it predicts."""
        return ensemble._predictive(self.x)

    def forget(self) -> None:
        """Keep the points: they are the same for all."""

    def outputs(self, ensemble: Ensemble) -> Tensor:
        """Return the outputs of every member."""
        return ensemble.outputs(self.x)

    def looked_at(self, ensemble: Ensemble) -> Any:
        """Return the points."""
        return self.x

    def lacks(self, ensemble: Ensemble) -> str:
        """Return nothing: every member knows all of the points."""
        return ""

    def finish(self, made: Ensemble, outputs: Tensor, shares: Sequence[float]) -> None:
        """Leave it as it is."""


class ByFolds(Judge):
    """Judges by all training points, each by the members that hold it out; a candidate's members count together.

    Args:
        source: the training points.
    """

    apart, word = False, "out-of-fold"

    def __init__(self, source: Source):
        self.source = source
        self.found: OutOfFold | None = None

    def prediction(self, ensemble: Ensemble) -> Predictive:
        """Return what members say about points held out of their training; the first one's targets are everybody's."""
        found: OutOfFold = ensemble._out_of_fold
        if self.found is None:
            self.found, self.y, self.weights = found, found.y, found.weights
        return found.prediction(ensemble)

    def forget(self) -> None:
        """Forget which points were held out."""
        self.found = None

    def outputs(self, ensemble: Ensemble) -> Tensor:
        """Return the outputs of as many members as hold each point out."""
        found: OutOfFold = ensemble._out_of_fold
        return found.outputs

    def looked_at(self, ensemble: Ensemble) -> Any:
        """Return a few training points."""
        some = torch.arange(min(_SEEN, self.source.points))
        return next(iter(self.source.epoch(some, len(some))))[0]

    def lacks(self, ensemble: Ensemble) -> str:
        """Return a sentence if the time was up before members of all folds were trained."""
        if self.found is None or torch.equal(self.found.points, ensemble._out_of_fold.points):
            return ""
        return "not all rows were held out of its members before the time was up"

    def finish(self, made: Ensemble, outputs: Tensor, shares: Sequence[float]) -> None:
        """Give it the scores, and the conformal rule, of the points."""
        assert self.found is not None
        complete(made, replace(self.found, outputs=outputs, networks=len(outputs), shares=tuple(shares)))
