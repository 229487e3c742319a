"""A short list of candidates, tried by successive halving within a few times the cost of the first; the best members together.

The first candidate is trained whole: what is done where nobody searches. If that did not take long, members of each of the others are
trained for a fifth of the epochs that it took; the better half of them is trained whole, as far as the operations go that are left.
Everything trained goes into a pool, from which bagged greedy selection by held-out points chooses. What is returned is never worse on
these than the first candidate, in log score or point score. All of it is decided by the seed, unless there is a time limit.
"""

import contextlib
import math
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from choral.automatic.jury import Judge
from choral.automatic.pooling import Pool
from choral.base.errors import ChoralError, DivergedError, InputError, RunError
from choral.engine.files import read_json, write_json
from choral.engine.folder import claimed, clear, folder_name
from choral.ensemble.ensemble import Ensemble
from choral.ensemble.out_of_fold import FOLDS, digest_of, keep_folds
from choral.recipes.recipe import Recipe

SAVED, CHOICE = "ensemble.choral", "choice.json"
_SCORES = ("evaluation.json", "report.json", "report.html")
_SHORT = 0.2  # of the first candidate's epochs, to see which others are worth more
_LEAST = 4  # epochs
_MORE = 2.5  # of the first candidate's operations, for all the others
_FEW, _LONGER = 2, 1.5  # others that are not worth a first look; times the first one's epochs that they may take
_LONG = (
    6e11  # operations, about a quarter of a minute of one core, above which the first candidate alone takes long enough
)
_FIRST, _LOOKS, _REST = 0.5, 0.2, 0.3  # of a time limit: the first candidate, a look at the others, and the better ones


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
        light: whether it costs so little that its epochs are not counted.
    """

    name: str
    recipe: Callable[[int, int], Recipe]
    epochs: int
    members: int
    few: int
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
        short: whether it was only looked at.
    """

    label: str
    candidate: Candidate
    ensemble: Ensemble | None
    score: float
    said: str
    short: bool

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
        time_limit: seconds for all of it, or None.
        overwrite: whether runs that the folder holds are begun anew, each once.
    """

    def __init__(
        self, train: Train, judge: Judge, folder: Path | None, time_limit: float | None, *, overwrite: bool = False
    ):
        self.train, self.judge, self.folder, self.time_limit = train, judge, folder, time_limit
        self.overwrite, self.begun = overwrite, set[Path]()
        self.tried: list[Tried] = []
        self.notes: list[str] = []

    @property
    def looked(self) -> bool:
        """Whether candidates were trained briefly, to see what they are worth."""
        return any(tried.short for tried in self.tried)

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
            place = self.folder / folder_name(candidate.name + ("-short" if short else ""))
            anew = self.overwrite and place not in self.begun
            limits |= {"run_dir": place, "on_existing": "overwrite" if anew else "resume"}
            self.begun.add(place)
        try:
            ensemble = self.train(candidate, candidate.recipe(epochs, members), limits)
        except (DivergedError, RunError) as error:
            if isinstance(error, RunError) and self.time_limit is None:
                raise  # a folder of another run, say
            found = Tried(label, candidate, None, math.inf, f"{label}: {error}", short)
        else:
            found = self._judged(label, candidate, ensemble, short)
        self.tried.append(found)
        return found

    def _judged(self, label: str, candidate: Candidate, ensemble: Ensemble, short: bool) -> Tried:
        """Return what is known of a candidate that was trained."""
        lacking = self.judge.lacks(ensemble)
        if lacking:
            return Tried(label, candidate, None, math.inf, f"{label}: {lacking}", short)
        prediction = self.judge.prediction(ensemble)
        said = f"{label}: {ensemble.members} members, {self.judge.said(prediction)}"
        return Tried(label, candidate, ensemble, self.judge.score(prediction), said, short)


def search(
    candidates: Sequence[Candidate],
    train: Train,
    judge: Judge,
    *,
    run_dir: str | Path | None = None,
    time_limit: float | None = None,
    seed: int = 0,
    overwrite: bool = False,
) -> Ensemble:
    """Return the best ensemble of what the candidates give.

    Args:
        candidates: the first is what is done without a search.
        train: trains a candidate.
        judge: what they are judged by, `ByValidation` or `ByFolds`.
        run_dir: folder of the search; each candidate has a run folder in it, and the same call resumes.
        time_limit: seconds of training for all of it.
        seed: root of the draws of the selection.
        overwrite: whether what the folder holds of another search is removed, once the first candidate is accepted.
    """
    if not candidates:
        raise InputError("there are no candidates to choose from; name at least one method.")
    folder = None if run_dir is None else Path(run_dir)
    if folder is not None and (folder / "plan.json").exists():
        raise RunError(
            f"{folder} holds the run of one method, and a search makes a folder for each; give another one, or name that method."
        )
    with claimed(folder):
        found = Search(train, judge, folder, time_limit, overwrite=overwrite)
        with _put_aside(folder if overwrite else None):
            first = _first(found, candidates[0], alone=len(candidates) == 1)
        if folder is not None and overwrite:
            _clear_others(folder, found.begun)
        others = _halved(found, first, candidates[1:])
        left = _REST if found.looked else _LOOKS + _REST
        for candidate, epochs, members in others:
            found.attempt(candidate, epochs, members, left / len(others))
        kept = [(t.label, t.ensemble, not t.short) for t in found.tried if t.ensemble is not None]
        if not kept:
            raise DivergedError("; ".join(t.said for t in found.tried))
        labels, ensembles, whole = zip(*kept)
        pool = Pool(labels, ensembles, whole, judge)
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
    share = 1.0 if alone else _FIRST
    first = found.attempt(candidate, candidate.epochs, candidate.members, share)
    if first.cut and not alone and found.folder is not None:  # its folder lets it go on
        found.tried.clear()
        found.judge.forget()
        first = found.attempt(candidate, candidate.epochs, candidate.members, 1.0)
    return first


def _halved(found: Search, first: Tried, others: Sequence[Candidate]) -> list[tuple[Candidate, int, int]]:
    """Return the other candidates that are trained whole, each with the epochs and members it may have.

    Of three or more these are the better half after a short training of all; light ones are trained in any case.
    """
    whole = first.ensemble
    light = [(one, one.epochs, one.members) for one in others if one.light and not first.cut]
    others = [one for one in others if not one.light]
    if others and (first.cut or first.flops > _LONG):
        found.notes.append("no others were tried: this took long enough" + (", but for light ones" if light else ""))
        return light
    seen = 5.0 * _LEAST if whole is None else first.epochs / whole._count
    if len(others) <= _FEW and whole is not None:
        most = max(_LEAST, math.ceil(_LONGER * seen))
        return [*((one, min(one.epochs, most), one.members) for one in others), *light]
    epochs = max(_LEAST, math.ceil(_SHORT * seen))
    tried = [found.attempt(c, min(epochs, c.epochs), c.few, _LOOKS / len(others), short=True) for c in others]
    kept = sorted((t for t in tried if t.ensemble is not None), key=lambda t: t.score)[: -(-len(others) // 2)]
    if whole is None:  # the first one failed, so that nothing says what may be spent
        return [*((one.candidate, one.candidate.epochs, one.candidate.members) for one in kept), *light]
    left = max(_MORE * first.flops - sum(t.flops for t in tried), 0.0) / max(len(kept), 1)
    chosen = []
    for one in kept:
        few = one.candidate.few
        each = max(one.flops / epochs / few, 1.0)  # of one epoch of one member
        members = max(few, min(one.candidate.members, int(left / each / seen)))
        affordable = max(int(left / each / members), math.ceil(seen))
        chosen.append((one.candidate, min(one.candidate.epochs, affordable), members))
    return chosen + light
