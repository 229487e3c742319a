"""
Which rows should a person check?
=================================

A classifier that can say "I do not know" hands its least certain rows to a person. The
risk-coverage curve shows the error of the rows that remain.
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
data = (x[train], y[train])
one = choral.fit(build, data, "single")
ensemble = choral.fit(build, data, "snapshot")
for name, found in (("one network", one), ("snapshot", ensemble)):
    scores = found.evaluate(x[test], y[test])
    print(f"{name:12}", *(f"{n} {scores[n]:.3f}" for n in ("accuracy", "nll", "ece")))

# %%
# At the right end all rows are kept, and the error is that of the classifier. Further left,
# only its most certain rows are kept.
p = ensemble.predict(x[test])
ax = plots.risk_coverage(one.predict(x[test]), y[test], label="one network")
plots.risk_coverage(p, y[test], ax=ax, label="snapshot")
ax.legend()
plt.show()

# %%
# The decision: the 5 % with the highest entropy go to a person.
order = p.entropy.argsort(descending=True)
few = len(p) // 20
check, rest = order[:few], order[few:]
wrong = p.labels != y[test]
print(f"all rows: {wrong.float().mean():.1%} wrong")
print(f"the {few} rows to check: {wrong[check].float().mean():.0%} wrong")
print(f"the other {len(rest)}: {wrong[rest].float().mean():.1%} wrong")

# %%
# What they look like, the most uncertain first:
figure, axes = plt.subplots(1, 8, figsize=(9, 1.7), layout="constrained")
for ax, i in zip(axes, check):
    ax.imshow(x[test][i].view(8, 8).numpy(), cmap="gray_r")
    ax.set_title(f"{p.labels[i]}? is {y[test][i]}", fontsize=8)
    ax.axis("off")
plt.show()

# %%
# Which digits are confused:
plots.confusion(p, y[test])
plt.show()
