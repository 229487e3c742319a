"""
Conformal sets
==============

Sets of classes that hold the truth nine times out of ten, guaranteed on average for rows like the calibration rows.
"""

# %%
# Three parts: train, calibrate, test. Calibration rows must not be trained on.
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

import choral

images, labels = load_digits(return_X_y=True)
order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
x, y = torch.tensor(images / 16, dtype=torch.float32)[order], torch.tensor(labels)[order]
train, held, test = slice(0, 600), slice(600, 1100), slice(1100, None)
build = lambda: choral.models.mlp(64, 10, hidden=(32,))
recipe = choral.recipes.deep_ensemble(members=4, epochs=27, training=choral.Training(lr=0.003, batch_size=32))
ensemble = choral.fit(build, (x[train], y[train]), recipe, validation=None)
scores = ensemble.evaluate(x[test], y[test])
print({name: round(scores[name], 3) for name in ("accuracy", "nll", "ece")})

# %%
# ``level`` makes sets of that coverage; ``temperature`` makes probabilities calibrated as well.
for level in (0.8, 0.9, 0.95, 0.99):
    fitted = ensemble.calibrated(x[held], y[held], temperature="ensemble", level=level)
    sets = fitted.predict(x[test]).sets()
    covered = sets[torch.arange(len(sets)), y[test]].double().mean()
    print(f"level {level:.2f}: {covered:.3f} covered, {sets.double().sum(1).mean():.2f} classes on average")

# %%
# The guarantee is an average over calibration and test rows; in one split, coverage is off by a few points either way.
#
# Sets are large where the network is unsure. Some rows with more than one class at 99 %:
many = sets.sum(1).argsort(descending=True)[:8]
figure, axes = plt.subplots(1, 8, figsize=(9, 1.7), layout="constrained")
for ax, i in zip(axes, many):
    ax.imshow(x[test][i].view(8, 8), cmap="gray_r")
    ax.set_title(", ".join(str(int(c)) for c in sets[i].nonzero()), fontsize=8)
    ax.axis("off")
plt.show()

# %%
# For numbers the same call gives intervals: ``ensemble.calibrated(x, y, level=0.9).predict(x).interval()``.
