"""
From a laptop to a cluster
==========================

A run is a set of leaves that any process can train. The members have the same bytes wherever they are trained.
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
build = lambda: choral.models.mlp(64, 10, hidden=(32,))
recipe = choral.recipes.deep_ensemble(members=4, epochs=12)
one = choral.Compute(executor="sequential")
alone = choral.fit(build, (x, y), recipe, validation=None, compute=one)

# %%
# On any scheduler: prepare the run once, train its leaves anywhere, put it together. Here "anywhere" is a loop.
place = tempfile.mkdtemp()
options = {"validation": None, "compute": one}
choral.prepare(build, (x, y), recipe, run_dir=place, **options)
for leaf in choral.leaves(place):
    print("leaf", leaf["path"])
    choral.run_leaf(place, leaf["path"], build, (x, y), recipe, **options)
ensemble = choral.fit(build, (x, y), recipe, run_dir=place, **options)

# %%
# The same members, to the last bit:
same = [all(torch.equal(a.params[n], b.params[n]) for n in a.params) for a, b in zip(alone.states(), ensemble.states())]
print(same)
plots.training_curves(place)
plt.show()

# %%
# With Ray nothing else changes::
#
#     compute = choral.Compute(cluster=choral.Ray())  # this machine; choral.Ray("auto") joins a cluster
#     choral.fit(build, (x, y), recipe, run_dir="/shared/run", compute=compute)
#
# In the shell: ``choral fit houses.csv --target price --cluster ray``. Workers that die are replaced.
