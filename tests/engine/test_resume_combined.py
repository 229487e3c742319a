"""Runs that go on after several things went wrong at once: cut by the clock, extended, killed and robbed of a member."""

import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import choral
from choral.base.errors import InputError, RunError
from choral.engine.run import Run
from choral.ensemble.ensemble import Ensemble
from choral.plan import Collect, Constant, Reset, Train, fork, seq
from choral.plan.early_stopping import EarlyStopping
from choral.recipes.recipe import Recipe
from choral.recipes.training import Training

X = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()
ALONE: dict[str, Any] = {"compute": choral.Compute(executor="sequential", threads=1), "progress": False}


class Killed(Exception):
    """Stands for a process that ends."""


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))


def deep(members: int, each: int = 6) -> Recipe:
    return choral.recipes.deep_ensemble(members=members, budget=each * members, training="paper")


def weights(ensemble: Ensemble) -> list[Tensor]:
    return [torch.cat([t.flatten() for t in state.params.values()]) for state in ensemble.states()]


def same(one: Ensemble, other: Ensemble) -> bool:
    pairs = list(zip(weights(one), weights(other), strict=True))
    return all(torch.equal(a, b) for a, b in pairs)


def kill_at(kind: str, times: int = 1) -> Callable[[Any], None]:
    seen: list[str] = []

    def listen(event: Any) -> None:
        seen.append(event["kind"])
        if seen.count(kind) == times and seen[-1] == kind:
            raise Killed

    return listen


def test_a_lost_member_is_mended_whole_whatever_the_time_limit(tmp_path: Path) -> None:
    whole = choral.fit(build, (X, Y), deep(3), run_dir=tmp_path / "run", **ALONE)
    kept = weights(whole)
    (tmp_path / "run/members/00001.safetensors").unlink()
    mended = choral.fit(
        build,
        (X, Y),
        deep(3),
        run_dir=tmp_path / "run",
        **ALONE | {"compute": replace(ALONE["compute"], time_limit=1e-3)},
    )
    assert all(torch.equal(a, b) for a, b in zip(weights(mended), kept, strict=True))


def test_a_member_lost_before_the_checkpoint_of_an_extended_run_is_trained_again(tmp_path: Path) -> None:
    call = ALONE | {"run_dir": tmp_path / "run", "compute": choral.Compute(checkpoint_seconds=0)}
    whole = choral.fit(build, (X, Y), deep(5, 2), **ALONE)
    choral.fit(build, (X, Y), deep(2, 2), **call)
    with pytest.raises(Killed):
        choral.fit(build, (X, Y), deep(5, 2), on_existing="extend", callbacks=kill_at("collected", 3), **call)
    (tmp_path / "run/members/00001.safetensors").unlink()
    found = choral.fit(build, (X, Y), deep(5, 2), **call)
    assert found.members == 5
    assert same(found, whole)
    assert same(choral.load(tmp_path / "run", build=build), whole)


def test_a_new_branch_does_not_skip_the_epochs_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(epochs: int) -> Train:
        return Train(epochs=epochs, batch_size=16, schedule=Constant(0.1))

    def tuned(count: int) -> Recipe:
        return Recipe(name="tuned", plan=seq(Reset(), train(2), fork(count, train(4), Collect())))

    call = ALONE | {"run_dir": tmp_path / "run", "compute": choral.Compute(checkpoint_seconds=0)}
    whole = choral.fit(build, (X, Y), tuned(3), **ALONE)
    choral.fit(build, (X, Y), tuned(1), **call)
    due = [True]
    monkeypatch.setattr(Run, "is_due", property(lambda run: run.checkpoints is not None and due[0]))

    def listen(event: Any) -> None:
        if event["kind"] == "epoch" and event["places"][0].startswith("2/f1") and event["epoch"] == 3:
            due[0] = False  # the last checkpoint is of two epochs of this branch
        if event["kind"] == "epoch" and event["places"][0].startswith("2/f2"):
            raise Killed

    with pytest.raises(Killed):
        choral.fit(build, (X, Y), tuned(3), on_existing="extend", callbacks=listen, **call)
    assert same(choral.fit(build, (X, Y), tuned(3), **call), whole)


def test_members_cut_by_the_clock_are_not_extended_as_whole_ones(tmp_path: Path) -> None:
    whole = choral.fit(build, (X, Y), deep(3), **ALONE)
    with pytest.raises(Killed):
        choral.fit(
            build,
            (X, Y),
            deep(2),
            run_dir=tmp_path / "run",
            callbacks=kill_at("collected"),
            **ALONE | {"compute": replace(ALONE["compute"], time_limit=1e-6)},
        )
    assert os.listdir(tmp_path / "run/members")
    assert same(choral.fit(build, (X, Y), deep(3), run_dir=tmp_path / "run", on_existing="extend", **ALONE), whole)


def test_members_of_an_extended_run_cut_by_the_clock_are_trained_to_their_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = choral.fit(build, (X, Y), deep(3), **ALONE)
    ticks = iter(range(10**6))  # every look at the clock takes a second
    monkeypatch.setattr("choral.engine.epochs.time.perf_counter", lambda: float(next(ticks)))
    first = choral.fit(build, (X, Y), deep(1), run_dir=tmp_path / "run", **ALONE)
    limit = first.info["counted"]["train_seconds"] + 2.5  # an epoch of the next member, after what comes before it
    with pytest.raises(Killed):
        choral.fit(
            build,
            (X, Y),
            deep(3),
            run_dir=tmp_path / "run",
            on_existing="extend",
            callbacks=kill_at("collected"),
            **ALONE | {"compute": replace(ALONE["compute"], time_limit=limit)},
        )
    assert len(os.listdir(tmp_path / "run/members")) == 2
    assert same(choral.fit(build, (X, Y), deep(3), run_dir=tmp_path / "run", **ALONE), whole)


@pytest.mark.parametrize("chosen", [True, False])
def test_members_chosen_or_stopped_together_are_not_extended(tmp_path: Path, chosen: bool) -> None:
    options: dict[str, Any] = {
        "run_dir": tmp_path / "run",
        "validation": 0.3,
        "compute": choral.Compute(threads=1),
        "progress": False,
    }
    options |= {} if chosen else {"early_stopping": EarlyStopping(patience=2, by="ensemble")}

    def recipe(members: int) -> Recipe:
        if not chosen:
            return deep(members)
        return choral.recipes.hyper_ensemble(
            members=members, budget=4 * members, training=Training(optimizer="sgd", lr=0.02, batch_size=32)
        )

    before = choral.fit(build, (X, Y), recipe(2), **options)
    with pytest.raises(RunError, match="stopped or chose its members together"):
        choral.fit(build, (X, Y), recipe(4), on_existing="extend", **options)
    assert same(choral.load(tmp_path / "run", build=build), before)


def test_overwriting_removes_nothing_before_everything_is_checked(tmp_path: Path) -> None:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 8), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            hidden = torch.relu(self.a(x))
            return self.b(hidden if hidden.sum().item() >= 0 else hidden * 0)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = choral.fit(Reads, (X, Y), deep(2), run_dir=tmp_path / "run", **ALONE)
        with pytest.raises(InputError):
            choral.fit(
                Reads,
                (X, Y),
                deep(2),
                run_dir=tmp_path / "run",
                on_existing="overwrite",
                **ALONE | {"compute": choral.Compute(executor="vectorized")},
            )
        assert same(choral.load(tmp_path / "run", build=Reads), before)
        kept = weights(before)
        other = choral.fit(Reads, (X, Y), deep(2), run_dir=tmp_path / "run", on_existing="overwrite", seed=1, **ALONE)
    assert not torch.equal(weights(other)[0], kept[0])


def test_a_limit_that_leaves_nothing_to_make_members_of_is_a_sentence(tmp_path: Path) -> None:
    recipe = choral.recipes.swag(members=3, budget=12)
    with pytest.raises(RunError, match="time limit was reached"):
        choral.fit(
            build,
            (X, Y),
            recipe,
            run_dir=tmp_path / "run",
            **ALONE | {"compute": replace(ALONE["compute"], time_limit=1e-6)},
        )
    whole = choral.fit(build, (X, Y), recipe, **ALONE)
    assert same(choral.fit(build, (X, Y), recipe, run_dir=tmp_path / "run", **ALONE), whole)


def test_a_table_that_is_refused_takes_nothing_from_the_run(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": X[:, 0].numpy(), "z": X[:, 1].numpy(), "y": Y.numpy()})
    call: dict[str, Any] = {"method": "deep_ensemble", "run_dir": tmp_path / "run", "progress": False}
    choral.fit_table(frame, "y", members=2, epochs=4, columns=choral.Columns(drop=["z"]), **call)
    kept = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file() and p.name != ".lock"}
    with pytest.raises(RunError, match="its table's columns were read otherwise"):
        choral.fit_table(
            frame, "y", members=4, epochs=4, columns=choral.Columns(ids=["z"]), on_existing="extend", **call
        )
    for path, content in kept.items():
        assert path.name == "log.jsonl" or path.read_bytes() == content
