"""Networks of several inputs, and of outputs that are no tensor, through fit, resume, save, predict and judge."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

import choral
from choral import recipes
from choral.judging.judge import evaluate
from choral.recipes.training import Training

CALM = Training(rate=0.02, batch_size=16)
METHODS = {
    "single": recipes.single(epochs=2, training=CALM),
    "deep_ensemble": recipes.deep_ensemble(epochs=4, members=2, training=CALM),
    "batch_ensemble": recipes.batch_ensemble(epochs=2, members=2, training=CALM),
    "prune_and_tune": recipes.prune_and_tune(epochs=6, members=2, training=CALM),
    "mc_dropout": recipes.mc_dropout(epochs=2, rate=0.2, draws=3, training=CALM),
    "bnn": recipes.bnn(epochs=2, draws=3, training=CALM),
    "sequential_anchored": recipes.sequential_anchored(epochs=6, members=2, training=CALM),
}


@dataclass
class Outcome:
    logits: Tensor
    hidden: Tensor


class Two(nn.Module):
    def __init__(self, outputs: int = 2):
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.first = nn.Linear(3, 6)
        self.norm = nn.BatchNorm1d(6)
        self.last = nn.Linear(6, outputs)

    def forward(self, numbers: Tensor, words: Tensor) -> Outcome:
        hidden = torch.tanh(self.norm(self.first(numbers)) + self.words(words).mean(1))
        return Outcome(self.last(hidden), hidden)


G = torch.Generator().manual_seed(0)
X = {"words": torch.randint(11, (40, 4), generator=G), "numbers": torch.randn(40, 3, generator=G)}
Y = (X["numbers"][:, 0] > 0).long()


class Stop(Exception):
    pass


def stopping(after):
    def hear(event):
        nonlocal after
        after -= 1
        if after < 0:
            raise Stop

    return hear


@pytest.mark.parametrize("method", METHODS)
def test_two_inputs_and_a_dataclass_out(method, tmp_path):
    recipe = METHODS[method]
    whole = choral.fit(Two, (X, Y), recipe, output="logits", run_dir=tmp_path / "whole")
    for after in range(2, 60):
        try:
            choral.fit(
                Two, (X, Y), recipe, output="logits", run_dir=tmp_path / "broken",
                checkpoint_seconds=0, listener=stopping(1 + after % 5),
            )  # fmt: skip
            break
        except Stop:
            continue
    one, other = ({p.name: p.read_bytes() for p in (tmp_path / d / "members").iterdir()} for d in ("whole", "broken"))
    assert one == other
    found = whole.predict(X)
    assert found.probs.shape == (40, 2)
    whole.save(tmp_path / "saved.choral")
    loaded = choral.load(tmp_path / "saved.choral", Two)
    assert torch.equal(loaded.outputs(X), whole.outputs(X))
    small = {n: t[:3] for n, t in reversed(X.items())}
    assert torch.allclose(loaded.outputs(small), whole.outputs(X)[:, :3], atol=1e-6)
    member = loaded.member(0)(**X)
    assert isinstance(member, Outcome)
    scores = evaluate(loaded, X, Y)["scores"]
    assert 0 <= scores["accuracy"] <= 1


@pytest.mark.parametrize("method", ["deep_ensemble", "batch_ensemble", "prune_and_tune"])
def test_both_executors_give_the_same_members(method):
    one, many = (
        choral.fit(Two, (X, Y), METHODS[method], output="logits", executor=e) for e in ("sequential", "vectorised")
    )
    assert torch.allclose(one.outputs(X), many.outputs(X), atol=2e-4)
