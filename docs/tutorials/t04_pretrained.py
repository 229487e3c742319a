"""
A pretrained network made uncertain
===================================

You have a trained network and no wish to train it again. Two ways: no training at all, or a few epochs per member.
"""

# %%
# The trained network: an MLP with dropout, trained by a plain loop on 200 rows, so it is too sure of itself.
import torch
from sklearn.datasets import load_digits
from torch import nn

import choral

images, labels = load_digits(return_X_y=True)
order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
x, y = torch.tensor(images / 16, dtype=torch.float32)[order], torch.tensor(labels)[order]
train, test = slice(0, 200), slice(1000, None)
torch.manual_seed(0)
network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10))
optimizer = torch.optim.Adam(network.parameters(), lr=0.003)
for _ in range(2000):
    rows = torch.randint(200, (64,))
    loss = nn.functional.cross_entropy(network(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# %%
# 1. ``ensemble_of`` wraps it as it is: one member, for comparison. 2. MC dropout keeps its dropout on: no training. 3. Prune
# and Tune takes it as the parent of six children, which are tuned for some epochs each. Your network is copied, never
# changed.
data = (x[train], y[train])
ensembles = {
    "as it is": choral.ensemble_of([network], data=data),
    "mc_dropout": choral.fit(network, data, choral.recipes.mc_dropout(pretrained=True, epochs=0)),
    "prune_and_tune": choral.fit(network, data, choral.recipes.prune_and_tune(parent_epochs=0), validation=None),
}
for name, ensemble in ensembles.items():
    scores = ensemble.evaluate(x[test], y[test])
    print(f"{name:15}" + ", ".join(f"{n} {scores[n]:.3f}" for n in ("accuracy", "nll", "ece")))

# %%
# What they say of noise, which no digit resembles. One network cannot disagree with itself.
import matplotlib.pyplot as plt

from choral import plots

noise = torch.rand(500, 64, generator=torch.Generator().manual_seed(0))
figure, axes = plt.subplots(1, 3, figsize=(9, 3), layout="constrained", sharey=True)
for ax, (name, ensemble) in zip(axes, ensembles.items()):
    plots.entropy_histograms(ensemble.predict(x[test]), ensemble.predict(noise), ax=ax).set_title(name)
axes[0].legend()
plt.show()

# %%
# MC dropout and the children disagree more about noise than about digits, and their probabilities of digits are better, without
# a new parent. With rows of its own, ``ensemble.calibrated(x, y)`` does more.
