"""
From a laptop to a cluster
==========================

A run consists of leaves that any process can train. The members have the same bytes
wherever they are trained.
"""

# %%
# On a laptop: one call. With ``run_dir`` it can be killed and resumed.
import tempfile

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

import choral
from choral import plots

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
data, test = (x[:1000], y[:1000]), (x[1000:], y[1000:])
build = lambda: choral.models.mlp(64, 10, hidden=(32,))
recipe = choral.recipes.deep_ensemble(members=4, epochs=20)
options = {
    "validation": None,
    "compute": choral.Compute(executor="sequential"),
    "seed": 0,
}
alone = choral.fit(build, data, recipe, **options)

# %%
# With any scheduler: prepare the run once, train its leaves anywhere, and collect them.
# Here, "anywhere" is a loop.
place = tempfile.mkdtemp()
choral.prepare(build, data, recipe, run_dir=place, **options)
for leaf in choral.leaves(place):
    print("leaf", leaf["path"])
    choral.run_leaf(place, leaf["path"], build, data, recipe, **options)
ensemble = choral.fit(build, data, recipe, run_dir=place, **options)

# %%
# The members are the same, to the last bit:
same = [
    all(torch.equal(a.params[n], b.params[n]) for n in a.params)
    for a, b in zip(alone.states(), ensemble.states())
]
print(same)
plots.training_curves(place)
plt.show()

# %%
# The decision: how many machines? At most as many as there are leaves, and only if the
# ensemble is worth its members. Here it is:
for name, found in (
    ("one member", choral.ensemble_of([ensemble.member(0)], data=data)),
    ("ensemble", ensemble),
):
    scores = found.evaluate(*test)
    print(f"{name:12}", *(f"{n} {scores[n]:.3f}" for n in ("accuracy", "nll", "ece")))

# %%
# With Ray, nothing else changes::
#
#     compute = choral.Compute(cluster=choral.Ray())  # choral.Ray("auto") joins a cluster
#     choral.fit(build, data, recipe, run_dir="/shared/run", compute=compute)
#
# On the command line: ``choral fit houses.csv --target price --cluster ray``. Workers that
# die are replaced.
