"""
Conformal sets
==============

Sets of classes that contain the true class at a chosen rate, guaranteed on average for
rows like the calibration rows.
"""

# %%
# Digits from a noisy camera, in three parts: train, calibrate, test. Calibration rows must
# not be trained on.
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

import choral

images, labels = load_digits(return_X_y=True)
draw = torch.Generator().manual_seed(0)
order = torch.randperm(len(labels), generator=draw)
x = torch.tensor(images / 16, dtype=torch.float32)[order]
x = x + 0.3 * torch.randn(x.shape, generator=draw)
y = torch.tensor(labels)[order]
train, held, test = slice(0, 600), slice(600, 1000), slice(1000, None)
build = lambda: choral.models.mlp(64, 10, hidden=(128,))
data = (x[train], y[train])
fitted = {
    "one network": choral.fit(build, data, "single", validation=None),
    "deep_ensemble": choral.fit(build, data, "deep_ensemble", validation=None),
}
for name, ensemble in fitted.items():
    scores = ensemble.evaluate(x[test], y[test])
    print(f"{name:14}", *(f"{n} {scores[n]:.3f}" for n in ("accuracy", "nll", "ece")))

# %%
# ``level`` is the coverage of the sets. Both models reach it, up to the noise of one split;
# the better one has smaller sets, most clearly at high levels.
at = torch.arange(len(y[test]))
for level in (0.99, 0.95, 0.9):
    for name, ensemble in fitted.items():
        rule = ensemble.calibrated(x[held], y[held], level=level)
        sets = rule.predict(x[test]).sets()
        covered, size = sets[at, y[test]].double().mean(), sets.double().sum(1).mean()
        print(f"{level:.0%} {name:14} {covered:.1%} covered, {size:.2f} classes")

# %%
# Sets are large where the network is uncertain. Rows with the largest sets at 90 %:
many = sets.sum(1).argsort(descending=True)[:8]
figure, axes = plt.subplots(1, 8, figsize=(9, 1.7), layout="constrained")
for ax, i in zip(axes, many):
    ax.imshow(x[test][i].view(8, 8).numpy(), cmap="gray_r")
    ax.set_title(", ".join(str(int(c)) for c in sets[i].nonzero()), fontsize=8)
    ax.axis("off")
plt.show()

# %%
# The decision: a set with a single class is accepted, all others go to a person.
alone = sets.sum(1) == 1
right = sets[at, y[test]][alone].double().mean()
print(
    f"{alone.double().mean():.0%} of the rows are decided, {right:.1%} of them correctly"
)

# %%
# For numbers the same call gives intervals:
# ``ensemble.calibrated(x, y, level=0.9).predict(x).conformal_interval()``.
