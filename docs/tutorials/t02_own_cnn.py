"""
Your CNN: calibrated and OOD-aware
==================================

Take a network as it is, train five of them, and use their disagreement to reject inputs
that are unlike the training data.
"""

# %%
# A small CNN with BatchNorm and a skip connection. Nothing in it depends on choral.
import torch
from sklearn.datasets import load_digits
from torch import nn

import choral


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        conv = lambda c: nn.Conv2d(c, 16, 3, padding=1)
        self.stem = nn.Sequential(conv(1), nn.BatchNorm2d(16), nn.ReLU())
        self.body = nn.Sequential(conv(16), nn.BatchNorm2d(16), nn.ReLU())
        self.head = nn.Linear(16 * 8 * 8, 10)

    def forward(self, x):
        x = self.stem(x)
        return self.head((x + self.body(x)).flatten(1))


images, labels = load_digits(return_X_y=True)
order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
x = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8)[order]
x += 0.2 * torch.randn(
    x.shape, generator=torch.Generator().manual_seed(1)
)  # a noisy scanner
y = torch.tensor(labels)[order]
train, held, test = slice(0, 300), slice(300, 700), slice(700, None)

# %%
# A deep ensemble: five networks from different random starts. ``show`` prints the plan and
# its cost, and warns if the budget is too small.
recipe = choral.recipes.deep_ensemble(members=5, epochs=64)
print(choral.show(recipe, Residual, (x[train], y[train])))

# %%
# One network, the ensemble, and the ensemble with a temperature fitted on held-out rows. ECE
# is the mean distance between confidence and accuracy:
data = (x[train], y[train])
one = choral.fit(Residual, data, choral.recipes.single(epochs=64), validation=None)
ensemble = choral.fit(Residual, data, recipe, validation=None)
calibrated = ensemble.calibrated(x[held], y[held], temperature="ensemble")
fitted = {"one network": one, "ensemble": ensemble, "calibrated": calibrated}
for name, found in fitted.items():
    scores = found.evaluate(x[test], y[test])
    print(f"{name:12}", *(f"{n} {scores[n]:.3f}" for n in ("accuracy", "nll", "ece")))

# %%
# On the dashed line, confidence equals accuracy. Bars are the share of rows in each bin;
# points with few rows are small.
import matplotlib.pyplot as plt

from choral import plots

figure, axes = plt.subplots(1, 3, figsize=(9, 3.1), layout="constrained", sharey=True)
for ax, (name, found) in zip(axes, fitted.items()):
    plots.reliability(found.predict(x[test]), y[test], ax=ax).set_title(name)
    ax.label_outer()
plt.show()

# %%
# Out-of-distribution inputs: digits upside down. AUROC is the probability that such a row
# has a higher score than a test row; 0.5 is chance.
known, flipped = calibrated.predict(x[test]), calibrated.predict(x[test].flip(2))
for score in ("entropy", "mutual_information"):
    auroc = choral.metrics.auroc(getattr(known, score), getattr(flipped, score))
    print(f"AUROC of {score}: {float(auroc):.3f}")
plots.entropy_histograms(known, flipped).legend()
plt.show()

# %%
# The decision: reject rows whose mutual information is above the 95th percentile of the
# held-out rows.
limit = calibrated.predict(x[held]).mutual_information.quantile(0.95)
for name, p in (("test digits", known), ("upside down", flipped)):
    print(f"{name}: {(p.mutual_information > limit).float().mean():.0%} rejected")
kept = known.mutual_information <= limit
print(f"accuracy of the kept: {(known.labels == y[test])[kept].float().mean():.3f}")
