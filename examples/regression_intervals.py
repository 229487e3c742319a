"""Regression with a band: twenty anchored networks, trained together, that widen where there was no data.

python examples/regression_intervals.py
"""

import torch

import choral
from choral.objectives.likelihoods import FixedGaussian

generator = torch.Generator().manual_seed(0)
x = torch.cat([torch.rand(60, 1, generator=generator) * 2 - 3, torch.rand(60, 1, generator=generator) * 2 + 1])
y = torch.sin(2 * x) + 0.1 * torch.randn(x.shape, generator=generator)

recipe = choral.recipes.anchored(
    budget=20 * 300, members=20, training=choral.Training(lr=0.01, optimizer=choral.Adam(), batch_size=60)
)
noise = FixedGaussian(precision=100.0)  # a standard deviation of 0.1, known here; two outputs would learn it
ensemble = choral.fit(
    lambda: choral.models.mlp(1, 1, hidden=(50,), activation="tanh"), (x, y), recipe, likelihood=noise
)

grid = torch.linspace(-4, 4, 17).unsqueeze(1)
p = ensemble.predict(grid)
print("     x    mean   epistemic std")
for place, mean, spread in zip(grid[:, 0], p.mean[:, 0], p.epistemic_std[:, 0]):
    print(f"{place:6.1f}  {mean:6.2f}  {spread:5.2f} {'#' * int(40 * spread)}")
