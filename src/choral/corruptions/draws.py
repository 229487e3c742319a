"""Random numbers that belong to a row: image i gets the same ones whoever its neighbors are."""

import numpy as np

from choral.base.rng import key

Array = np.ndarray
"""Images are float32 in [0, 1], (row, height, width, channel), unless said otherwise."""


class RowDraws:
    """One generator for each row, made from (seed, corruption, row).

    The severity is not part of the key: the same noise pattern grows with severity, so severities can be compared.

    Args:
        seed: root seed.
        name: the corruption.
        rows: places of the rows in the whole data set.
    """

    def __init__(self, seed: int, name: str, rows: range) -> None:
        self._generators = [
            np.random.Generator(np.random.Philox(key=key(seed, "corruption", name, row))) for row in rows
        ]

    def normal(self, *shape: int) -> Array:
        """Return standard normal draws, (row, *shape)."""
        return np.stack([g.standard_normal(shape, dtype=np.float32) for g in self._generators])

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Array:
        """Return draws from [low, high), (row, *shape)."""
        draws = np.stack([np.asarray(g.random(shape, dtype=np.float32)) for g in self._generators])
        return np.float32(low) + np.float32(high - low) * draws

    def integers(self, *shape: int, low: int = 0, high: int) -> Array:
        """Return whole numbers from low to high, both included, (row, *shape)."""
        return np.stack([np.asarray(g.integers(low, high, shape, endpoint=True)) for g in self._generators])

    def poisson(self, rates: Array) -> Array:
        """Return one Poisson draw for each rate, in the shape of the rates (row, ...)."""
        return np.stack([g.poisson(rate) for g, rate in zip(self._generators, rates)]).astype(np.float32)
