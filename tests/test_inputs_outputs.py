"""Networks of several inputs, and of outputs that are no tensor, through fit, resume, save, predict and judge."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tests.menagerie import MENAGERIE
from torch import Tensor, nn

import choral
from choral import recipes
from choral.comparison.evaluation import evaluate
from choral.recipes.training import Training

CALM = Training(optimizer="sgd", lr=0.02, batch_size=16)
METHODS = {
    "single": recipes.single(budget=2, training=CALM),
    "deep_ensemble": recipes.deep_ensemble(budget=4, members=2, training=CALM),
    "batch_ensemble": recipes.batch_ensemble(budget=2, members=2, training=CALM),
    "prune_and_tune": recipes.prune_and_tune(budget=3, members=2, training=CALM),
    "mc_dropout": recipes.mc_dropout(budget=2, rate=0.2, draws=2, training=CALM),
    "bnn": recipes.bnn(budget=2, draws=2, training=CALM),
    "sequential_anchored": recipes.sequential_anchored(budget=2, members=2, training=CALM),
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
    options = {"output": "logits", "run_dir": tmp_path / "broken"}
    with pytest.raises(Stop):
        choral.fit(
            Two,
            (X, Y),
            recipe,
            callbacks=stopping(2),
            compute=choral.Compute(checkpoint_seconds=0),
            **options,
        )
    choral.fit(Two, (X, Y), recipe, **options)
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
        choral.fit(Two, (X, Y), METHODS[method], output="logits", compute=choral.Compute(executor=e))
        for e in ("sequential", "vectorized")
    )
    assert torch.allclose(one.outputs(X), many.outputs(X), atol=2e-4)


LOADING = """
import sys, torch, choral
from tests.menagerie import MENAGERIE

for name, kind in zip(sys.argv[2::2], sys.argv[3::2]):
    trial = MENAGERIE[kind]
    loaded = choral.load(f"{sys.argv[1]}/{name}.choral", trial.build)
    torch.save(loaded.outputs(trial.some(8)), f"{sys.argv[1]}/{name}.pt")
"""


@pytest.mark.full
def test_saved_and_loaded_in_another_process(tmp_path):
    kinds = {"a": "two inputs", "b": "dense pixels", "c": "dense tokens", "d": "lazy layers", "e": "squeezed output"}
    wanted = {}
    for (name, kind), method in zip(kinds.items(), METHODS.values()):
        trial = MENAGERIE[kind]
        ensemble = choral.fit(trial.build, trial.data(), method, **trial.options)
        ensemble.save(tmp_path / f"{name}.choral")
        wanted[name] = ensemble.outputs(trial.some(8))
    pairs = [word for pair in kinds.items() for word in pair]
    subprocess.run(
        [sys.executable, "-c", LOADING, str(tmp_path), *pairs], check=True, timeout=120, cwd=Path(__file__).parents[1]
    )
    for name, outputs in wanted.items():
        assert torch.equal(torch.load(tmp_path / f"{name}.pt"), outputs), kinds[name]


@pytest.mark.parametrize("kind", ["dense pixels", "dense tokens"])
def test_dense_outputs_are_judged(kind):
    trial = MENAGERIE[kind]
    x, y = trial.data()
    found = evaluate(choral.fit(trial.build, (x, y), METHODS["deep_ensemble"], **trial.options), x, y)
    assert 0 <= found["scores"]["accuracy"] <= 1


def test_several_inputs_are_compared_and_reported(tmp_path):
    methods = [METHODS["single"], METHODS["batch_ensemble"]]
    table = choral.compare(Two, (X, Y, X, Y), methods, output="logits", run_dir=tmp_path, corruptions=())
    assert [row["method"] for row in table.rows] == ["single", "batch_ensemble"]
