"""A short list of candidates, and the best members of all of them together.

The first candidate is what is done where nobody searches. If it did not take long, the others are trained for at most 1.5 times its epochs.
Everything trained goes into a pool, from which bagged greedy selection by held-out points chooses. What is returned is never worse on
these than the first candidate, in log score or point score. All of it is decided by the seed, unless there is a time limit.
"""

import contextlib
import math
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from choral.automatic.jury import Judge
from choral.automatic.pooling import Pool
from choral.base.errors import ChoralError, DivergedError, InputError, RunError
from choral.engine.files import read_json, write_json
from choral.engine.folder import claimed, clear, folder_name
from choral.engine.validation import Limit
from choral.ensemble.ensemble import Ensemble
from choral.ensemble.held_out import FOLDS, digest_of, keep_folds
from choral.recipes.recipe import Recipe

SAVED, CHOICE = "ensemble.choral", "choice.json"
_SCORES = ("evaluation.json", "report.json", "report.html")
_LEAST, _LONGER = 4, 1.5  # epochs that others may take: so many, or so many times the first one's
_LONG = (
    6e11  # operations, about a quarter of a minute of one core, above which the first candidate alone takes long enough
)
_FIRST, _LAST = (
    0.5,
    0.85,
)  # of a time limit: when the first candidate ends, and when all do; the rest is for choosing and writing


@dataclass(frozen=True)
class Candidate:
    """One entry of the list.

    Attributes:
        name: what it is called; also names its run folder.
        recipe: gives the recipe for a number of epochs of each network, and a number of members.
        epochs: the most that each network may have.
        members: the most that it may have.
        why: why it is on the list, in words.
        light: whether it costs so little that its epochs are not counted.
    """

    name: str
    recipe: Callable[[int, int], Recipe]
    epochs: int
    members: int
    why: str
    light: bool = False


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
    def cut(self) -> bool:
        """Whether the time was up before it was trained."""
        return self.ensemble is not None and self.ensemble.info.get("ended") == "time_limit"

    @property
    def epochs(self) -> float:
        """Epochs that all its networks took."""
        return 0.0 if self.ensemble is None else float(self.ensemble.info["counted"]["epochs"])


class Search:
    """The state of a search.

    Args:
        train: trains a candidate.
        judge: what candidates are judged by.
        folder: where each candidate gets a run folder, or None.
        time_limit: seconds of wall time for all of it, or None.
        overwrite: whether runs that the folder holds are begun anew, each once.
        tell: gets a line about each candidate that was tried.
    """

    def __init__(
        self,
        train: Train,
        judge: Judge,
        folder: Path | None,
        time_limit: float | None,
        *,
        overwrite: bool = False,
        tell: Callable[[str], object] = lambda line: None,
    ):
        self.train, self.judge, self.folder, self.time_limit = train, judge, folder, time_limit
        self.started = time_limit.started if isinstance(time_limit, Limit) else time.perf_counter()
        self.overwrite, self.begun, self.tell = overwrite, set[Path](), tell
        self.tried: list[Tried] = []
        self.notes: list[str] = []

    def is_over(self, part: float) -> bool:
        """Return whether a part of the time limit has passed."""
        return self.time_limit is not None and time.perf_counter() - self.started > part * self.time_limit

    def attempt(self, candidate: Candidate, epochs: int, part: float) -> Tried:
        """Train a candidate and note what came of it.

        Args:
            candidate: which.
            epochs: of each network, at most.
            part: of the time limit, after which it ends.
        """
        label = f"{candidate.name}, {epochs} epochs at most"
        limit = None if self.time_limit is None else Limit.of(part * self.time_limit, self.started)
        limits: dict[str, Any] = {"time_limit": limit}
        if self.folder is not None:
            place = self.folder / folder_name(candidate.name)
            anew = self.overwrite and place not in self.begun
            limits |= {"run_dir": place, "on_existing": "overwrite" if anew else "resume"}
            self.begun.add(place)
        try:
            ensemble = self.train(candidate, candidate.recipe(epochs, candidate.members), limits)
        except (DivergedError, RunError) as error:
            if isinstance(error, RunError) and self.time_limit is None:
                raise  # a folder of another run, say
            found = Tried(label, candidate, None, math.inf, f"{label}: {error}")
        else:
            found = self._judged(label, candidate, ensemble)
        self.tried.append(found)
        self.tell(found.said)
        return found

    def _judged(self, label: str, candidate: Candidate, ensemble: Ensemble) -> Tried:
        """Return what is known of a candidate that was trained."""
        lacking = self.judge.lacks(ensemble)
        if lacking:
            return Tried(label, candidate, None, math.inf, f"{label}: {lacking}")
        prediction = self.judge.prediction(ensemble)
        said = f"{label}: {ensemble.members} members, {self.judge.said(prediction)}"
        return Tried(label, candidate, ensemble, self.judge.score(prediction), said)


def search(
    candidates: Sequence[Candidate],
    train: Train,
    judge: Judge,
    *,
    run_dir: str | Path | None = None,
    time_limit: float | None = None,
    seed: int = 0,
    overwrite: bool = False,
    tell: Callable[[str], object] = lambda line: None,
) -> Ensemble:
    """Return the best ensemble of what the candidates give.

    Args:
        candidates: the first is what is done without a search.
        train: trains a candidate.
        judge: what they are judged by, `ByValidation` or `ByFolds`.
        run_dir: folder of the search; each candidate has a run folder in it, and the same call resumes.
        time_limit: seconds of wall time for all of it, choosing and writing included.
        seed: root of the draws of the selection.
        overwrite: whether what the folder holds of another search is removed, once the first candidate is accepted.
        tell: gets a line about each candidate that was tried.
    """
    if not candidates:
        raise InputError("there are no candidates to choose from; name at least one method.")
    folder = None if run_dir is None else Path(run_dir)
    if folder is not None and (folder / "plan.json").exists():
        raise RunError(
            f"{folder} holds the run of one method, and a search makes a folder for each; give another one, or name that method."
        )
    with claimed(folder):
        found = Search(train, judge, folder, time_limit, overwrite=overwrite, tell=tell)
        with _put_aside(folder if overwrite else None):
            first = _first(found, candidates[0], alone=len(candidates) == 1)
        if folder is not None and overwrite:
            _clear_others(folder, found.begun)
        others = _others(found, first, candidates[1:])
        for number, (candidate, epochs) in enumerate(others, start=1):
            part = _FIRST + (_LAST - _FIRST) * number / len(others)
            if found.is_over(part):
                found.notes.append(f"{candidate.name} was not tried: the time was up")
            else:
                found.attempt(candidate, epochs, part)
        kept = [(t.label, t.ensemble) for t in found.tried if t.ensemble is not None]
        if not kept:
            raise DivergedError("; ".join(t.said for t in found.tried))
        labels, ensembles = zip(*kept)
        pool = Pool(labels, ensembles, judge)
        ensemble = pool.best([*(t.said for t in found.tried), *found.notes], [t.label for t in found.tried], seed)
        if folder is not None:
            _forget_scores(folder, ensemble)
            ensemble.save(folder / SAVED)
            write_json(folder / CHOICE, _told(ensemble), within=folder)
            if ensemble._out_of_fold is not None:
                keep_folds(ensemble, folder, digest_of(folder / SAVED))
    return ensemble


@contextlib.contextmanager
def _put_aside(folder: Path | None) -> Iterator[None]:
    """Move what a search left in its folder out of the way; back again if the new one is refused."""
    if folder is None:
        yield
        return
    names = [SAVED, CHOICE, FOLDS, *_SCORES]
    with tempfile.TemporaryDirectory(dir=folder, prefix=".before-") as place:
        held = [name for name in names if (folder / name).is_file()]
        for name in held:
            (folder / name).rename(Path(place) / name)
        try:
            yield
        except ChoralError:
            for name in held:
                (Path(place) / name).rename(folder / name)
            raise


def _clear_others(folder: Path, begun: Collection[Path]) -> None:
    """Remove the runs of candidates that another search had."""
    for run in folder.iterdir():
        if run not in begun and not run.is_symlink() and (run / "plan.json").exists():
            clear(run)


def _forget_scores(folder: Path, ensemble: Ensemble) -> None:
    """Remove the scores and the report of another ensemble than this one."""
    try:
        known = (read_json(folder / "evaluation.json") or {}).get("ensemble")
    except RunError:
        known = None
    if known != ensemble._digest:
        for name in _SCORES:
            (folder / name).unlink(missing_ok=True)


def _told(ensemble: Ensemble) -> dict[str, Any]:
    """Return what a report shows of a choice: what it took, and why, the outcome first."""
    info, counted = ensemble.info, ensemble.info["counted"]
    *tried, outcome = info["auto"]["reasons"]
    row = {"method": ensemble.recipe.name, "members": ensemble.members, "epochs": counted["epochs"]}
    row |= {name: info[name] for name in ("parameters", "predict_flops")}
    row |= {name: counted[name] for name in ("train_flops", "train_seconds") if name in counted}
    return {"row": row, "findings": [outcome, *tried]}


def _first(found: Search, candidate: Candidate, *, alone: bool) -> Tried:
    """Return the first candidate, trained whole; if half of the time is not enough for it, with all of the time."""
    first = found.attempt(candidate, candidate.epochs, _LAST if alone else _FIRST)
    if first.cut and not alone and found.folder is not None:  # its folder lets it go on
        found.tried.clear()
        found.judge.forget()
        first = found.attempt(candidate, candidate.epochs, _LAST)
    return first


def _others(found: Search, first: Tried, others: Sequence[Candidate]) -> list[tuple[Candidate, int]]:
    """Return the other candidates that are trained, each with the epochs it may have; light ones whatever the first took."""
    if first.cut:
        found.notes.append("no others were tried: the time was up")
        return []
    if first.flops > _LONG and not all(one.light for one in others):
        others = [one for one in others if one.light]
        found.notes.append("no others were tried: this took long enough" + (", but for light ones" if others else ""))
    if first.ensemble is None:
        return [(one, one.epochs) for one in others]
    most = max(_LEAST, math.ceil(_LONGER * first.epochs / first.ensemble._count))
    return [(one, one.epochs if one.light else min(one.epochs, most)) for one in others]
