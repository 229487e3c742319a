"""A short list of candidates, tried by successive halving within twice the cost of the first; the best members together.

The first candidate is trained whole: what is done where nobody searches. A few members of each of the others are trained for a fifth
of the epochs that it took; the better half of them is trained whole, with as many members as the first one's operations pay for.
Every member trained goes into a pool, from which bagged greedy selection on the validation points chooses. What is returned is never
worse on these than the first candidate. All of it is decided by the seed, unless there is a time limit.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from choral.automatic.joining import joined
from choral.base.errors import DivergedError, InputError, RunError
from choral.data.sources import Source
from choral.engine.folder import claimed, folder_name
from choral.ensemble.ensemble import Ensemble
from choral.ensemble.noise import settle_noise
from choral.posthoc import bagged_selection
from choral.predictions import Prediction
from choral.recipes.recipe import Recipe

PICKS = 32
_SHORT = 0.2  # of the first candidate's epochs, to see which others are worth more
_LEAST = 4  # epochs
_MORE = 1.25  # of the first candidate's operations, for all the others; they are stacked better
_GAIN = 1e-9
_SHARES = (1.0, 0.75, 0.5, 0.25)  # of the selection; the rest is the first candidate


@dataclass(frozen=True)
class Candidate:
    """One entry of the list.

    Attributes:
        name: what it is called; also names its run folder.
        recipe: gives the recipe for a number of epochs of each network, and a number of members.
        epochs: the most that each network may have.
        members: the most that it may have.
        few: the least that say what it is worth: of members that share weights, all.
        why: why it is on the list, in words.
    """

    name: str
    recipe: Callable[[int, int], Recipe]
    epochs: int
    members: int
    few: int
    why: str


Train = Callable[[Candidate, Recipe, dict[str, Any]], Ensemble]
"""Trains a candidate's recipe with some arguments of `fit`: run_dir and time_limit."""


@dataclass(frozen=True)
class Tried:
    """A candidate that was trained.

    Attributes:
        label: its name, and how far it was trained.
        ensemble: what came of it; None if nothing did.
        score: of the validation points, smaller is better; infinite if there is none.
        said: what happened, in words.
    """

    label: str
    candidate: Candidate
    ensemble: Ensemble | None
    score: float
    said: str

    @property
    def flops(self) -> float:
        """Operations that its training took."""
        return 0.0 if self.ensemble is None else float(self.ensemble.info["counted"]["train_flops"])

    @property
    def epochs(self) -> float:
        """Epochs that all its networks took."""
        return 0.0 if self.ensemble is None else float(self.ensemble.info["counted"]["epochs"])


class Search:
    """The state of a search.

    Args:
        train: trains a candidate.
        held: the validation points, with targets as they are in the data.
        folder: where each candidate gets a run folder, or None.
        time_limit: seconds for all of it, or None.
    """

    def __init__(self, train: Train, held: Source, folder: Path | None, time_limit: float | None):
        self.train, self.folder, self.time_limit = train, folder, time_limit
        self.x, self.y = next(iter(held.epoch(torch.arange(held.points), held.points)))
        self.held = held
        self.tried: list[Tried] = []

    def attempt(self, candidate: Candidate, epochs: int, members: int, share: float, *, short: bool = False) -> Tried:
        """Train a candidate and note what came of it.

        Args:
            candidate: which.
            epochs: of each network, at most.
            members: how many.
            share: of the time limit, if there is one.
            short: whether it is only to see whether it is worth more.
        """
        label = (
            f"{candidate.name}, {epochs} epochs at most" if not short else f"{candidate.name}, {epochs} epochs to see"
        )
        limits: dict[str, Any] = {"time_limit": None if self.time_limit is None else share * self.time_limit}
        if self.folder is not None:
            limits["run_dir"] = self.folder / folder_name(candidate.name + ("-short" if short else ""))
        try:
            ensemble = self.train(candidate, candidate.recipe(epochs, members), limits)
        except (DivergedError, RunError) as error:
            if isinstance(error, RunError) and self.time_limit is None:
                raise  # a folder of another run, say
            found = Tried(label, candidate, None, math.inf, f"{label}: {error}")
        else:
            score, measure = self.score(ensemble.predict(self.x)), ensemble.likelihood.prediction.score
            said = f"{label}: {ensemble.members} members, validation {measure} {score:.4f}"
            found = Tried(label, candidate, ensemble, score, said)
        self.tried.append(found)
        return found

    @property
    def measure(self) -> str:
        """The score that decides."""
        return next((t.ensemble.likelihood.prediction.score for t in self.tried if t.ensemble is not None), "score")

    @property
    def tried_well(self) -> list[Tried]:
        """Those of which something came."""
        return [t for t in self.tried if t.ensemble is not None]

    def score(self, prediction: Prediction) -> float:
        """Return the score of the validation points, by weight; NaN counts as worst."""
        return self._mean(prediction, prediction.score)

    def point(self, prediction: Prediction) -> float:
        """Return how far off the prediction is, whatever it says about its own sureness: smaller is better."""
        known = prediction.row_scores(prediction.targets(self.y))
        if "mse" in known:
            return self._mean(prediction, "mse")
        return -self._mean(prediction, "accuracy") if "accuracy" in known else self.score(prediction)

    def _mean(self, prediction: Prediction, name: str) -> float:
        targets = prediction.targets(self.y)
        rows, weights = prediction.row_scores(targets)[name], self.held.weights
        shares = None if weights is None else prediction.row_weights(targets, weights)
        value = float(rows.mean() if shares is None else (rows * shares).sum() / shares.sum())
        return math.inf if math.isnan(value) else value


def search(
    candidates: Sequence[Candidate],
    train: Train,
    held: Source,
    *,
    run_dir: str | Path | None = None,
    time_limit: float | None = None,
    name: str = "auto",
    seed: int = 0,
) -> Ensemble:
    """Return the best ensemble of what the candidates give.

    Args:
        candidates: the first is what is done without a search.
        train: trains a candidate.
        held: validation points, the same for all, with targets as they are in the data.
        run_dir: folder of the search; each candidate has a run folder in it, and the same call resumes.
        time_limit: seconds of training for all of it.
        name: what the ensemble is called.
        seed: root of the draws of the selection.
    """
    if not candidates:
        raise InputError("there are no candidates to choose from; name at least one method.")
    folder = None if run_dir is None else Path(run_dir)
    with claimed(folder):
        found = Search(train, held, folder, time_limit)
        alone = len(candidates) == 1
        first = found.attempt(candidates[0], candidates[0].epochs, candidates[0].members, 1.0 if alone else 0.5)
        rivals = _halved(found, first, candidates[1:])
        for tried, epochs, members in rivals:
            found.attempt(tried.candidate, epochs, members, 0.3 / len(rivals))
        ensemble = _best(found, name, seed)
        if folder is not None:
            ensemble.save(folder / "ensemble.choral")
    return ensemble


def _halved(found: Search, first: Tried, others: Sequence[Candidate]) -> list[tuple[Tried, int, int]]:
    """Return the better half of the other candidates after a short training, each with the epochs and members it may have."""
    whole = first.ensemble
    seen = 5.0 * _LEAST if whole is None else first.epochs / whole.networks
    epochs = max(_LEAST, math.ceil(_SHORT * seen))
    tried = [found.attempt(c, min(epochs, c.epochs), c.few, 0.2 / len(others), short=True) for c in others]
    kept = sorted((t for t in tried if t.ensemble is not None), key=lambda t: t.score)[: -(-len(others) // 2)]
    if whole is None:  # the first one failed, so that nothing says what may be spent
        return [(one, one.candidate.epochs, one.candidate.members) for one in kept]
    left = max(_MORE * first.flops - sum(t.flops for t in tried), 0.0) / max(len(kept), 1)
    chosen = []
    for one in kept:
        few = one.candidate.few
        each = max(one.flops / epochs / few, 1.0)  # of one epoch of one member
        members = max(few, min(one.candidate.members, int(left / each / seen)))
        affordable = max(int(left / each / members), math.ceil(seen))
        chosen.append((one, min(one.candidate.epochs, affordable), members))
    return chosen


def _best(found: Search, name: str, seed: int) -> Ensemble:
    """Return the ensemble of the pool's best members, or one candidate's, whichever the validation points prefer."""
    pool = found.tried_well
    if not pool:
        raise DivergedError("; ".join(t.said for t in found.tried))
    ensembles = [t.ensemble for t in pool if t.ensemble is not None]
    outputs = torch.cat([e.outputs(found.x) for e in ensembles])
    prediction = ensembles[0].uncorrected(outputs, networks=len(outputs))
    best = min(pool, key=lambda t: t.score)
    plain = [_alone(pool, one) for one in (pool[0], best)]
    weights, score = _mixed(found, prediction, plain, seed)
    reasons = [t.said for t in found.tried]
    if weights == plain[1]:
        reasons.append(f"{best.label} alone is best; no selection of members is better")
    else:
        shares = _shares(pool, weights)
        reasons.append(f"selection from all {len(outputs)} members: {shares}; validation {found.measure} {score:.4f}")
    about = {"tried": [t.label for t in found.tried], "validation": score, "reasons": reasons}
    info = _costs(pool, outputs, weights) | {"auto": about}
    made = joined(ensembles, weights, name=name, x=found.x, outputs=outputs, info=info)
    rows = [number for number, weight in enumerate(weights) if weight]
    settle_noise(made, (outputs[rows], made.likelihood.read(found.y), found.held.weights))
    return made


def _mixed(
    found: Search, prediction: Prediction, plain: Sequence[tuple[float, ...]], seed: int
) -> tuple[tuple[float, ...], float]:
    """Return the weights of the pool's members that the validation points prefer, and their score.

    The selection is mixed with the first candidate's members, as little as is needed not to be worse than these in the point
    score too: a log score by few points can prefer members that are sure of themselves.

    Args:
        found: the search.
        prediction: of all members for the validation points.
        plain: weights of the first candidate's members alone, and of the best one's.
        seed: root of every draw.
    """
    values, loss = prediction.blend(prediction.targets(found.y))
    chosen = bagged_selection(values, loss, picks=PICKS, weights=found.held.weights, seed=seed).weights
    first, best = (prediction.weighed(weights) for weights in plain)
    limit, least = found.point(first), found.score(best)
    for share in _SHARES:
        mixed = tuple(share * a + (1 - share) * b for a, b in zip(chosen, plain[0]))
        tried = prediction.weighed(mixed)
        score = found.score(tried)
        if score < least - _GAIN * (1 + abs(least)) and found.point(tried) <= limit:
            return mixed, score
    return plain[1], least


def _alone(pool: Sequence[Tried], one: Tried) -> tuple[float, ...]:
    """Return the weights of the pool's members by which those of one candidate count alike and others nothing."""
    sizes = [0 if t.ensemble is None else t.ensemble.members for t in pool]
    return tuple((t is one) / size for t, size in zip(pool, sizes) for _ in range(size))


def _shares(pool: Sequence[Tried], weights: Sequence[float]) -> str:
    """Return how many members were taken of each candidate, and with what weight, in words."""
    parts, begin = [], 0
    for tried in pool:
        size = 0 if tried.ensemble is None else tried.ensemble.members
        own = weights[begin : begin + size]
        begin += size
        if sum(own):
            parts.append(f"{sum(w > 0 for w in own)} of {tried.label} ({sum(own):.0%})")
    return ", ".join(parts)


def _costs(pool: Sequence[Tried], outputs: Tensor, weights: Sequence[float]) -> dict[str, Any]:
    """Return what all candidates cost together, as a run says it of itself."""
    infos = [t.ensemble.info for t in pool if t.ensemble is not None]
    names = {name for info in infos for name in info["counted"]}
    counted = {name: sum(info["counted"].get(name, 0) for info in infos) for name in sorted(names)}
    each = [
        (info["parameters"] / t.ensemble.members, info["predict_flops"] / t.ensemble.members)
        for t, info in zip(pool, infos)
        if t.ensemble is not None
        for _ in range(t.ensemble.members)
    ]
    taken = [one for one, weight in zip(each, weights) if weight]
    return {
        "counted": counted,
        "parameters": round(sum(p for p, _ in taken)),
        "predict_flops": sum(f for _, f in taken),
        "networks": len(taken),
        "outputs": list(outputs.shape[2:]),
        "seconds": sum(info["seconds"] for info in infos),
    }
