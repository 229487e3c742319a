"""
Compare methods at equal budget
===============================

Which method is best for your network and data? Give each method the same number of
floating-point operations, and use several seeds.
"""

# %%
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

import choral
from choral import plots

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
data = (x[:1000], y[:1000], x[1000:], y[1000:])
build = lambda: choral.models.mlp(64, 10, hidden=(64,))

# %%
# Every method has the operations of 120 epochs of one network. Three seeds show whether a
# difference is noise.
methods = ["single", "snapshot", "mc_dropout", "packed"]
table = choral.compare(build, data, methods, budget=120, seed=(0, 1, 2))
scores = ["method", "accuracy", "nll", "ece"]
print(table.to_frame()[scores].round(3).to_string(index=False))

# %%
# The decision, and what is within noise:
print(*table.findings, sep="\n\n")

# %%
# Prediction costs differ: each point is a method, with one standard deviation over the
# seeds.
plots.cost_vs_score(table)
plt.show()

# %%
# Would another member help? The NLL of random choices of members, with their spread:
recipe = choral.recipes.snapshot(members=6, epochs=60)
ensemble = choral.fit(build, data[:2], recipe, validation=None)
plots.ensemble_size(ensemble.predict(data[2]), data[3])
plt.show()

# %%
# On the command line, ``choral compare digits --methods single,snapshot,packed --budget 120
# --seeds 3 --out runs/digits`` does the same and writes a report.
