"""How close predictions are to a reference posterior's: agreement, total variation, Wasserstein distances."""

import torch
from torch import Tensor

from choral.base.errors import InputError
from choral.metrics.inputs import checked_finite, checked_probs


def _checked_pair(probs: Tensor, reference_probs: Tensor) -> tuple[Tensor, Tensor]:
    probs, reference = checked_probs(probs), checked_probs(reference_probs, name="reference_probs")
    if probs.shape != reference.shape:
        raise InputError(
            f"probs has shape {tuple(probs.shape)} and reference_probs {tuple(reference.shape)}; both must be the same "
            "(batch, class)."
        )
    return probs, reference.to(probs.device)


def agreement(probs: Tensor, reference_probs: Tensor) -> float:
    """Return the share of rows on which both name the same class.

    Shapes: probs and reference_probs (batch, class).

    Reference: Izmailov et al., "What Are Bayesian Neural Network Posteriors Really Like?", 2021, arXiv:2104.14421;
    equation 3 of Sequential Anchored Ensembles.
    """
    probs, reference = _checked_pair(probs, reference_probs)
    return float((probs.argmax(-1) == reference.argmax(-1)).double().mean())


def total_variation(probs: Tensor, reference_probs: Tensor) -> float:
    """Return the mean over rows of half the summed absolute differences, from 0 to 1.

    Shapes: probs and reference_probs (batch, class).

    Reference: equation 4 of Sequential Anchored Ensembles.

    >>> total_variation(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.25, 0.75]]))
    0.75
    """
    probs, reference = _checked_pair(probs, reference_probs)
    return float(0.5 * (probs - reference).abs().sum(-1).mean())


def wasserstein_rows(samples: Tensor, reference_samples: Tensor, *, order: int) -> Tensor:
    """Return the Wasserstein distance of each row's two sets of samples, exactly.

    In one dimension the best transport matches equal quantiles. Both quantile functions are steps; they are compared
    on the union of their borders i/n and j/m, held as whole numbers over n m, so the counts may differ.

    Args:
        samples: (sample, batch, ...); each entry after the sample axis is a distribution of its own.
        reference_samples: (reference sample, batch, ...).
        order: 1 or 2 (any whole number from 1).

    Shapes: -> (batch, ...).
    """
    samples, reference = checked_finite(samples, "samples"), checked_finite(reference_samples, "reference_samples")
    if samples.ndim < 1 or samples.shape[1:] != reference.shape[1:] or not samples.numel() or not reference.numel():
        raise InputError(
            f"samples has shape {tuple(samples.shape)} and reference_samples {tuple(reference.shape)}; they must be "
            "(sample, batch, ...) with at least one sample and equal sizes after the sample axis."
        )
    if order < 1:
        raise InputError(f"order is {order}; it must be 1 or more.")
    samples, reference = samples.sort(0).values, reference.to(samples.device).sort(0).values
    n, m = len(samples), len(reference)
    borders = torch.cat([torch.arange(n + 1) * m, torch.arange(m + 1) * n]).unique()
    masses = (borders.diff().double() / (n * m)).to(samples.device)
    starts = borders[:-1].to(samples.device)
    distances = (samples[starts // m] - reference[starts // n]).abs() ** order
    return torch.einsum("k,k...->...", masses, distances) ** (1.0 / order)


def w1(samples: Tensor, reference_samples: Tensor) -> float:
    """Return the Wasserstein-1 distance of each row's samples, averaged over rows.

    Shapes: samples (sample, batch, ...), reference_samples (reference sample, batch, ...).

    >>> w1(torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0]]))
    1.0
    """
    return float(wasserstein_rows(samples, reference_samples, order=1).mean())


def w2(samples: Tensor, reference_samples: Tensor) -> float:
    """Return the Wasserstein-2 distance of each row's samples, averaged over rows.

    Shapes: samples (sample, batch, ...), reference_samples (reference sample, batch, ...).

    Differs from the paper: equation 5 of Sequential Anchored Ensembles sums over the coupling, so it grows with the
    number of samples (and its authors' code computes W1); here the coupling has mass 1.

    >>> w2(torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0]]))
    1.0
    """
    return float(wasserstein_rows(samples, reference_samples, order=2).mean())
