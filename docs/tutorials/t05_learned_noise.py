"""
Regression with learned noise
=============================

A network with two outputs per target learns a mean and a noise that depends on x. An ensemble adds what its members
disagree about.
"""

# %%
# Few rows, noise that grows with x, and a gap without data.
import matplotlib.pyplot as plt
import torch

import choral

draw = torch.Generator().manual_seed(0)
x = torch.cat([torch.rand(30, 1, generator=draw) * 2.5, 4 + torch.rand(30, 1, generator=draw) * 2])
y = torch.sin(1.5 * x) + (0.05 + 0.06 * x) * torch.randn(x.shape, generator=draw)

# %%
# Two outputs: choral takes them for a mean and a noise, and says so in the ensemble's repr.
build = lambda: choral.models.mlp(1, 2, hidden=(64, 64))
recipe = choral.recipes.deep_ensemble(
    members=8, epochs=250, training=choral.Training(optimizer="adam", lr=0.01, batch_size=40)
)
ensemble = choral.fit(build, (x, y), recipe, validation=None)
print(ensemble)

# %%
grid = torch.linspace(-1, 7, 200).unsqueeze(1)
p = ensemble.predict(grid)
at, mean = grid[:, 0], p.mean[:, 0]
figure, ax = plt.subplots(figsize=(8, 3.6), layout="constrained")
for spread, color, name in ((p.std, "C0", "noise and disagreement"), (p.aleatoric_std, "C1", "noise")):
    ax.fill_between(at, mean - 2 * spread[:, 0], mean + 2 * spread[:, 0], color=color, alpha=0.3, lw=0, label=name)
ax.plot(at, mean, color="C0")
ax.plot(x, y, ".", color="0.3", markersize=3)
ax.set(xlabel="x", ylabel="y, two standard deviations", ylim=(-3, 3))
ax.legend(loc="upper right")
plt.show()

# %%
# Are the intervals calibrated? On new data the histogram of ranks (PIT) should be flat. With 60 rows members fit some of the
# noise, so intervals are too narrow; ``ensemble.calibrated`` with rows of its own mends that.
from choral import plots

new = torch.cat([torch.rand(300, 1, generator=draw) * 2.5, 4 + torch.rand(300, 1, generator=draw) * 2])
target = torch.sin(1.5 * new) + (0.05 + 0.06 * new) * torch.randn(new.shape, generator=draw)
found = ensemble.predict(new)
scores = ensemble.evaluate(new, target)
print({name: round(scores[name], 3) for name in ("rmse", "nll", "coverage_50", "coverage_90", "coverage_95")})
figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
plots.pit(found, target, ax=axes[0])
plots.residuals(found, target, ax=axes[1])
plt.show()
