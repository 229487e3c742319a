"""A method of your own in a few lines: train once, then keep a member after each of several restarts of the rate.

python examples/new_method.py
"""

import torch

import choral
from choral.plan import Constant, Cosine
from choral.tables.problems import load_problem

digits = load_problem("digits")

first = choral.Train(epochs=10, schedule=Constant(0.05), optimizer=choral.SGD(), batch_size=64)
again = choral.Train(epochs=4, schedule=Cosine(0.05), optimizer=choral.SGD(), batch_size=64, memory="carried")
recipe = choral.Recipe(name="mine", plan=choral.seq(choral.Reset(), first, choral.repeat(4, again, choral.Collect())))

print(choral.show(recipe))
ensemble = choral.fit(lambda: choral.models.mlp(64, 10, hidden=(64,)), (digits.x_train, digits.y_train), recipe)
p = ensemble.predict(digits.x_test)
print(f"{ensemble.members} members, NLL {choral.metrics.nll(p.probs, torch.tensor(digits.y_test)):.3f}")
