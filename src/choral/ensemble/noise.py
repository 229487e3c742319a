"""What a likelihood leaves open until members are trained: the size of the noise, estimated on their residuals."""

from pathlib import Path

from torch import Tensor

from choral.data.sources import Source
from choral.engine.folder import keep_likelihood, read_likelihood
from choral.engine.task import some_points
from choral.ensemble.ensemble import Ensemble

_ROWS = 2048  # residuals that are looked at


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
            outputs = ensemble.outputs_once(x)
        kept = ensemble.likelihood.estimated(outputs, y, weights)
        if folder is not None:
            keep_likelihood(folder, run, kept)
    ensemble.likelihood = kept
