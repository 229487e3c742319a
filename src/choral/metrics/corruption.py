"""Results over corruptions x severities: cAcc, cNLL, cECE, and corruption errors relative to a baseline."""

from collections.abc import Mapping, Sequence

from choral.base.errors import InputError

Errors = Mapping[str, Sequence[float]]


def corrupted_means(results: Mapping[str, Sequence[Mapping[str, float]]]) -> dict[str, float]:
    """Return the mean of every measure over corruptions and severities, each name with a c in front.

    Every (corruption, severity) pair weighs the same: `c_accuracy`, `c_nll`, `c_ece`, ... are the papers' cAcc, cNLL,
    cECE.

    Args:
        results: corruption -> one dict of measures for each severity, as `evaluate_classification` returns them.

    >>> corrupted_means({"fog": [{"nll": 0.75}, {"nll": 0.25}], "snow": [{"nll": 1.0}, {"nll": 0.5}]})
    {'c_nll': 0.625}
    """
    cells = [cell for severities in results.values() for cell in severities]
    if not cells:
        raise InputError("results is empty; it must hold at least one corruption with one severity.")
    names = [name for name in cells[0] if all(name in cell for cell in cells)]
    return {f"c_{name}": sum(cell[name] for cell in cells) / len(cells) for name in names}


def _same_cells(errors: Errors, baseline_errors: Errors) -> None:
    shapes = {name: len(values) for name, values in errors.items()}
    baseline = {name: len(values) for name, values in baseline_errors.items()}
    if shapes != baseline or not shapes or 0 in shapes.values():
        raise InputError(
            f"errors holds the corruptions and numbers of severities {shapes} and baseline_errors {baseline}; "
            "both must hold the same ones, and at least one."
        )


def corruption_errors(errors: Errors, baseline_errors: Errors) -> dict[str, float]:
    """Return for each corruption the error summed over severities divided by the baseline's (CE; 1 = the baseline).

    Args:
        errors: corruption -> error rate (1 - accuracy) at each severity.
        baseline_errors: the same for the network compared with.

    Reference: Hendrycks & Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and
    Perturbations", 2019, arXiv:1903.12261, section 4.1. Papers print these times 100.
    """
    _same_cells(errors, baseline_errors)
    return {name: _ratio(sum(errors[name]), sum(baseline_errors[name]), name) for name in errors}


def relative_corruption_errors(
    errors: Errors, baseline_errors: Errors, *, clean_error: float, baseline_clean_error: float
) -> dict[str, float]:
    """Return for each corruption the error added to the clean one, divided by what the baseline adds (relative CE).

    Args:
        errors: corruption -> error rate at each severity.
        baseline_errors: the same for the network compared with.
        clean_error: error rate on clean data.
        baseline_clean_error: the same for the network compared with.

    Reference: Hendrycks & Dietterich (see `corruption_errors`), section 4.1.
    Differs from the paper: appendix D.4 of Ensemble Model Patching subtracts the method's own clean error from the
    baseline's corrupted error; here, as in the original definition, the baseline's own is subtracted.
    """
    _same_cells(errors, baseline_errors)
    added = {name: sum(values) - len(values) * clean_error for name, values in errors.items()}
    of_baseline = {name: sum(values) - len(values) * baseline_clean_error for name, values in baseline_errors.items()}
    return {name: _ratio(added[name], of_baseline[name], name) for name in errors}


def _ratio(value: float, baseline: float, name: str) -> float:
    if baseline == 0:
        raise InputError(
            f"the baseline's error for {name!r} is 0, so nothing can be measured relative to it; leave it out."
        )
    return value / baseline


def mean_corruption_error(errors: Errors, baseline_errors: Errors) -> float:
    """Return the mean corruption error, the mean of `corruption_errors` (1 = the baseline).

    >>> mean_corruption_error({"fog": [0.2, 0.4], "snow": [0.3, 0.3]}, {"fog": [0.4, 0.8], "snow": [0.3, 0.3]})
    0.75
    """
    values = corruption_errors(errors, baseline_errors)
    return sum(values.values()) / len(values)


def relative_mean_corruption_error(
    errors: Errors, baseline_errors: Errors, *, clean_error: float, baseline_clean_error: float
) -> float:
    """Return the relative mean corruption error, the mean of `relative_corruption_errors` (1 = the baseline)."""
    values = relative_corruption_errors(
        errors, baseline_errors, clean_error=clean_error, baseline_clean_error=baseline_clean_error
    )
    return sum(values.values()) / len(values)
