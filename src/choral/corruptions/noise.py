"""Noise: Gaussian, shot, impulse and speckle."""

import numpy as np

from choral.corruptions.draws import Array, RowDraws

_GAUSSIAN = (0.04, 0.06, 0.08, 0.09, 0.10)
_SHOT = (500, 250, 100, 75, 50)
_IMPULSE = (0.01, 0.02, 0.03, 0.05, 0.07)
_SPECKLE = (0.06, 0.1, 0.12, 0.16, 0.2)


def gaussian_noise(images: Array, severity: int, draws: RowDraws) -> Array:
    """Add normal noise to every value."""
    return images + _GAUSSIAN[severity - 1] * draws.normal(*images.shape[1:])


def shot_noise(images: Array, severity: int, draws: RowDraws) -> Array:
    """Count photons: Poisson draws at a rate proportional to the brightness."""
    rate = _SHOT[severity - 1]
    return draws.poisson(images * rate) / rate


def impulse_noise(images: Array, severity: int, draws: RowDraws) -> Array:
    """Set a share of the values to black or white, half each."""
    amount = _IMPULSE[severity - 1]
    hit = draws.uniform(*images.shape[1:])
    return np.where(hit < 0.5 * amount, 0.0, np.where(hit < amount, 1.0, images))


def speckle_noise(images: Array, severity: int, draws: RowDraws) -> Array:
    """Add normal noise in proportion to the brightness."""
    return images + images * _SPECKLE[severity - 1] * draws.normal(*images.shape[1:])
