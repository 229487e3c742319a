"""What was understood, in one line: the method, the task, and what the outputs mean."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from choral.ensemble.ensemble import Ensemble


def described(ensemble: "Ensemble") -> str:
    """Return method, members, task, likelihood, scaling and size of an ensemble as one line."""
    draws = ensemble.recipe.structure.draws
    members = f"{ensemble.members} member" + ("" if ensemble.members == 1 else "s")
    parts = [
        f"{ensemble.recipe.name}: {members}" + (f" of {draws} draws each" if draws > 1 else ""),
        ensemble.task + _of_outputs(ensemble),
        repr(ensemble.likelihood),
        *(repr(transform) for transform in ensemble.inputs),
    ]
    scale = None if ensemble.table is None else ensemble.table.scale
    if scale is not None:
        parts.append(f"targets trained as (y - {scale.mean:.6g}) / {scale.std:.6g}")
    parts += [repr(value) for value in ensemble.posthoc]
    return ", ".join([*parts, f"{ensemble.parameters:,} parameters"])


def _of_outputs(ensemble: "Ensemble") -> str:
    """Return what the outputs of one point are, if the run has noted it."""
    shape = ensemble.info.get("outputs")
    if not shape:
        return ""
    count = f"{shape[0]} outputs" if len(shape) == 1 else f"outputs of shape {tuple(shape)}"
    return f" with {count}"
