"""What was understood, in one line: the method, the task, and what the outputs mean."""

from typing import TYPE_CHECKING

from choral.base.lettering import short
from choral.objectives.likelihoods import Likelihood
from choral.tables.table import unit_in_words

if TYPE_CHECKING:
    from choral.ensemble.ensemble import Ensemble

_LEFT_OUT = "columns left out"
_LONGEST = 120  # letters of a correction: weights of many members say nothing at a glance


def described(ensemble: "Ensemble") -> str:
    """Return method, members, task, likelihood, scaling and size of an ensemble as one line."""
    said = facts(ensemble) | {"parameters": f"{ensemble._parameters:,} parameters"}
    return ", ".join(f"{name}: {text}" if name == _LEFT_OUT else text for name, text in said.items())


def facts(ensemble: "Ensemble") -> dict[str, str]:
    """Return method, members, task, likelihood, scaling and size of an ensemble, by subject."""
    draws = ensemble.recipe.structure.draws
    members = f"{ensemble.members} member" + ("" if ensemble.members == 1 else "s")
    left_out = ensemble.table.left_out if ensemble.table is not None else ()
    chosen = ensemble.info.get("auto")
    found = {
        "method": f"{ensemble.recipe.name}: {members}" + (f" of {draws} draws each" if draws > 1 else ""),
        "task": ensemble.task + _of_outputs(ensemble),
        "likelihood": understood_by(ensemble),
        "transforms": ", ".join(map(repr, ensemble._inputs)),
        "corrections": ", ".join(_brief(repr(value), type(value).__name__) for value in ensemble.posthoc),
        _LEFT_OUT: ", ".join(short(n, 20) for n in left_out),
        "chosen": f"chosen from {len(chosen['tried'])} trainings ({chosen['reasons'][-1]})" if chosen else "",
        "parameters": f"{ensemble._parameters:,}",
    }
    return {name: text for name, text in found.items() if text}


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
