"""
Regression with learned noise
=============================

A network with two outputs for each target learns a mean and a noise that depends on x. An
ensemble adds the disagreement of its members, which shows where data are missing.
"""

# %%
# 60 rows, noise that grows with x, and a gap without data.
import matplotlib.pyplot as plt
import torch

import choral
from choral import plots

draw = torch.Generator().manual_seed(0)


def sample(n):
    left, right = (torch.rand(n, 1, generator=draw) for _ in range(2))
    x = torch.cat([left * 2 - 3.5, right * 2 + 1.5])
    noise = (0.15 + 0.03 * x) * torch.randn(x.shape, generator=draw)
    return x, torch.sin(1.5 * x + 5.25) + noise


x, y = sample(30)

# %%
# choral takes the two outputs for a mean and a noise, as the ensemble's repr shows.
build = lambda: choral.models.mlp(1, 2, hidden=(64, 64))
training = choral.Training(optimizer="adam", lr=0.01, batch_size=60)
one = choral.fit(
    build, (x, y), choral.recipes.single(epochs=300, training=training), validation=None
)
recipe = choral.recipes.deep_ensemble(members=8, epochs=300, training=training)
ensemble = choral.fit(build, (x, y), recipe, validation=None)
print(ensemble)

# %%
grid = torch.linspace(-4.5, 4.5, 200).unsqueeze(1)
p = ensemble.predict(grid)
at, mean = grid[:, 0], p.mean[:, 0]
figure, ax = plt.subplots(figsize=(8, 3.6), layout="constrained")
for spread, color, name in (
    (p.std, "C0", "noise and disagreement"),
    (p.aleatoric_std, "C1", "noise (aleatoric)"),
):
    low, high = mean - 2 * spread[:, 0], mean + 2 * spread[:, 0]
    ax.fill_between(at, low, high, color=color, alpha=0.3, lw=0, label=name)
ax.plot(at, mean, color="C0")
ax.plot(x, y, ".", color="0.3", markersize=3)
ax.set(xlabel="x", ylabel="y, two standard deviations", ylim=(-3, 3))
ax.legend(loc="lower left")
plt.show()

# %%
# Are the intervals calibrated? On new data the histogram of ranks (PIT) should be flat.
# Conformal intervals, fitted on 120 further rows, reach their coverage by construction.
new, target = sample(300)
calibrated = ensemble.calibrated(*sample(60), level=0.9)
for name, found in (("one network", one), ("ensemble", ensemble)):
    scores = found.evaluate(new, target)
    shown = {n: round(scores[n], 3) for n in ("rmse", "nll", "coverage_90")}
    print(f"{name:12}", shown)
low, high = calibrated.predict(new).conformal_interval()
inside = ((low <= target) & (target <= high)).float().mean()
print(f"conformal 90 % intervals cover {inside:.0%}")
figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
plots.pit(ensemble.predict(new), target, ax=axes[0])
plots.residuals(ensemble.predict(new), target, ax=axes[1])
plt.show()

# %%
# The decision: where to measure next? Where epistemic uncertainty is highest, since only
# that part shrinks with more data.
inner = grid.abs() <= 3.5
best = grid[inner][p.epistemic_std[inner].argmax()]
print(f"measure next at x = {best:.1f}")
