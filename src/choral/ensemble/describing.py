"""What was understood, in one line: the method, the task, and what the outputs mean."""

from typing import TYPE_CHECKING

from choral.base.lettering import short
from choral.data.targets import unit_in_words
from choral.objectives.likelihoods import Likelihood

if TYPE_CHECKING:
    from choral.ensemble.ensemble import Ensemble

_LONGEST = 120  # letters of a correction: weights of many members say nothing at a glance


def described(ensemble: "Ensemble") -> str:
    """Return method, members, task, likelihood, scaling and size of an ensemble as one line."""
    draws = ensemble.recipe.structure.draws
    members = f"{ensemble.members} member" + ("" if ensemble.members == 1 else "s")
    parts = [
        f"{ensemble.recipe.name}: {members}" + (f" of {draws} draws each" if draws > 1 else ""),
        ensemble.task + _of_outputs(ensemble),
        understood_by(ensemble),
        *(repr(transform) for transform in ensemble.inputs),
    ]
    parts += [_brief(repr(value), type(value).__name__) for value in ensemble.posthoc]
    left_out = ensemble.table.left_out if ensemble.table is not None else ()
    parts += [f"columns left out: {', '.join(short(n, 20) for n in left_out)}"] if left_out else []
    chosen = ensemble.info.get("auto")
    parts += [f"chosen from {len(chosen['tried'])} trainings ({chosen['reasons'][-1]})"] if chosen else []
    return ", ".join([*parts, f"{ensemble.parameters:,} parameters"])


def _brief(text: str, name: str) -> str:
    return text if len(text) <= _LONGEST else f"{name}(...)"


def understood_by(ensemble: "Ensemble") -> str:
    """Return what an ensemble has understood in a few words, with the unit of its targets if they have one."""
    said, table = said_of(ensemble.likelihood), ensemble.table
    if table is None or table.task != "regression" or not table.unit:
        return said
    return f"{said}, '{short(table.target)}' {unit_in_words(table.unit)}"


def said_of(likelihood: Likelihood) -> str:
    """Return what a likelihood has understood in a few words.

    >>> from choral.objectives import FixedGaussian
    >>> said_of(FixedGaussian(precision=4.0))
    'FixedGaussian, targets in their own units, noise of precision 4.0'
    """
    said = likelihood.understood()
    return ", ".join([said.pop("likelihood"), *(f"{subject} {words}" for subject, words in said.items())])


def _of_outputs(ensemble: "Ensemble") -> str:
    """Return what the outputs of one point are, if the run has noted it."""
    shape = ensemble.info.get("outputs")
    if not shape:
        return ""
    count = f"{shape[0]} outputs" if len(shape) == 1 else f"outputs of shape {tuple(shape)}"
    return f" with {count}"
