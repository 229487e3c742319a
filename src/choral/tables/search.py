"""The search of `method="auto"`: a short list of candidates, and the best mixture of their members.

The first candidate is the default without a search. If it was fast, the others are trained for at most 1.5 times its epochs, and all of them
again with other seeds if there is a time limit and time is left. Bagged greedy selection chooses among all members by held-out rows. A log
score on few rows can prefer overconfident members, so on these rows the result is never worse than the first candidate, in log score or in
point score (squared error, accuracy). Without a time limit, the seed determines the result. Constants: `choral.tables.defaults`.
"""

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from choral import models
from choral.base import rng
from choral.base.errors import DivergedError, RunError
from choral.base.types import Build
from choral.calibration import StackingWeights, bagged_selection
from choral.data.sources import Source
from choral.engine.blueprint import state_of
from choral.engine.checkpoint import MemberStore
from choral.engine.files import read_json, sha256, write_json
from choral.engine.folder import claimed, clear, folder_name
from choral.engine.identity import fingerprint
from choral.engine.validation import Limit
from choral.ensemble.ensemble import Ensemble
from choral.ensemble.held_out import FOLDS, OutOfFold, complete, keep_folds, settle_noise
from choral.plan import Collect, EarlyStopping, Start, fork, seq
from choral.predictions import Predictive
from choral.recipes.recipe import Recipe
from choral.tables import defaults

SAVED, CHOICE = "ensemble.choral", "choice.json"
_SCORES = ("evaluation.json", "report.json", "report.html")
_GAIN = 1e-9


@dataclass(frozen=True)
class Candidate:
    """A candidate: its name, also of its run folder, and why it is on the list.

    `recipe` takes epochs of each network and members, up to a maximum; `light` ones are so cheap that they are always tried, and those for
    `clean` targets if the first candidate leaves little noise, or (False) if it leaves more. `early_stopping` is its own, and its members
    are `stacked` if possible, whatever 'auto' would choose. A `round` above 0 trains it with another seed.
    """

    name: str
    recipe: Callable[[int, int], Recipe]
    epochs: int
    members: int
    why: str
    light: bool = False
    build: Callable[[], nn.Module] | None = None
    round: int = 0
    clean: bool | None = None
    stacked: bool = False
    early_stopping: EarlyStopping | None = None


# trains a candidate's recipe with some arguments of `fit`: run_dir and time_limit
Train = Callable[[Candidate, Recipe, dict[str, Any]], Ensemble]


class Judge:
    """Scores held-out rows: the validation rows `held`, by which members are selected one by one; or all training rows, each by the members
    that hold it out, where all members of a candidate count together.
    """

    y: Tensor  # as it is in the data
    weights: Tensor | None  # of the rows, None if all count alike

    def __init__(self, held: Source | None = None):
        self.apart = held is not None
        self.found: OutOfFold | None = None  # of the first candidate
        if held is not None:
            self.x, self.y = next(iter(held.epoch(torch.arange(held.points), held.points)))
            self.weights = held.weights

    def prediction(self, ensemble: Ensemble) -> Predictive:
        """Return what a candidate predicts for the rows; the first candidate's targets are everybody's."""
        if self.apart:
            return ensemble._predictive(self.x)
        found: OutOfFold = ensemble._out_of_fold
        if self.found is None:
            self.found, self.y, self.weights = found, found.y, found.weights
        return found.prediction(ensemble)

    def outputs(self, ensemble: Ensemble) -> Tensor:
        """Return its raw outputs for the rows (member, row, ...)."""
        return ensemble.outputs(self.x) if self.apart else ensemble._out_of_fold.outputs

    def lacks(self, ensemble: Ensemble) -> str:
        """Return a sentence if the time limit was reached before members of all folds were trained; nothing if a candidate can be judged."""
        if self.found is None or torch.equal(self.found.points, ensemble._out_of_fold.points):
            return ""
        return "not all rows were held out of its members before the time limit was reached"

    def finish(self, made: Ensemble, outputs: Tensor, shares: Sequence[float]) -> None:
        """Give the chosen ensemble the scores, and the conformal rule, of rows out of fold."""
        if self.found is not None:
            complete(made, replace(self.found, outputs=outputs, networks=len(outputs), shares=tuple(shares)))

    def noise(self, ensemble: Ensemble) -> float:
        """Return the RMSE of the rows in standard deviations of their targets; infinite without squared errors."""
        prediction = self.prediction(ensemble)
        errors = prediction.row_scores(prediction.targets(self.y)).get("mse")
        return math.inf if errors is None else float((errors.mean() / self.y.double().var(0).mean()).sqrt())

    def scores(self, prediction: Predictive) -> tuple[float, float, str]:
        """Return the log score of the rows, the point score (squared error, or accuracy below 0), both by weight, and the two in words.

        Smaller is better, and NaN counts as worst; without a point score it is the log score.
        """
        targets = prediction.targets(self.y)
        rows = prediction.row_scores(targets)
        shares = None if self.weights is None else prediction.row_weights(targets, self.weights)

        def mean(name: str) -> float:
            value = float(rows[name].mean() if shares is None else (rows[name] * shares).sum() / shares.sum())
            return math.inf if math.isnan(value) else value

        log = mean(prediction.score)
        said = f"{'validation' if self.apart else 'out-of-fold'} {prediction.score} {log:.4f}"
        if "mse" in rows:
            rmse = mean("mse") ** 0.5
            return log, mean("mse"), f"{said}, rmse {rmse:{',.0f' if rmse >= 1e4 else '.4g'}}"
        if "accuracy" in rows:
            return log, -mean("accuracy"), f"{said}, accuracy {mean('accuracy'):.4f}"
        return log, log, said


def joined(
    ensembles: Sequence[Ensemble], weights: Sequence[float], *, name: str, info: dict[str, Any] | None = None
) -> Ensemble:
    """Return the ensemble of chosen members, each a plain network: `weights` has one for each member in turn, 0 for those left out."""
    places = [(e, i) for e in ensembles for i in range(e.members)]
    chosen = [number for number, weight in enumerate(weights) if weight]
    store, kinds, builds = MemberStore(), dict[str, int](), list[Build | nn.Module]()
    for place, number in enumerate(chosen):
        ensemble, index = places[number]
        network = ensemble.member(index)
        made, kind = _build_of(network)
        if kind not in kinds:
            kinds[kind] = len(builds)
            builds.append(made)
        store.put(place, state_of(network).having(form={"network": kinds[kind]} if kinds[kind] else None))
    first, member = ensembles[0], seq(Start(), Collect())
    plan = member if len(chosen) == 1 else fork(len(chosen), member)
    recipe = Recipe(name=name, plan=plan, combine=first.recipe.combine)
    known: dict[str, Any] = {"inputs": first._inputs, "interface": first._interface, "table": first.table, "info": info}
    build = tuple(builds) if len(builds) > 1 else builds[0]
    found = Ensemble(build, recipe, first.likelihood, store, len(chosen), **known)
    shares = [weights[number] for number in chosen]
    if len(set(shares)) == 1:
        return found
    return found.with_posthoc(StackingWeights(weights=tuple(share / sum(shares) for share in shares)))


def _build_of(network: nn.Module) -> tuple[Build | nn.Module, str]:
    """Return what builds a member's network, and a text that is the same for networks of one kind."""
    spec = models.spec_of(network)
    with rng.seeded(0, "look"):
        plain = network if spec is None else models.rebuild(spec)
    shapes = [{n: t.shape for n, t in one.state_dict().items()} for one in (plain, network)]
    if spec is None or shapes[0] != shapes[1]:  # it was cut to a part of what it was
        return network, repr(fingerprint(network))
    return lambda: models.rebuild(spec), repr(spec)


@dataclass(frozen=True)
class Pool:
    """Everything that was trained, in that order: what each ensemble is called, the ensembles, and what they are judged by."""

    labels: Sequence[str]
    ensembles: Sequence[Ensemble]
    judge: Judge

    def best(self, reasons: Sequence[str], tried: Sequence[str], seed: int) -> Ensemble:
        """Return the ensemble that the judge prefers; `reasons` say what happened until now, in words, and `tried` names all candidates."""
        each = [self.judge.outputs(e) for e in self.ensembles]
        outputs, sizes = torch.cat(each), [len(one) for one in each]
        prediction = self.ensembles[0]._uncorrected(outputs, networks=len(outputs))
        shares, units = self._chosen(prediction, sizes, seed)
        rows = _spread(shares, units)
        weights = rows if self.judge.apart else _spread(shares, [e.members for e in self.ensembles])
        score, _, said = self.judge.scores(prediction.weighed(rows))
        about = {"tried": list(tried), "validation": score, "reasons": [*reasons, f"{self._told(weights)}; {said}"]}
        made = joined(self.ensembles, weights, name="auto", info=self._costs(weights) | {"auto": about})
        taken = [i for i, share in enumerate(rows) if share]
        settle_noise(made, (outputs[taken], made.likelihood.read(self.judge.y), self.judge.weights))
        self.judge.finish(made, outputs[taken], [rows[i] for i in taken])
        return made

    def _chosen(self, prediction: Predictive, sizes: list[int], seed: int) -> tuple[np.ndarray, list[int]]:
        """Return the share of each unit and its number of rows: one candidate's alike, all alike, or a selection mixed with as much of the first as is needed.

        A unit is a candidate, of which `sizes` rows are; by validation rows a member.
        """
        judge, alone, units = self.judge, np.eye(len(sizes)), sizes
        if judge.apart:
            alone, units = np.repeat(alone / sizes, sizes, axis=1), [1] * sum(sizes)
        found, (least, limit, _) = alone[0], judge.scores(prediction.weighed(_spread(alone[0], units)))
        values, loss = prediction.blend(prediction.targets(judge.y))
        together = torch.stack([part.mean(0) for part in values.split(units)])
        bag: dict[str, Any] = {"picks": defaults.PICKS, "share": 1.0 if len(units) <= defaults.FEW_UNITS else 0.5}
        picked = np.array(bagged_selection(together, loss, **bag, weights=judge.weights, seed=seed).weights)
        if not judge.apart:
            picked = np.where(picked >= min(defaults.LEAST_SHARE, picked.max()), picked, 0.0)
        mixed = [part * picked / picked.sum() + (1 - part) * alone[0] for part in defaults.MIXTURES]
        for shares in (*alone[1:], alone.mean(0), *mixed):
            score, point, _ = judge.scores(prediction.weighed(_spread(shares, units)))
            if score < least - _GAIN * (1 + abs(least)) and point <= limit:
                found, least = shares, score
        return found, units

    def _told(self, weights: Sequence[float]) -> str:
        """Return how many members were taken of each candidate, and with what weight, in words."""
        ends = np.cumsum([e.members for e in self.ensembles])[:-1]
        parts = [(label, own) for label, own in zip(self.labels, np.split(np.array(weights), ends)) if own.sum()]
        if len(self.ensembles) == 1:
            return f"{self.labels[0]}, is taken"
        if len(parts) == 1 and parts[0][1].all():
            return f"{parts[0][0]}, alone is best; no mixture gains in log score without losing in point score"
        taken = ", ".join(f"{np.count_nonzero(own)} of {label} ({own.sum():.0%})" for label, own in parts)
        return f"selection from all {len(weights)} members: {taken}"

    def _costs(self, weights: Sequence[float]) -> dict[str, Any]:
        """Return what all candidates cost together, as a run says it of itself."""
        infos = [e.info for e in self.ensembles]
        names = sorted({name for info in infos for name in info["counted"]})
        members = [e for e in self.ensembles for _ in range(e.members)]
        taken = [e for e, weight in zip(members, weights) if weight]
        ended = [info["ended"] for info in infos if "ended" in info]
        return ({"ended": ended[0]} if ended else {}) | {
            "stopped": [one for info in infos for one in info.get("stopped", [])],
            "counted": {name: sum(info["counted"].get(name, 0) for info in infos) for name in names},
            "parameters": round(sum(e.info["parameters"] / e.members for e in taken)),
            "predict_flops": sum(e.info["predict_flops"] / e.members for e in taken),
            "networks": len(taken),
            "outputs": infos[0]["outputs"],
            "seconds": sum(info["seconds"] for info in infos),
        }


def _spread(shares: np.ndarray, sizes: Sequence[int]) -> tuple[float, ...]:
    """Return the weight of each row or member: the share of its candidate, divided by how many this has."""
    return tuple(np.repeat(shares / np.asarray(sizes), sizes).tolist())


@dataclass(frozen=True)
class _Tried:
    """A candidate that was trained: its name and length, what came of it (None if nothing did), and what happened, in words."""

    label: str
    ensemble: Ensemble | None
    said: str
    seconds: float = 0.0

    @property
    def cut(self) -> bool:
        """Whether the time limit was reached before it was trained."""
        return self.ensemble is not None and self.ensemble.info.get("ended") == "time_limit"


def training_ends(time_limit: float) -> Limit:
    """Return the limit of training, so that what follows is done within a time limit.

    What follows is expected to take as long as what came before training: both are long on a busy machine.

    >>> [round(training_ends(Limit.of(60.0, time.perf_counter() - before))) for before in (0.0, 12.0)]
    [51, 48]
    """
    started = getattr(time_limit, "started", time.perf_counter())
    after = max(defaults.RESERVE * time_limit, defaults.LEAST_RESERVE, time.perf_counter() - started)
    return Limit.of(time_limit - min(after, time_limit / 2), started)


class _Search:
    """The state of a search; arguments as in `search`."""

    def __init__(self, train: Train, judge: Judge, folder: Path | None, limit: Any, overwrite: bool, tell: Any):
        self.train, self.judge, self.folder, self.overwrite, self.tell = train, judge, folder, overwrite, tell
        self.ends = None if limit is None else training_ends(limit)
        self.tried: list[_Tried] = []
        self.notes: list[str] = []

    @property
    def left(self) -> float:
        """Seconds until training has to end, so that choosing, writing and scoring are done within the limit."""
        return math.inf if self.ends is None else self.ends - (time.perf_counter() - self.ends.started)

    def attempt(self, candidate: Candidate, epochs: int, waiting: int = 1) -> _Tried:
        """Train a candidate for so many epochs at most, within its share of the time left for all that wait; note what came of it."""
        label, begun = f"{candidate.name}, {epochs} epochs at most", time.perf_counter()
        limits: dict[str, Any] = {"time_limit": None}
        if self.ends is not None:
            limits["time_limit"] = Limit.of(self.ends - max(self.left, 0.0) * (1 - 1 / waiting), self.ends.started)
        if self.folder is not None:
            place = self.folder / folder_name(candidate.name)
            limits |= {"run_dir": place, "on_existing": "overwrite" if self.overwrite else "resume"}
        try:
            ensemble = self.train(candidate, candidate.recipe(epochs, candidate.members), limits)
        except (DivergedError, RunError) as error:
            if isinstance(error, RunError) and self.ends is None:
                raise  # a folder of another run, say
            found = _Tried(label, None, f"{label}: {error}")
        else:
            lacking = self.judge.lacks(ensemble)
            said = lacking or f"{ensemble.members} members, {self.judge.scores(self.judge.prediction(ensemble))[2]}"
            seconds = max(time.perf_counter() - begun, ensemble.info["seconds"])
            found = _Tried(label, None if lacking else ensemble, f"{label}: {said}", seconds)
        self.tried.append(found)
        self.tell(found.said)
        return found

    def repeat(self, candidates: Sequence[tuple[Candidate, int]], rounds: int) -> None:
        """Train the candidates again from other seeds: so many rounds in all, or what there is time for."""
        took = [tried.seconds for tried in self.tried]
        if any(tried.cut or tried.ensemble is None for tried in self.tried) or len(took) < len(candidates):
            return
        for number in range(1, rounds):
            for (candidate, epochs), seconds in zip(candidates, took):
                if seconds > self.left:
                    return
                self.attempt(replace(candidate, name=f"{candidate.name}_{number + 1}", round=number), epochs)

    def others(self, first: _Tried, others: Sequence[Candidate]) -> list[tuple[Candidate, int]]:
        """Return the other candidates that are trained, each with its epochs; light ones whatever the first took."""
        if first.cut:
            self.notes.append("no others were tried: the time limit was reached")
            return []
        if first.ensemble is None:
            return [(one, one.epochs) for one in others]
        if any(one.clean is not None for one in others):
            noise = self.judge.noise(first.ensemble)
            others = [one for one in others if one.clean in (None, noise < defaults.CLEAN)]
            self.notes.append(f"the RMSE is {noise:.2f} deviations of the target")
        counted = first.ensemble.info["counted"]
        if counted["train_flops"] > defaults.LONG and not all(one.light for one in others):
            others = [one for one in others if one.light]
            self.notes.append("no others were tried: this took long enough" + ", but for light ones" * bool(others))
        most = max(defaults.LEAST_EPOCHS, math.ceil(defaults.LONGER * counted["epochs"] / first.ensemble._count))
        return [(one, one.epochs if one.light or one.clean else min(one.epochs, most)) for one in others]


def search(
    candidates: Sequence[Candidate],
    train: Train,
    judge: Judge,
    *,
    run_dir: str | Path | None = None,
    time_limit: float | None = None,
    seed: int = 0,
    rounds: int = 1,
    overwrite: bool = False,
    tell: Callable[[str], object] = lambda line: None,
) -> Ensemble:
    """Return the best ensemble of the candidates; the first is the default without a search.

    Each candidate has a run folder in `run_dir`, and the same call resumes; `overwrite` removes another search in the folder, once the
    first candidate is accepted. `time_limit` includes selection and writing. All candidates are trained `rounds` times, each time with
    other seeds; an upper bound with a time limit.
    """
    folder = None if run_dir is None else Path(run_dir)
    if folder is not None and (folder / "plan.json").exists():
        raise RunError(f"{folder} holds the run of one method; give another folder for a search, or name that method.")
    with claimed(folder):
        found = _Search(train, judge, folder, time_limit, overwrite, tell)
        first = found.attempt(candidates[0], candidates[0].epochs)
        for run in folder.iterdir() if folder is not None and overwrite else ():  # of candidates of another search
            if run.name != folder_name(candidates[0].name) and not run.is_symlink() and (run / "plan.json").exists():
                clear(run)
        others = found.others(first, candidates[1:])
        for number, (candidate, epochs) in enumerate(others):
            if found.left <= 0:
                found.notes.append(f"{candidate.name} was not tried: the time limit was reached")
            else:
                found.attempt(candidate, epochs, len(others) - number)
        found.repeat([(candidates[0], candidates[0].epochs), *others], rounds)
        kept = [(t.label, t.ensemble) for t in found.tried if t.ensemble is not None]
        if not kept:
            raise DivergedError("; ".join(t.said for t in found.tried))
        labels, ensembles = zip(*kept)
        reasons = [*(t.said for t in found.tried), *found.notes]
        ensemble = Pool(labels, ensembles, judge).best(reasons, [t.label for t in found.tried], seed)
        if folder is not None:
            _keep(ensemble, folder)
    return ensemble


def _keep(ensemble: Ensemble, folder: Path) -> None:
    """Save an ensemble and what a report shows of the choice; remove the scores and the report of another one."""
    known = None
    with contextlib.suppress(RunError):
        known = (read_json(folder / "evaluation.json") or {}).get("ensemble")
    for name in (CHOICE, FOLDS, *(_SCORES if known != ensemble._digest else ())):
        (folder / name).unlink(missing_ok=True)
    ensemble.save(folder / SAVED)
    info, counted = ensemble.info, ensemble.info["counted"]
    *tried, outcome = info["auto"]["reasons"]
    row = {"method": ensemble.recipe.name, "members": ensemble.members, "epochs": counted["epochs"]}
    costs = ("parameters", "predict_flops", "train_flops", "train_seconds")
    row |= {name: value for name, value in (info | counted).items() if name in costs}
    write_json(folder / CHOICE, {"row": row, "findings": [outcome, *tried]}, within=folder)
    if ensemble._out_of_fold is not None:
        keep_folds(ensemble, folder, sha256((folder / SAVED).read_bytes()))
