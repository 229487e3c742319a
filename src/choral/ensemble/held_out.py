"""After training: selection of members, estimation of noise, and scores and conformal rules from out-of-fold predictions.

Out-of-fold predictions are predictions of training rows by members that were not trained on them. They are as honest as predictions of
new rows (a little worse, since only some members predict each row), and no row is lost to testing.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from choral.base.errors import RunError, warn
from choral.base.values import from_dict
from choral.calibration import StackingWeights
from choral.calibration.members import Correction
from choral.data.sources import Source
from choral.engine.checkpoint import MemberStore
from choral.engine.files import pack_tensors, unpack_tensors, write_bytes
from choral.engine.folder import keep_likelihood, read_likelihood
from choral.engine.task import some_points
from choral.ensemble.ensemble import Ensemble
from choral.plan.early_stopping import SHARE
from choral.plan.operators import folds_of
from choral.plan.walk import trainings
from choral.predictions import Predictive, scores_of
from choral.recipes.recipe import Recipe

_ROWS = 2048  # residuals that are looked at
_FEW_ROWS = 256  # rows that tell whether anything was learned


def chosen(store: MemberStore, count: int, recipe: Recipe) -> tuple[MemberStore, int, tuple[Correction, ...]]:
    """Return a store of the networks that a recipe selected, their number, and their weights as a correction.

    Nothing changes if the recipe does not select, or if there were no held-out rows.
    """
    if not any(phase.select for phase in trainings(recipe.plan)):
        return store, count, ()
    held = [store.get(i).slots.get(SHARE) for i in range(count)]
    shares = [0.0 if one is None else float(one["share"]) for one in held]
    numbers = [i for i, share in enumerate(shares) if share > 0]
    if not numbers:
        return store, count, ()
    rows, total = recipe.structure.members * recipe.structure.draws, sum(shares)
    weights = tuple(shares[i] / total / rows for i in numbers for _ in range(rows))
    return store.showing(numbers), len(numbers), (StackingWeights(weights=weights),)


def settle_noise(
    ensemble: Ensemble,
    source: Source | tuple[Tensor, Tensor, Tensor | None],
    folder: Path | None = None,
    *,
    run: str = "",
) -> None:
    """Estimate the noise of an ensemble's likelihood; the folder of the run with this digest stores it.

    It is estimated on rows of training or validation, with targets as the likelihood reads them, or on given outputs (row, batch, ...),
    targets and weights.
    """
    if not ensemble.likelihood.estimates:
        return
    kept = None if folder is None else read_likelihood(folder, run)
    if kept is None:
        if isinstance(source, tuple):
            outputs, y, weights = source
        else:
            x, y, weights = some_points(source, _ROWS)
            outputs = ensemble._outputs_once(x)
        kept = ensemble.likelihood.estimated(outputs, y, weights)
        if folder is not None:
            keep_likelihood(folder, run, kept)
    ensemble.likelihood = kept


def warn_if_doubtful(ensemble: Ensemble, source: Source, *, held_out: bool) -> None:
    """Warn if an ensemble predicts rows no better than a constant, or if probabilities of held-out rows are far too flat or too sharp.

    Targets are as the likelihood reads them; the rows are training rows, or validation rows if `held_out`.
    """
    x, y, weights = some_points(source, _FEW_ROWS)
    try:
        outputs = ensemble._outputs_once(x)
        constant = ensemble.likelihood.constant(outputs, y, weights)
    except Exception:  # forward code that fails in evaluation: predict says so, and the members must not be lost here
        return
    name = ensemble.recipe.name
    if constant:
        warn(
            f"{name} predicts its {'validation' if held_out else 'training'} rows no better than {constant} ({len(y)} rows), so it may have "
            "learned nothing; train longer (more epochs, or fewer members in the same budget), try another learning rate (Training(lr=...)), or bring the inputs "
            "to mean 0 and standard deviation 1 (transforms=(choral.data.Normalize(mean, std),)).",
        )
    elif held_out and weights is None and (said := ensemble.likelihood.miscalibrated(outputs, y)):
        warn(f"{name}: {said}; use ensemble.calibrated(x, y) with rows of its own, or train longer.")


LEVEL = 0.9  # that conformal intervals and sets promise
_CHUNK = 4096
FOLDS = "out_of_fold.safetensors"


@dataclass(frozen=True)
class OutOfFold:
    """Predictions of training rows by members that were not trained on them."""

    outputs: Tensor  # raw (row, point, ...), as `Ensemble.outputs`, of as many members as hold each point out
    y: Tensor  # the targets, as they are in the data
    folds: Tensor  # the fold that each point belongs to
    points: Tensor  # their numbers among all training points (those of weight 0 are not counted)
    weights: Tensor | None  # of the points, None if all count alike
    networks: int  # how many hold each point out
    shares: tuple[float, ...] | None = None  # what each row counts, None if all count alike

    def prediction(self, ensemble: Ensemble) -> Predictive:
        """Return the prediction without corrections."""
        found = ensemble._uncorrected(self.outputs, networks=self.networks)
        return found if self.shares is None else found.weighed(self.shares)


def gathered(ensemble: Ensemble, source: Source) -> OutOfFold:
    """Return the outputs of every member for the training rows held out of it; the source contains the fold of each row."""
    assert source.folds is not None
    kept = ensemble._numbers
    own = [folds_of(ensemble.recipe.plan)[number] for number in kept]
    by_fold = {f: [i for i, fold in enumerate(own) if fold == f] for f in sorted({f for f in own if f is not None})}
    count = min(len(some) for some in by_fold.values())
    parts, targets, places = [], [], []
    for fold, networks in by_fold.items():
        rows = (source.folds == fold).nonzero().flatten()
        part = ensemble._of_networks(networks[:count])
        for start in range(0, len(rows), _CHUNK):
            some = rows[start : start + _CHUNK]
            x, y = next(iter(source.epoch(some, len(some))))
            parts.append(part._outputs_once(x))
            targets.append(y)
        places.append(rows)
    points = torch.cat(places)
    order = points.argsort()
    outputs, y, points = torch.cat(parts, 1)[:, order], torch.cat(targets)[order], points[order]
    weights = None if source.weights is None else source.weights[points]
    return OutOfFold(outputs, y, source.folds[points], points, weights, count)


def settle_folds(ensemble: Ensemble, source: Source, folder: Path | None = None, *, run: str = "") -> None:
    """Add noise, scores and a conformal rule from out-of-fold predictions to a cross-validated ensemble."""
    found = gathered(ensemble, source)
    settle_noise(ensemble, (found.outputs, ensemble.likelihood.read(found.y), found.weights), folder, run=run)
    complete(ensemble, found)
    if folder is not None:
        keep_folds(ensemble, folder, run)


def complete(ensemble: Ensemble, found: OutOfFold) -> None:
    """Add scores and the conformal rule of out-of-fold predictions to an ensemble; weights of members are kept."""
    about, rules = judged(found, ensemble)
    weighed = [value for value in ensemble.posthoc if type(value) is StackingWeights]
    ensemble._out_of_fold = found
    ensemble.info = ensemble.info | {"out_of_fold": about}
    ensemble.posthoc = (*weighed, *rules)


def keep_folds(ensemble: Ensemble, folder: Path, run: str) -> None:
    """Write the out-of-fold predictions of an ensemble to its folder, with the digest of their run."""
    found: OutOfFold = ensemble._out_of_fold
    held = {name: getattr(found, name) for name in ("outputs", "y", "folds", "points", "weights")}
    tensors = {name: value for name, value in held.items() if value is not None}
    header = {"run": run, "networks": found.networks, "shares": found.shares, "about": ensemble.info["out_of_fold"]}
    header |= {"posthoc": [value.to_dict() for value in ensemble.posthoc]}
    write_bytes(folder / FOLDS, pack_tensors(tensors, header), within=folder)


def judged(found: OutOfFold, ensemble: Ensemble, level: float = LEVEL) -> tuple[dict[str, Any], tuple[Correction, ...]]:
    """Return the scores of out-of-fold predictions, the conformal rule fitted on them, and its coverage.

    The coverage of each fold is that of a rule fitted on the other folds.
    """
    prediction = found.prediction(ensemble)
    targets = prediction.targets(found.y)
    scores = scores_of(prediction, targets, found.weights)
    about: dict[str, Any] = {"folds": len(found.folds.unique()), "rows": len(found.y), "scores": scores}
    if not prediction.rules or found.outputs.dim() != 3 or about["folds"] < 2:  # stopped after one fold
        return about, ()
    covered, counts = [], prediction.counts(targets)
    for fold in found.folds.unique():
        others, own = counts & (found.folds != fold), counts & (found.folds == fold)
        rule = prediction.of_points(others).fit_conformal(targets[others], level=level)
        covered.append(replace(prediction.of_points(own), conformal=rule).covered(targets[own]).double())
    about |= {"level": level, "coverage": float(torch.cat(covered).mean())}
    return about, (prediction.fit_conformal(targets, level=level),)


def read_folds(ensemble: Ensemble, folder: Path, run: str) -> None:
    """Add the out-of-fold predictions in a run folder to a loaded ensemble, unless they are missing or of another run."""
    path = folder / FOLDS
    if not path.exists():
        return
    try:
        tensors, header = unpack_tensors(path.read_bytes(), str(path))
        if header.get("run") != run:
            return
        rules = tuple(from_dict(rule) for rule in header["posthoc"])
        shares = header["shares"] and tuple(map(float, header["shares"]))
        held: dict[str, Any] = {"weights": None, **tensors}
        found = OutOfFold(**held, networks=int(header["networks"]), shares=shares)
        fitted = ensemble.with_posthoc(*rules)
    except RunError as error:
        warn(f"the out-of-fold predictions in {path} are not loaded ({error}); call fit again to make them anew.")
        return
    ensemble._out_of_fold, ensemble.posthoc = found, fitted.posthoc
    ensemble.info = ensemble.info | {"out_of_fold": header["about"]}
