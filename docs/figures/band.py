"""Draw band.png, the figure of the README: one network and an ensemble on data with a gap.

python docs/figures/band.py
"""

from pathlib import Path

import matplotlib as mpl
import torch

import choral

mpl.use("agg")
import matplotlib.pyplot as plt

draw = torch.Generator().manual_seed(0)
x = torch.cat([torch.rand(60, 1, generator=draw) * 2 - 4, torch.rand(60, 1, generator=draw) * 2 + 1])
y = torch.sin(1.5 * x) + 0.1 * torch.randn(x.shape, generator=draw)
grid = torch.linspace(-6, 6, 300).unsqueeze(1)


def build() -> torch.nn.Module:
    """Return a small network."""
    return choral.models.mlp(1, 1, hidden=(64, 64))


training = choral.Training(optimizer="adam", lr=0.01, batch_size=32)
recipes = {
    "one network": choral.recipes.single(epochs=300, training=training),
    "ensemble of 10 anchored networks": choral.recipes.anchored(
        members=10, epochs=300, prior_std=0.5, training=training
    ),
}
noise = choral.objectives.FixedGaussian(precision=100.0)
figure, axes = plt.subplots(1, 2, figsize=(8, 2.9), sharey=True, layout="constrained")
for ax, (title, recipe) in zip(axes, recipes.items()):
    p = choral.fit(build, (x, y), recipe, likelihood=noise, validation=None, progress=False).predict(grid)
    at, mean = grid[:, 0], p.mean[:, 0]
    whole, own = 2 * p.std[:, 0], 2 * p.aleatoric_std[:, 0]
    ax.fill_between(at, mean - whole, mean + whole, color="C0", alpha=0.22, lw=0, label="noise and disagreement")
    ax.fill_between(at, mean - own, mean + own, color="C1", alpha=0.35, lw=0, label="noise (aleatoric)")
    ax.plot(at, mean, color="C0", label="mean")
    ax.plot(x, y, ".", color="0.25", markersize=2.5, label="training data")
    ax.set(title=title, xlabel="x", xlim=(-5.5, 5.5), ylim=(-3.4, 2.1))
    ax.spines[["top", "right"]].set_visible(False)
axes[0].set_ylabel("y, with two standard deviations")
axes[0].legend(loc="lower center", ncols=2, fontsize=7, frameon=False)
figure.savefig(Path(__file__).with_suffix(".png"), dpi=110)
