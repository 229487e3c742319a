"""
A pretrained network made uncertain
===================================

You have a trained network and do not want to train it again. There are two ways: no
training at all, or a few epochs for each member.
"""

# %%
# The trained network: an MLP with dropout, trained by a plain loop on 200 rows, so it is
# overconfident.
import torch
from sklearn.datasets import load_digits
from torch import nn

import choral

images, labels = load_digits(return_X_y=True)
order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
x = torch.tensor(images / 16, dtype=torch.float32)[order]
y = torch.tensor(labels)[order]
train, test = slice(0, 200), slice(1000, None)
torch.manual_seed(0)
network = nn.Sequential(
    nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10)
)
optimizer = torch.optim.Adam(network.parameters(), lr=0.003)
for _ in range(2000):
    rows = torch.randint(200, (64,))
    loss = nn.functional.cross_entropy(network(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# %%
# ``ensemble_of`` wraps the network as it is, for comparison. MC dropout keeps its dropout
# on at prediction, without training. Prune and Tune takes it as the parent of six children
# and trains each for a few epochs. Your network is copied, never changed.
data = (x[train], y[train])
mc_dropout = choral.recipes.mc_dropout(pretrained=True, epochs=0)
prune_and_tune = choral.recipes.prune_and_tune(parent_epochs=0)
ensembles = {
    "as it is": choral.ensemble_of([network], data=data),
    "mc_dropout": choral.fit(network, data, mc_dropout),
    "prune_and_tune": choral.fit(network, data, prune_and_tune, validation=None),
}
for name, ensemble in ensembles.items():
    scores = ensemble.evaluate(x[test], y[test])
    print(f"{name:15}", *(f"{n} {scores[n]:.3f}" for n in ("accuracy", "nll", "ece")))

# %%
# Entropy of test digits, and of noise, which resembles no digit:
import matplotlib.pyplot as plt

from choral import plots

noise = torch.rand(500, 64, generator=torch.Generator().manual_seed(0))
figure, axes = plt.subplots(1, 3, figsize=(9, 3), layout="constrained", sharey=True)
for ax, (name, ensemble) in zip(axes, ensembles.items()):
    p, q = ensemble.predict(x[test]), ensemble.predict(noise)
    plots.entropy_histograms(p, q, ax=ax).set_title(name)
    ax.label_outer()
    auroc = choral.metrics.auroc(p.entropy, q.entropy)
    print(f"{name:15} AUROC of noise {float(auroc):.3f}")
axes[0].legend()
plt.show()

# %%
# The decision: ``mc_dropout`` costs no training and improves the probabilities, so start
# with it. With labeled rows that were not trained on, ``ensemble.calibrated(x, y)``
# improves them further.
