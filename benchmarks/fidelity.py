"""How close predictions are to a reference posterior's: agreement, total variation, Wasserstein distances."""

import torch
from torch import Tensor


def agreement(probs: Tensor, reference_probs: Tensor) -> float:
    """Return the share of rows on which both name the same class.

    Shapes: probs and reference_probs (batch, class).

    Reference: Izmailov et al., "What Are Bayesian Neural Network Posteriors Really Like?", 2021, arXiv:2104.14421;
    equation 3 of Sequential Anchored Ensembles.
    """
    return float((probs.argmax(-1) == reference_probs.argmax(-1)).double().mean())


def total_variation(probs: Tensor, reference_probs: Tensor) -> float:
    """Return the mean over rows of half the summed absolute differences, from 0 to 1.

    Shapes: probs and reference_probs (batch, class).

    Reference: equation 4 of Sequential Anchored Ensembles.

    >>> total_variation(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.25, 0.75]]))
    0.75
    """
    return float(0.5 * (probs.double() - reference_probs.double()).abs().sum(-1).mean())


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
    samples, reference = samples.double().sort(0).values, reference_samples.double().sort(0).values
    assert samples.shape[1:] == reference.shape[1:]
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
