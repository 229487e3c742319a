"""Awkward networks and data as real users have them, small enough to be trained by every method.

`check_recipe(recipe, problems=MENAGERIE)` runs the conformance suite over all of them; what a method cannot take it must
refuse in one sentence before training.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from choral.layers.features import quantile_edges
from choral.models.tabular import tabular
from choral.objectives.likelihoods import Categorical
from choral.testing.problems import Trial

_ROWS = 34  # two batches of 16 and one of two


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _features(rows: int = _ROWS, width: int = 6) -> Tensor:
    return torch.randn(rows, width, generator=_generator(7))


def _classes(x: Tensor) -> Tensor:
    return (x.flatten(1).mean(1) > 0).long()


def _labeled(rows: int = _ROWS) -> tuple[Tensor, Tensor]:
    x = _features(rows)
    return x, _classes(x)


def _pictures() -> tuple[Tensor, Tensor]:
    x = torch.randn(_ROWS, 3, 8, 8, generator=_generator(8))
    return x, _classes(x)


class Grouped(nn.Module):
    """Three input channels, strides, GroupNorm and a norm without scale."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 8, 1, stride=2)
        )
        self.norm, self.last = nn.BatchNorm2d(8, affine=False), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        result: Tensor = self.last(self.norm(self.body(x)).relu().mean((2, 3)))
        return result


class Attending(nn.Module):
    """A transformer layer with dropout over four steps."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.1, batch_first=True)
        self.last = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        result: Tensor = self.last(self.layer(self.first(x)).mean(1))
        return result


class Recurrent(nn.Module):
    """An LSTM over four steps."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.last = nn.LSTM(3, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        result: Tensor = self.last(self.body(x)[0][:, -1])
        return result


def _frozen() -> nn.Module:
    network = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    network[0].requires_grad_(False)
    return network


class Tied(nn.Module):
    """One matrix reads words and writes them."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.inner = nn.Embedding(5, 8), nn.Linear(8, 8)
        self.last = nn.Linear(8, 5, bias=False)
        self.last.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of words."""
        result: Tensor = self.last(torch.tanh(self.inner(self.words(x).mean(1))))
        return result


class Loose(nn.Module):
    """Parameters outside layers, a buffer that counts calls, and one that torch does not save."""

    calls: Tensor
    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(6) + 0.5)
        self.body = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("shift", torch.full((6,), 0.25), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        if self.training:
            self.calls.add_(1)
        result: Tensor = self.body(x * self.scale + self.shift)
        return result


class Lazy(nn.Module):
    """Layers that take their sizes from the first input."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.LazyConv2d(6, 3, stride=2), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        result: Tensor = self.body(x)
        return result


class TwoInputs(nn.Module):
    """Words and numbers; returns its logits among other things."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.first = nn.Embedding(7, 8), nn.Linear(3, 8)
        self.norm, self.last = nn.LayerNorm(8), nn.Linear(8, 2)

    def forward(self, numbers: Tensor, words: Tensor) -> dict[str, Any]:
        """Return a dict of logits and hidden values."""
        hidden = torch.tanh(self.norm(self.first(numbers) + self.words(words).mean(1)))
        return {"logits": self.last(hidden), "hidden": hidden, "loss": None}


def _two_inputs() -> tuple[dict[str, Tensor], Tensor]:
    x = _features(width=3)
    return {"numbers": x, "words": torch.randint(7, (_ROWS, 4), generator=_generator(9))}, _classes(x)


class Squeezed(nn.Module):
    """Regression that returns (batch,)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return one number for each row."""
        result: Tensor = self.body(x).squeeze(-1)
        return result


def _real() -> tuple[Tensor, Tensor]:
    x = _features()
    return x, x[:, 0] * 2 + 1


class Segmenting(nn.Module):
    """A small U-Net: down, up, and a path across."""

    def __init__(self) -> None:
        super().__init__()
        self.across, self.norm = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.down, self.up = nn.Conv2d(6, 6, 3, stride=2, padding=1), nn.ConvTranspose2d(6, 6, 2, stride=2)
        self.last = nn.Conv2d(6, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (batch, class, height, width)."""
        across = self.norm(self.across(x)).relu()
        result: Tensor = self.last(across + self.up(self.down(across).relu()))
        return result


def _pixels() -> tuple[Tensor, Tensor]:
    x = torch.randn(18, 3, 4, 4, generator=_generator(10))
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 1).long()


class Tagging(nn.Module):
    """A label for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.mix, self.last = nn.Embedding(9, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (batch, time, class)."""
        words = self.words(x)
        result: Tensor = self.last(torch.tanh(self.mix(words + F.pad(words, (0, 0, 1, 0))[:, :-1])))
        return result


def _tokens() -> tuple[Tensor, Tensor]:
    x = torch.randint(9, (_ROWS, 5), generator=_generator(11))
    y = x % 3
    y[:, -1] = -1  # padding, which does not count
    return x, y


class Masked(nn.Module):
    """Padded sequences with a mask, padded anew in every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.inner, self.last = nn.Embedding(9, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return logits."""
        counted = mask.unsqueeze(-1)
        mean = (self.words(tokens) * counted).sum(1) / counted.sum(1)
        result: Tensor = self.last(torch.tanh(self.inner(mean)))
        return result


class _Sentences(Dataset[Any]):
    def __len__(self) -> int:
        return _ROWS

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"tokens": (torch.arange(2 + index % 5) * (index + 1)) % 9, "label": index % 2}


def padded(items: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Return sentences of different lengths as one batch, as long as its longest, with a mask."""
    length = max(len(item["tokens"]) for item in items)
    tokens = torch.stack([F.pad(item["tokens"], (0, length - len(item["tokens"]))) for item in items])
    mask = torch.stack([torch.arange(length) < len(item["tokens"]) for item in items])
    return {"tokens": tokens, "mask": mask, "label": torch.tensor([item["label"] for item in items])}


def _sentences() -> DataLoader[Any]:
    return DataLoader(_Sentences(), batch_size=16, collate_fn=padded)


def _plain() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))


def _columns() -> tuple[Tensor, Tensor]:
    x, y = _labeled()
    return torch.cat([x[:, :4], (x[:, 4:] > 0).float()], 1), y


def _table() -> nn.Module:
    edges = quantile_edges(_columns()[0], bins=4)
    return tabular(6, 2, hidden=(8, 8), edges=edges, embedding_width=3, embed_all=False)


def _unbalanced() -> tuple[Tensor, Tensor]:
    x = _features()
    return x, (x[:, 0] > 1.7).long()


def _in_double() -> tuple[Tensor, Tensor]:
    x, y = _labeled()
    return x.double(), y


def _bytes() -> tuple[Tensor, Tensor]:
    x = torch.randint(256, (_ROWS, 3, 8, 8), generator=_generator(12), dtype=torch.uint8)
    return x, _classes(x.float() - 127)


def _steps() -> tuple[Tensor, Tensor]:
    x = _features(width=12).unflatten(1, (4, 3))
    return x, _classes(x)


def _of(build: Callable[[], nn.Module], data: Callable[[], Any], **options: Any) -> Trial:
    return Trial(build, data, options)


MENAGERIE: dict[str, Trial] = {
    "attention": _of(Attending, _steps),
    "bytes": _of(Grouped, _bytes),
    "dense pixels": _of(Segmenting, _pixels, likelihood=Categorical(axis=1)),
    "dense tokens": _of(Tagging, _tokens, likelihood=Categorical(axis=-1, ignore=-1)),
    "double precision": _of(lambda: _plain().double(), _in_double),
    "embedded columns": _of(_table, _columns),
    "frozen layer": _of(_frozen, _labeled),
    "group norm and strides": _of(Grouped, _pictures),
    "lazy layers": _of(Lazy, _pictures),
    "loose parameters": _of(Loose, _labeled),
    "lstm": _of(Recurrent, _steps),
    "padded sequences": _of(Masked, _sentences, target="label"),
    "squeezed output": _of(Squeezed, _real),
    "tied weights": _of(Tied, lambda: (_tokens()[0] % 5, _tokens()[0][:, 0] % 5)),
    "three rows": _of(_plain, lambda: _labeled(3)),
    "two inputs": _of(TwoInputs, _two_inputs, output="logits"),
    "unbalanced classes": _of(_plain, _unbalanced),
    "weighted rows": _of(_plain, lambda: (*_labeled(), torch.arange(_ROWS) % 3)),
}
