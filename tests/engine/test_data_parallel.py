"""A batch taken in parts gives the step of the whole batch: one part after the other, or one in each process."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.engine import shared_run
from torch import nn

import choral
from choral import recipes
from choral.base import draws
from choral.base.errors import InputError
from choral.layers.keyed import keyed
from choral.objectives.likelihoods import Categorical
from choral.recipes.training import Training

SCRIPT = Path(__file__).parent / "shared_run.py"


def rows(count=70):
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(1))
    return x, (x[:, 0] > 0).long()


def perceptron():
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 2))


def members_of(data, recipe, build=perceptron, compute=choral.Compute(), **options):
    compute = replace(compute, executor="sequential")
    ensemble = choral.fit(build, data, recipe, compute=compute, progress=False, **options)
    return [state.params for state in ensemble.states()]


def distance(some, others):
    return max(float((a[name] - b[name]).abs().max()) for a, b in zip(some, others, strict=True) for name in a)


def training(**options):
    return Training(lr=0.1, optimizer="sgd", batch_size=32, **options)


@pytest.mark.parametrize("rows_at", [0, 1])
@pytest.mark.parametrize("key", [5, draws.words(5)])
def test_rows_of_a_part_draw_what_they_draw_in_the_whole_batch(rows_at, key):
    def drawn(count, part):
        shape = (count, 4, 3) if rows_at == 0 else (2, count, 3)
        with keyed(key, 2, part=part):
            first = draws.uniform(shape, like=torch.zeros(()), rows=rows_at)
            shared = draws.normal((7, 5), like=torch.zeros(()))
            return first, shared, draws.keep_mask(shape, 0.4, device=torch.device("cpu"), rows=rows_at)

    whole = drawn(10, None)
    parts = [drawn(4, draws.Part(0, 4, 10)), drawn(6, draws.Part(4, 6, 10))]
    for i in (0, 2):
        assert torch.equal(torch.cat([p[i] for p in parts], rows_at), whole[i])
    assert torch.equal(parts[0][1], whole[1])
    assert torch.equal(parts[1][1], whole[1])


def test_members_folded_into_the_batch_draw_by_row():
    def drawn(count, part):
        with keyed(3, part=part), draws.under(folded=2):
            return draws.dropout(torch.ones(2 * count, 5), 0.5).view(2, count, 5)

    parts = [drawn(3, draws.Part(0, 3, 8)), drawn(5, draws.Part(3, 5, 8))]
    assert torch.equal(torch.cat(parts, 1), drawn(8, None))


def test_draws_without_a_batch_axis_are_refused():
    with keyed(3, part=draws.Part(0, 4, 8)), pytest.raises(InputError, match="first axis"):
        draws.dropout(torch.ones(7, 5), 0.5)


@pytest.mark.parametrize(
    "method", ["packed", "bnn", "mc_dropout", "batch_ensemble", "emp", "rank1_bnn", "drop_connect", "ssbnn"]
)
def test_accumulated_parts_equal_the_whole_batch(method):
    recipe = recipes.make(method, budget=2, training=training())
    assert distance(members_of(rows(), recipe), members_of(rows(), recipe, compute=choral.Compute(accumulate=5))) < 1e-6


def test_four_parts_of_32_equal_a_batch_of_128_with_weights_and_ignored_tokens():
    x = torch.randn(200, 5, 6, generator=torch.Generator().manual_seed(1))
    y = (x[..., 0] > 0).long()
    y[x[..., 1] > 0.3] = -1  # rows have unequally many positions that count
    y[::7, 1:] = -1
    weights = torch.rand(200, generator=torch.Generator().manual_seed(2)) + 0.1
    recipe = recipes.single(budget=2, training=Training(lr=0.1, optimizer="sgd", batch_size=128))
    given = {"likelihood": Categorical(ignore=-1, axis=2), "sample_weight": weights, "build": perceptron}
    whole = members_of((x, y), recipe, **given)
    assert distance(whole, members_of((x, y), recipe, compute=choral.Compute(accumulate=4), **given)) < 1e-6


@pytest.mark.parametrize(
    ("build", "method", "options", "said"),
    [
        (perceptron, "mimo", {"accumulate": 2}, "lays rows"),
        (perceptron, "single", {"accumulate": 0}, "accumulate is 0"),
        (perceptron, "single", {"accumulate": True}, "accumulate is True"),
        (perceptron, "single", {"data_parallel": True}, "torchrun"),
    ],
)
def test_what_cannot_be_parted_is_refused_before_training(build, method, options, said):
    with pytest.raises(InputError, match=said):
        choral.fit(build, rows(), recipes.make(method, budget=1), progress=False, compute=choral.Compute(**options))


def test_a_recurrent_networks_own_dropout_is_refused():
    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.cells = nn.LSTM(3, 4, num_layers=2, dropout=0.5, batch_first=True)
            self.last = nn.Linear(4, 2)

        def forward(self, x):
            return self.last(self.cells(x.view(-1, 2, 3))[0][:, -1])

    with pytest.raises(InputError, match="recurrent"):
        choral.fit(Reads, rows(), recipes.single(budget=1), progress=False, compute=choral.Compute(accumulate=2))


def test_accumulated_parts_have_batch_statistics_of_their_own():
    build = lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))  # noqa: E731
    recipe = recipes.single(budget=1, training=training())
    parts = members_of(rows(), recipe, build, compute=choral.Compute(accumulate=2))
    assert distance(parts, members_of(rows(), recipe, build)) > 1e-4


def start(rank, size, folder, meeting, epochs, *methods):
    command = [sys.executable, str(SCRIPT), str(rank), str(size), str(meeting), str(folder), str(epochs), *methods]
    return subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE, text=True)


def together(folder, meeting, epochs, *methods):
    both = start("both", 2, folder, meeting, epochs, *methods)
    _, said = both.communicate(timeout=240)
    assert both.returncode == 0, said


@pytest.mark.parametrize(
    "methods",
    [
        ("packed", "batch_ensemble-mlp", "snapshot-own"),
        pytest.param(("emp", "bnn", "deep_ensemble", "packed-mlp", "treenet-mlp"), marks=pytest.mark.full),
    ],
    ids=["some", "others"],
)
def test_two_processes_agree_with_one(methods, tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    epochs = 4  # one for each member of an ensemble of four
    shared_run.train(0, tmp_path / "one", epochs, *(m for m in methods if not m.endswith("own")))
    together(tmp_path / "two", tmp_path / "meeting", epochs, *methods)
    for method in methods:
        first, second = (torch.load(tmp_path / f"two/{method}-{rank}.pt") for rank in range(2))
        assert distance(first["members"], second["members"]) == 0
        if method.endswith("own"):  # each process normalizes by the rows it has
            assert distance(first["buffers"], second["buffers"]) == 0
            continue
        one = torch.load(tmp_path / f"one/{method}-0.pt")
        assert distance(one["members"], first["members"]) < 1e-4
        assert first["losses"] == pytest.approx(one["losses"], rel=1e-5)
        assert len(list((tmp_path / "two" / method / "members").iterdir())) == len(one["members"])


@pytest.mark.slow
@pytest.mark.full
def test_a_killed_process_changes_nothing(tmp_path):
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    together(tmp_path / "whole", tmp_path / "meeting", 60, "packed")
    both = [start(rank, 2, tmp_path / "killed", tmp_path / "first", 60, "packed") for rank in range(2)]
    held = tmp_path / "killed" / "packed" / "checkpoints"
    while not (held.exists() and any(held.iterdir())) and both[0].poll() is None:
        time.sleep(0.01)
    both[1].kill()  # the one that writes is left waiting for the other, and is ended as torchrun would
    time.sleep(0.2)
    both[0].kill()
    for process in both:
        process.communicate(timeout=60)
    assert not (tmp_path / "killed" / "packed" / "results.json").exists()
    together(tmp_path / "killed", tmp_path / "second", 60, "packed")
    parts = [sorted((tmp_path / name / "packed" / "members").iterdir()) for name in ("whole", "killed")]
    assert [p.read_bytes() for p in parts[0]] == [p.read_bytes() for p in parts[1]]


UNLIKE = Path(__file__).parent / "unlike_run.py"


@pytest.mark.full
@pytest.mark.slow
def test_processes_that_are_given_different_calls_all_stop(tmp_path):
    command = [sys.executable, str(UNLIKE), str(tmp_path / "meeting")]
    both = [subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True) for rank in range(2)]
    said = [process.communicate(timeout=120)[0].splitlines() for process in both]
    for lines in said:
        assert "the training data is another" in lines[0]
        assert "seed is 0 and 1" in lines[1]
        assert "epochs is 2 and 3" in lines[2]
        assert "y has shape (39,)" in lines[3]
        assert lines[4] == "trained"


def frozen_convolution(outputs):
    first = nn.Conv2d(3, 8, 3, stride=2, padding=1)
    first.bias.requires_grad_(False)
    return nn.Sequential(
        first, nn.GroupNorm(2, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, outputs)
    )


@pytest.mark.parametrize(
    ("likelihood", "outputs"),
    [(Categorical(class_weights=(1.0, 50.0, 3.0)), 3), ("bernoulli", 4), ("poisson", 1), ("student_t", 2)],
)
def test_rows_that_are_computed_by_themselves_are_not_refused(likelihood, outputs):
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(48, 3, 8, 8, generator=draw)
    y = {1: torch.arange(48) % 5, 2: 200_000 * (1 + x.mean((1, 2, 3))), 3: torch.arange(48) % 3}.get(outputs)
    y = (torch.rand(48, 4, generator=draw) > 0.5).float() if y is None else y
    recipe = recipes.single(budget=2, training=training())
    options = {"build": lambda: frozen_convolution(outputs), "likelihood": likelihood}
    whole, parts = (members_of((x, y), recipe, compute=choral.Compute(accumulate=k), **options) for k in (1, 3))
    assert distance(whole, parts) < 1e-5
