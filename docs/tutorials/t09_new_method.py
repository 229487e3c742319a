"""
A new method in ten minutes
===========================

A method is a plan: train, reset, prune, collect. Write one, print it, run it, and let
choral test it.
"""

# %%
# The idea: train once, then restart the learning rate four times and keep a member after
# each restart.
import matplotlib.pyplot as plt

import choral
from choral import plots
from choral.plan import Constant, Cosine
from choral.tables.problems import load_problem

decay = choral.AdamW(weight_decay=0.1)
shared = {"optimizer": decay, "batch_size": 64}
first = choral.Train(epochs=40, schedule=Constant(0.02), **shared)
again = choral.Train(epochs=30, schedule=Cosine(0.02), memory="carried", **shared)
plan = choral.seq(choral.Reset(), first, choral.repeat(4, again, choral.Collect()))
recipe = choral.Recipe(name="mine", plan=plan)
print(choral.show(recipe))

# %%
# It runs like every other method: resumable, seeded, saved and compared.
digits = load_problem("digits")
build = lambda: choral.models.mlp(64, 10, hidden=(64,))
data = (digits.x_train, digits.y_train)
ensemble = choral.fit(build, data, recipe, validation=None)

# %%
# Do members differ? A shade is the share of rows for which two members predict different
# classes.
plots.agreement(ensemble.predict(digits.x_test), digits.y_test)
plt.show()

# %%
# Is it better than one network that trains as long, with the same optimizer?
plain = choral.Train(epochs=160, schedule=Cosine(0.02), **shared)
one = choral.Recipe(
    name="one", plan=choral.seq(choral.Reset(), plain, choral.Collect())
)
test = (digits.x_test, digits.y_test)
for name, found in (
    ("one network", choral.fit(build, data, one, validation=None)),
    ("mine", ensemble),
):
    scores = found.evaluate(*test)
    print(f"{name:12}", *(f"{n} {scores[n]:.3f}" for n in ("accuracy", "nll", "ece")))

# %%
# The decision: keep a method if ``choral.compare`` with several seeds finds it better on
# data that you did not develop it on. ``choral.testing.check_recipe(recipe)`` runs the
# checks that every method of choral passes: budget, resuming, saving, seeds.
# ``CONTRIBUTING.md`` adds a method to the library.
