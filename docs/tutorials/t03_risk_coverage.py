"""
Which rows should a person check?
=================================

A classifier that can say "I do not know" hands its least certain rows to a person. The risk-coverage curve shows what is
left for the machine.
"""

# %%
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

import choral
from choral import plots

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
train, test = slice(0, 1000), slice(1000, None)
build = lambda: choral.models.mlp(64, 10, hidden=(64,))
ensemble = choral.fit(build, (x[train], y[train]), choral.recipes.snapshot(members=4, epochs=40), validation=None)
p = ensemble.predict(x[test])
scores = ensemble.evaluate(x[test], y[test])
print({name: round(scores[name], 3) for name in ("accuracy", "nll", "ece")})

# %%
# From the right: with all rows kept, the error is the error of the classifier. Leaving out the least certain ones lowers
# it.
plots.risk_coverage(p, y[test])
plt.show()

# %%
# The 5 % with the highest entropy go to a person.
order = p.entropy.argsort(descending=True)
few = len(p) // 20
ask, keep = order[:few], order[few:]
wrong = p.labels != y[test]
print(f"all rows: {wrong.float().mean():.1%} wrong")
print(f"the {few} rows to check: {wrong[ask].float().mean():.0%} wrong")
print(f"the other {len(keep)}: {wrong[keep].float().mean():.1%} wrong")

# %%
# What they look like, the most uncertain first.
figure, axes = plt.subplots(1, 8, figsize=(9, 1.7), layout="constrained")
for ax, i in zip(axes, ask):
    ax.imshow(x[test][i].view(8, 8), cmap="gray_r")
    ax.set_title(f"{p.labels[i]}? is {y[test][i]}", fontsize=8)
    ax.axis("off")
plt.show()

# %%
# Which digits are taken for which:
plots.confusion(p, y[test])
plt.show()
