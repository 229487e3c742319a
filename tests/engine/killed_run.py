"""A small run with BatchNorm and dropout, for `test_kill.py` and `benchmarks/kill.py` to kill: METHOD FOLDER [EPOCHS]."""

import sys

import torch
from torch import nn

from choral.fit import fit
from choral.plan import SGD
from choral.recipes import make
from choral.training import Training


def build() -> nn.Module:
    """Return a ConvNet with BatchNorm and dropout."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(128, 3),
    )


def main(method: str, folder: str, epochs: str = "24") -> None:
    """Fit one method on made-up images, with a checkpoint after every epoch and phase."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, 1, 12, 12, generator=generator)
    y = torch.randint(3, (400,), generator=generator)
    training = Training(rate=0.05, optimiser=SGD(nesterov=True), batch_size=32)
    recipe = make(method, epochs=int(epochs), members=4, training=training)
    fit(build, (x, y), recipe, run_dir=folder, executor="sequential", checkpoint_seconds=0)


if __name__ == "__main__":
    main(*sys.argv[1:])
