"""A small run for `test_kill.py` and `benchmarks/kill.py` to kill: METHOD FOLDER [EPOCHS] [OPTIMIZER] [EXECUTOR] [BY]."""

import sys
from typing import Any

import torch
from torch import nn

from choral import Compute
from choral.fit import fit
from choral.plan import SGD, Adam, AdamW, EarlyStopping
from choral.recipes import METHODS, make
from choral.recipes.training import Training

TRAININGS = {
    "momentum": Training(lr=0.05, optimizer=SGD(weight_decay=1e-4), batch_size=32),
    "nesterov": Training(lr=0.05, optimizer=SGD(nesterov=True, clip=2.0), batch_size=32),
    "adam": Training(lr=0.003, optimizer=Adam(), batch_size=32),
    "adamw": Training(lr=0.003, optimizer=AdamW(), batch_size=32),
}


def build() -> nn.Module:
    """Return a ConvNet for three channels with stride, BatchNorm and dropout."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 12, 3, stride=2, bias=False),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(48, 3),
    )


def main(
    method: str,
    folder: str,
    epochs: str = "24",
    optimizer: str = "nesterov",
    executor: str = "sequential",
    by: str = "",
) -> None:
    """Fit one method on made-up images, with a checkpoint after every epoch and phase; `by` asks for early stopping."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(160, 3, 12, 12, generator=generator)
    y = torch.randint(3, (160,), generator=generator)
    choice = METHODS[method].options.get("members")
    members = None if choice is None or choice.default in (1, None) else 4
    recipe = make(method, budget=int(epochs), members=members, training=TRAININGS[optimizer])
    watched: dict[str, Any] = {"validation": 0.25, "early_stopping": EarlyStopping(patience=3, by=by)} if by else {}  # type: ignore[arg-type]  # a word of the command line
    fit(build, (x, y), recipe, run_dir=folder, compute=Compute(executor=executor, checkpoint_seconds=0), **watched)  # type: ignore[arg-type]  # as above


if __name__ == "__main__":
    main(*sys.argv[1:])
