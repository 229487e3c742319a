"""Small networks and data for the conformance suite."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from choral import models
from choral.base import batches
from choral.base.batches import Batch
from choral.data.sources import as_inputs, parted
from choral.plan import SGD
from choral.recipes.training import Training

CALM = Training(lr=0.02, optimizer=SGD(momentum=0.9, nesterov=True, weight_decay=1e-4, clip=1.0), batch_size=16)


class Branching(nn.Module):
    """BatchNorm, dropout, a residual sum and nested containers, with a parameter no reset method owns."""

    def __init__(self, outputs: int):
        super().__init__()
        # smooth after the norm: a sparse method may leave a channel constant, and at the kink of a ReLU rounding would
        # change the gradient
        self.first = nn.Sequential(nn.Linear(6, 12), nn.Sequential(nn.BatchNorm1d(12), nn.SiLU()))
        self.inner = nn.Sequential(nn.Linear(12, 12), nn.ReLU(), nn.Dropout(0.2))
        self.scale = nn.Parameter(torch.randn(12) * 0.1 + 1)
        self.last = nn.Linear(12, outputs)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        last: Tensor = self.last((h + self.inner(h)) * self.scale)
        return last


class Convolving(nn.Module):
    """A convolutional network of three input channels with stride, BatchNorm and dropout."""

    def __init__(self, outputs: int):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, stride=2), nn.BatchNorm2d(4), nn.ReLU())
        self.more = nn.Sequential(
            nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Dropout2d(0.1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        self.last = nn.Linear(6, outputs)

    def forward(self, x: Tensor) -> Tensor:
        last: Tensor = self.last(self.more(self.body(x)))
        return last


def classification(rows: int = 82) -> tuple[Tensor, Tensor]:
    """Return rows of three classes; the last batch of 16 is a small one."""
    g = torch.Generator().manual_seed(1)
    x = torch.randn(rows, 6, generator=g)
    return x, (x[:, 0] + 0.5 * x[:, 1] > 0).long() + (x[:, 2] > 0.7).long()


def regression(rows: int = 82) -> tuple[Tensor, Tensor]:
    """Return rows with one noisy target."""
    g = torch.Generator().manual_seed(2)
    x = torch.randn(rows, 6, generator=g)
    return x, x[:, :1] - 0.5 * x[:, 1:2] + 0.1 * torch.randn(rows, 1, generator=g)


def images(rows: int = 48) -> tuple[Tensor, Tensor]:
    """Return images of three channels and two classes."""
    g = torch.Generator().manual_seed(3)
    x = torch.randn(rows, 3, 8, 8, generator=g)
    return x, (x.mean((1, 2, 3)) > 0).long()


@dataclass(frozen=True)
class Trial:
    """A network factory, its training data, and further options of `fit`."""

    build: Callable[[], nn.Module]
    data: Callable[[], Any]
    options: Mapping[str, Any] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Any]:
        """Yield the factory and the data."""
        return iter((self.build, self.data))

    def some(self, rows: int) -> Batch:
        """Return the first inputs, as `predict` takes them."""
        data = self.data()
        if isinstance(data, tuple):
            return batches.part(as_inputs(data[0]), slice(rows))
        items = [data.dataset[i] for i in range(min(rows, len(data.dataset)))]
        return as_inputs(parted(data.collate_fn(items), self.options.get("target"))[0])


PROBLEMS = {
    "classification": Trial(lambda: Branching(3), classification),
    "regression": Trial(lambda: models.mlp(6, 2, hidden=(8,)), regression),
    "images": Trial(lambda: Convolving(2), images),
}
