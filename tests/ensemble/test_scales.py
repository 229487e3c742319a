"""Numbers in another scale than training saw: bytes and floats, channels, counts far from zero, one loss for many rows."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import choral
from choral.base.errors import InputError
from choral.comparison.evaluation import evaluate
from choral.data import Normalize
from choral.objectives import Loss
from choral.objectives.likelihoods import About, NegativeBinomial
from choral.recipes import make
from choral.recipes.training import Training

G = torch.Generator().manual_seed(0)
X = torch.randint(0, 100, (60, 3), generator=G)
Y = (X[:, 0] > 50).long()
RECIPE = make("single", budget=2, training=Training(optimizer="sgd", lr=0.001, batch_size=20))


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))


def test_bytes_are_refused_where_training_saw_other_numbers(tmp_path: Path) -> None:
    ensemble = choral.fit(build, (X.float(), Y), RECIPE, run_dir=tmp_path / "run")
    ensemble.save(tmp_path / "e.choral")
    for one in (ensemble, choral.load(tmp_path / "run", build=build), choral.load(tmp_path / "e.choral", build=build)):
        with pytest.raises(InputError, match="x holds bytes"):
            one.predict(X.to(torch.uint8))
    flags = choral.fit(build, ((X > 50).float(), Y), RECIPE)
    with pytest.raises(InputError, match="x holds bytes"):
        flags.predict((X > 50).to(torch.uint8))
    unit = choral.fit(build, (X.float() / 255, Y), RECIPE)
    torch.testing.assert_close(unit.predict(X.to(torch.uint8)).probs, unit.predict(X.float() / 255).probs)


def test_what_bytes_hold_is_refused_as_floats_where_training_saw_bytes() -> None:
    ensemble = choral.fit(build, (X.to(torch.uint8), Y), RECIPE)
    with pytest.raises(InputError, match="fitted on bytes"):
        ensemble.predict(X.float())
    torch.testing.assert_close(ensemble.predict(X.float() / 255).probs, ensemble.predict(X.to(torch.uint8)).probs)


def test_a_frame_of_small_whole_numbers_is_judged_as_it_is_predicted() -> None:
    frame = pd.DataFrame(X.numpy(), columns=list("abc"))
    ensemble = choral.fit(build, (frame.astype("float32"), Y), RECIPE)
    small = frame.astype("uint8")
    found = evaluate(ensemble, small, Y.numpy())
    assert found["scores"]["nll"] == pytest.approx(ensemble.evaluate(small, Y)["nll"])


def test_tokens_as_bytes_are_warned_of() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.out = nn.Embedding(100, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.words(x.long()).mean(1))

    with pytest.warns(UserWarning, match="give tokens as x.long"):
        choral.fit(Tokens, (X.to(torch.uint8), Y), RECIPE)


def test_rows_of_another_width_are_not_spread_by_normalizing() -> None:
    ensemble = choral.fit(build, (X.float(), Y), RECIPE, transforms=(Normalize(mean=(5.0,) * 3, std=(2.0,) * 3),))
    with pytest.raises(InputError, match="means"):
        ensemble.predict(X[:2, :1].float())


def test_intervals_of_large_counts_begin_at_zero_where_much_of_them_is() -> None:
    outputs = torch.tensor([[[0.0, math.log(math.expm1(0.1))]]])
    found: Any = NegativeBinomial(base=200_000.0).predict(outputs, About())
    low, high = found.mixture_interval(0.9)
    assert float(low) == 0.0
    assert float(found.cdf(high) - found.cdf(low - 1)) >= 0.9


def test_weights_are_refused_where_a_loss_gives_one_number() -> None:
    y = X[:, :1].float()

    def one(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.mse_loss(outputs, targets)

    ensemble = choral.fit(lambda: nn.Linear(3, 1), (X.float(), y), RECIPE, likelihood=Loss(one))
    with pytest.raises(InputError, match="cannot be honored"):
        ensemble.evaluate(X.float(), y, sample_weight=np.ones(60))


def test_images_of_several_channels_are_taken_as_bytes_or_from_0_to_1_and_no_other() -> None:
    images = torch.randint(0, 256, (24, 3, 8, 8), generator=G, dtype=torch.uint8)

    def convolutions() -> nn.Module:
        layers = [nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 2)]
        return nn.Sequential(*layers)

    normalize = (Normalize(mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.2)),)
    for given, other in ((images, images.float() / 255), (images.float() / 255, images)):
        ensemble = choral.fit(convolutions, (given, Y[:24]), RECIPE, transforms=normalize)
        torch.testing.assert_close(ensemble.predict(given).probs, ensemble.predict(other).probs)
        torch.testing.assert_close(ensemble.predict(given[:1] * 0).probs, ensemble.predict(other[:1] * 0).probs)
    raw = choral.fit(convolutions, (images.float(), Y[:24]), RECIPE)
    with pytest.raises(InputError, match="x holds bytes"):
        raw.predict(images)
