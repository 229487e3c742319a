"""Sets of labels that hold the truth nine times out of ten, from a deep ensemble and held-out data.

python examples/calibrated_sets.py
"""

import torch
from sklearn.datasets import load_digits

import choral

images, labels = load_digits(return_X_y=True)
order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
x, y = torch.tensor(images / 16.0, dtype=torch.float32)[order], torch.tensor(labels)[order]
train, held, test = slice(0, 600), slice(600, 1100), slice(1100, None)

recipe = choral.recipes.deep_ensemble(budget=24, members=4, training=choral.Training(lr=0.05, batch_size=64))
ensemble = choral.fit(lambda: choral.models.mlp(64, 10, hidden=(32,)), (x[train], y[train]), recipe)
ensemble = ensemble.calibrated(x[held], y[held], temperature="ensemble", level=0.9)

sets = ensemble.predict(x[test]).sets()
covered = sets[torch.arange(len(sets)), y[test]].double().mean()
print(f"sets of {sets.double().sum(1).mean():.2f} labels on average hold the truth in {covered:.1%} of cases")
