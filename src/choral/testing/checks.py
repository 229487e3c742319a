"""The checks that every recipe must pass; `check_recipe` runs all of them.

    from choral.testing import check_recipe
    check_recipe(my_recipe(epochs=12, members=3))

Every check trains the recipe again, so use few epochs, and a learning rate that is safe for small networks.
"""

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from choral.base import batches
from choral.base.errors import ChoralError, InputError
from choral.base.values import from_dict
from choral.data.inputs import prepare
from choral.engine.compute import Compute, Executor
from choral.ensemble.ensemble import Ensemble
from choral.fit import fit, load
from choral.recipes.recipe import Recipe
from choral.testing.problems import PROBLEMS, Trial

_MOST_STOPS = 400  # of one run, in case it never finishes


class Nonconforming(ChoralError, AssertionError):
    """A recipe failed a check."""


def check_recipe(recipe: Recipe, *, problems: Sequence[str] | Mapping[str, Trial] = tuple(PROBLEMS)) -> None:
    """Run the conformance suite on a recipe; raise Nonconforming with every failed check.

    Args:
        recipe: the method; a small budget is enough, with at least two members.
        problems: which of `choral.testing.PROBLEMS` to use: 'classification', 'regression', 'images'; or a dict of others, where a refused
            network counts as a failure and is reported with its message.
    """
    failed = []
    for problem in problems:
        trial = problems[problem] if isinstance(problems, Mapping) else PROBLEMS[problem]
        for name, check in CHECKS.items():
            try:
                check(recipe, trial)
            except Exception as error:  # any exception of a recipe is a failure of the check
                reason = str(error).splitlines()[0] if str(error) else ""
                failed.append(f"{name} on {problem}: {type(error).__name__}: {reason}")
    if failed:
        raise Nonconforming(f"the recipe '{recipe.name}' fails {len(failed)} checks: " + "; ".join(failed) + ".")


def is_sound(recipe: Recipe, trial: Trial) -> None:
    """The plan has no problems, survives JSON, and declares its number of members."""
    _require(recipe.problems() == [], f"its plan cannot run: {recipe.problems()}")
    _require(from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe, "JSON changes the recipe")
    _require(recipe.describe()["members"] == recipe.members >= 1, "it does not declare its number of members")


def seed_decides(recipe: Recipe, trial: Trial) -> None:
    """Equal seeds give equal members, other seeds give others, at the declared cost."""
    first, again, other = (_fitted(recipe, trial, seed=s) for s in (3, 3, 4))
    _require(first._digest == again._digest, "the same seed gave different members")
    for a, b in zip(first.states(), other.states()):
        same = [n for n, p in a.params.items() if p.numel() > 2 and p.min() < p.max() and torch.equal(p, b.params[n])]
        _require(not same, f"another seed gave the same values of {', '.join(same[:3])}")
    _require(
        first.info["counted"]["epochs"] == recipe.epochs, "it trained for another number of epochs than it declares"
    )
    _require(first.members == recipe.members, "it gave another number of members than it declares")
    outputs = first.outputs(trial.some(20))
    _require(
        len(outputs) == recipe.members * recipe.structure.draws, "its outputs are not one for each member and draw"
    )
    _require(bool(torch.isfinite(outputs).all()), "its outputs are not finite")


def executors_agree(recipe: Recipe, trial: Trial) -> None:
    """Members trained stacked and one by one agree up to rounding.

    Differences above the tolerance are checked again in double precision, where rounding vanishes (Adam divides even a gradient of 1e-8, such as
    that of a bias before BatchNorm, by its size) and errors remain.
    """
    if not _apart(recipe, trial, atol=2e-4, rtol=2e-3):
        return
    exact = replace(trial, build=lambda: trial.build().double())
    apart = _apart(recipe, exact, atol=1e-6, rtol=1e-5)
    _require(not apart, f"{apart} differs between executors")


def _apart(recipe: Recipe, trial: Trial, *, atol: float, rtol: float) -> str:
    """Return the first tensor that differs between stacked and sequential training; empty if none does."""
    one, many = _fitted(recipe, trial, compute=Compute(executor="sequential")), _stacked(recipe, trial)
    for a, b in zip(one.states(), many.states() if many is not None else ()):
        for n, t in (a.params | a.buffers).items():
            if not torch.allclose(t.double(), (b.params | b.buffers)[n].double(), atol=atol, rtol=rtol):
                return n
    return ""


def resumes_exactly(recipe: Recipe, trial: Trial) -> None:
    """A run that is stopped at every event in turn and resumed gives the bytes of an uninterrupted one."""
    able = "sequential", *(("vectorized",) if _stacked(recipe, trial) is not None else ())
    for executor in able:
        with tempfile.TemporaryDirectory() as place:
            _stopped_at_every_event(recipe, trial, executor, Path(place))


def _stopped_at_every_event(recipe: Recipe, trial: Trial, executor: Executor, place: Path) -> None:
    _fitted(recipe, trial, run_dir=place / "whole", compute=Compute(executor=executor))
    for after in range(2, _MOST_STOPS):
        try:
            compute, hear = Compute(executor=executor, checkpoint_seconds=0), _stopping(1 + after % 7)
            _fitted(recipe, trial, run_dir=place / "broken", compute=compute, callbacks=hear)
            break
        except _Stop:
            continue
    else:
        raise Nonconforming(f"it was not finished after {_MOST_STOPS} stops")
    whole, broken = ({p.name: p.read_bytes() for p in (place / d / "members").iterdir()} for d in ("whole", "broken"))
    _require(whole == broken, f"stopped and resumed ({executor}), it gave different members")


def saves_exactly(recipe: Recipe, trial: Trial) -> None:
    """Loaded from a file and from a run folder, the ensemble gives bit-identical predictions."""
    with tempfile.TemporaryDirectory() as place:
        ensemble = _fitted(recipe, trial, run_dir=Path(place) / "run")
        ensemble.save(Path(place) / "saved.choral")
        x, again = trial.some(20), {n: f for n, f in trial.options.items() if n == "output" and callable(f)}
        for path in (Path(place) / "saved.choral", Path(place) / "run"):
            same = torch.equal(load(path, build=trial.build, **again).outputs(x), ensemble.outputs(x))
            _require(same, f"loaded from {path.name}, it gives different predictions")


def members_stand_alone(recipe: Recipe, trial: Trial) -> None:
    """Output i of the ensemble is that of member i alone, unless members draw."""
    ensemble, x = _fitted(recipe, trial), trial.some(10)
    if recipe.structure.draws > 1:
        return
    outputs = ensemble.outputs(x)
    for i in range(ensemble.members):
        with torch.no_grad():
            alone = ensemble._interface.call(ensemble.member(i), prepare(x, ensemble._inputs, training=False))
        _require(torch.allclose(alone, outputs[i], atol=1e-5), f"member {i} alone gives different outputs")


def rows_stand_alone(recipe: Recipe, trial: Trial) -> None:
    """The prediction of a row depends neither on other rows nor on other threads."""
    ensemble, x = _fitted(recipe, trial), trial.some(12)
    whole = ensemble.outputs(x)
    parts = torch.cat([ensemble.outputs(part, batch_size=3) for part in batches.chunks(x, 5)], 1)
    _require(torch.allclose(whole, parts, atol=1e-5, rtol=1e-4), "rows predicted in parts get different outputs")
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(ensemble.outputs, [x] * 8))
    _require(all(torch.equal(f, whole) for f in found), "two concurrent threads get different outputs")


def leaves_the_network_alone(recipe: Recipe, trial: Trial) -> None:
    """`fit` changes neither the given network nor the state of torch's global generator."""
    given = trial.build()
    before = {n: t.clone() for n, t in given.state_dict().items() if not is_lazy(t)}
    drawn = torch.random.get_rng_state()
    fit(given, trial.data(), recipe, **trial.options)
    after = {n: t for n, t in given.state_dict().items() if not is_lazy(t)}
    changed = [n for n in after if n not in before or not torch.equal(before[n], after[n])]
    _require(not changed, f"it changed the network it was given: {', '.join(changed[:3])}")
    _require(torch.equal(drawn, torch.random.get_rng_state()), "it drew from torch's global generator")


CHECKS: dict[str, Callable[[Recipe, Trial], None]] = {
    check.__name__: check
    for check in (
        is_sound,
        seed_decides,
        executors_agree,
        resumes_exactly,
        saves_exactly,
        members_stand_alone,
        rows_stand_alone,
        leaves_the_network_alone,
    )
}


class _Stop(Exception):
    pass


def _stopping(after: int) -> Callable[[dict[str, Any]], None]:
    seen = 0

    def hear(event: dict[str, Any]) -> None:
        nonlocal seen
        seen += 1
        if seen > after:
            raise _Stop

    return hear


def _fitted(recipe: Recipe, trial: Trial, **options: Any) -> Ensemble:
    return fit(
        trial.build, trial.data(), recipe, **{"compute": Compute(executor="sequential")} | dict(trial.options) | options
    )


def _stacked(recipe: Recipe, trial: Trial) -> Ensemble | None:
    """Return the ensemble trained stacked; None if that is refused with the advice to train sequentially."""
    try:
        return _fitted(recipe, trial, compute=Compute(executor="vectorized"))
    except InputError as error:
        if "executor='sequential'" not in str(error):
            raise
        return None


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Nonconforming(otherwise)
