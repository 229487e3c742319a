"""Prune and Tune on a network of your own: six members from one trained parent, and what they do not know.

python examples/own_network.py
"""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import choral


class Residual(nn.Module):
    """A small network with a skip connection and BatchNorm, written without choral in mind."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.head = nn.Linear(16 * 8 * 8, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of ten digits."""
        x = self.stem(x)
        return self.head((x + self.body(x)).flatten(1))


images, labels = load_digits(return_X_y=True)
x = torch.tensor(images / 16.0, dtype=torch.float32).view(-1, 1, 8, 8)
y = torch.tensor(labels)
train, test = slice(0, 1400), slice(1400, None)

recipe = choral.recipes.prune_and_tune(budget=20, members=6, training=choral.Training(lr=0.02, batch_size=64))
print(choral.show(recipe, Residual, (x[train], y[train])))
ensemble = choral.fit(Residual, (x[train], y[train]), recipe)

known, strange = ensemble.predict(x[test]), ensemble.predict(x[test].flip(2))  # digits, and digits upside down
accuracy = (known.labels == y[test]).double().mean()
print(
    f"accuracy {accuracy:.3f}; mean entropy {known.entropy.mean():.2f} nats, upside down {strange.entropy.mean():.2f}"
)
