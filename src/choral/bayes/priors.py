"""Priors scaled to the network: the more inputs a unit sums, the smaller their weights.

With one standard deviation for every parameter a function drawn from the prior grows with each layer by that deviation times the
root of its width: 0.45 in a layer of 256 units is a factor of 7, and three such layers give functions hundreds of times as large
as standardized targets, to which anchored members are then pulled. Divided by the root of the inputs, the prior's functions
stay of one size whatever the widths.

Reference: Neal, "Bayesian Learning for Neural Networks", 1996, section 2.1; Pearce et al., 2020, arXiv:1810.05546, section 4.
"""

import math
from collections.abc import Sequence

from choral.base.types import Params


def scale(shape: Sequence[int]) -> float:
    """Return the factor of the prior's standard deviation for a tensor: 1 / sqrt(inputs of a unit), 1 for vectors.

    >>> scale((10, 64)), scale((16, 4, 3, 3)) == 1 / 6, scale((10,))
    (0.125, True, 1.0)
    """
    return 1 / math.sqrt(max(math.prod(shape[1:]), 1))


def in_parameters(units: Params) -> Params:
    """Return tensors in the units of the parameters, from tensors in units of `scale`."""
    return {name: value * scale(value.shape) for name, value in units.items()}


def in_units(params: Params) -> Params:
    """Return tensors in units of `scale`, from tensors in the units of the parameters."""
    return {name: value / scale(value.shape) for name, value in params.items()}
