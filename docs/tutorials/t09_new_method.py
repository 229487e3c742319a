"""
A new method in ten minutes
===========================

A method is a plan: train, reset, prune, keep. Write one, print it, run it, and let choral check it.
"""

# %%
# The idea: train once, then restart the learning rate four times and keep a member after each restart.
import matplotlib.pyplot as plt

import choral
from choral import plots
from choral.plan import Constant, Cosine
from choral.tables.problems import load_problem

decay = choral.AdamW(weight_decay=0.1)
first = choral.Train(epochs=40, schedule=Constant(0.02), optimizer=decay, batch_size=64)
again = choral.Train(epochs=30, schedule=Cosine(0.02), optimizer=decay, batch_size=64, memory="carried")
recipe = choral.Recipe(name="mine", plan=choral.seq(choral.Reset(), first, choral.repeat(4, again, choral.Collect())))
print(choral.show(recipe))

# %%
# It runs like any other: resumable, seeded, saved, compared.
digits = load_problem("digits")
build = lambda: choral.models.mlp(64, 10, hidden=(64,))
ensemble = choral.fit(build, (digits.x_train, digits.y_train), recipe, validation=None)
p = ensemble.predict(digits.x_test)
scores = ensemble.evaluate(digits.x_test, digits.y_test)
print(f"{ensemble.members} members, accuracy {scores['accuracy']:.3f}, NLL {scores['nll']:.3f}")

# %%
# Do members differ? A shade is the share of rows on which two members name different classes.
plots.agreement(p, digits.y_test)
plt.show()

# %%
# ``choral.testing.check_recipe(recipe)`` runs the checks that every method of choral passes: budget, resuming, saving,
# seeds. Branches instead of rounds are ``choral.fork(4, ...)``. ``CONTRIBUTING.md`` adds a method to the library.
