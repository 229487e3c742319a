"""
Your CNN: calibrated and OOD-aware
================================================

Take a network as you wrote it, train four of it, and compare what it says of digits and of
digits turned upside down.
"""

# %%
# A small CNN with BatchNorm and a skip connection. Nothing in it knows of choral.
import torch
from sklearn.datasets import load_digits
from torch import nn

import choral


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.head = nn.Linear(16 * 8 * 8, 10)

    def forward(self, x):
        x = self.stem(x)
        return self.head((x + self.body(x)).flatten(1))


images, labels = load_digits(return_X_y=True)
order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
x = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8)[order]
y = torch.tensor(labels)[order]
train, held, test = slice(0, 800), slice(800, 1200), slice(1200, None)

# %%
# A deep ensemble: four networks from different random starts. ``show`` prints what will happen, and warns if it is too little.
recipe = choral.recipes.deep_ensemble(members=4, epochs=25)
print(choral.show(recipe, Residual, (x[train], y[train])))

# %%
ensemble = choral.fit(Residual, (x[train], y[train]), recipe)
calibrated = ensemble.calibrated(x[held], y[held])
for name, one in (("as trained", ensemble), ("calibrated", calibrated)):
    scores = one.evaluate(x[test], y[test])
    print(f"{name}: " + ", ".join(f"{n} {scores[n]:.3f}" for n in ("accuracy", "nll", "ece")))

# %%
# The ensemble is nearly calibrated as it is, so one temperature changes little here: NLL gains a bit, ECE does not.
#
# Reliability: on the dashed line confidence equals accuracy. Bars are the share of rows in each bin.
import matplotlib.pyplot as plt

from choral import plots

figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
plots.reliability(ensemble.predict(x[test]), y[test], ax=axes[0]).set_title("as trained")
plots.reliability(calibrated.predict(x[test]), y[test], ax=axes[1]).set_title("calibrated")
plt.show()

# %%
# Strange inputs: digits upside down. Their entropy should be higher, and mostly is.
known, strange = calibrated.predict(x[test]), calibrated.predict(x[test].flip(2))
auroc = choral.metrics.auroc(known.mutual_information, strange.mutual_information)
print(f"AUROC of mutual information: {float(auroc):.3f}")
plots.entropy_histograms(known, strange).legend()
plt.show()
