"""What is looked at once members are trained: the size of the noise, and whether anything was learned."""

import warnings
from pathlib import Path

from torch import Tensor

from choral.data.sources import Source
from choral.engine.folder import keep_likelihood, read_likelihood
from choral.engine.task import some_points
from choral.ensemble.ensemble import Ensemble

_ROWS = 2048  # residuals that are looked at
_FEW_ROWS = 256  # rows that tell whether anything was learned


def settle_noise(
    ensemble: Ensemble,
    source: Source | tuple[Tensor, Tensor, Tensor | None],
    folder: Path | None = None,
    *,
    run: str = "",
) -> None:
    """Complete an ensemble's likelihood with what is estimated on some points.

    Args:
        ensemble: its likelihood is replaced.
        source: points of training or validation, with targets as the likelihood reads them; or outputs that are known already
            (row, batch, ...), such targets, and weights.
        folder: the run folder, which keeps what was estimated.
        run: digest of the run.
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


def warn_if_constant(ensemble: Ensemble, source: Source, *, held_out: bool) -> None:
    """Warn if an ensemble predicts training or validation rows no better than a constant does.

    Args:
        ensemble: the ensemble.
        source: the rows, with targets as the likelihood reads them.
        held_out: whether they are validation rows.
    """
    x, y, _ = some_points(source, _FEW_ROWS)
    try:
        constant = ensemble.likelihood.constant(ensemble._outputs_once(x), y)
    except Exception:  # forward code that fails in evaluation: predict says so, and the members must not be lost here
        return
    if constant:
        warnings.warn(
            f"{ensemble.recipe.name} predicts its {'validation' if held_out else 'training'} rows no better than {constant}, so it has learned nothing that "
            "helps; train longer (more epochs, or fewer members in the same budget), try another learning rate (Training(rate=...)), or bring the inputs "
            "to mean 0 and standard deviation 1.",
            stacklevel=4,
        )
