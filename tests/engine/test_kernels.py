"""Kernels that are chosen by measuring, and remembered."""

import json

import pytest
import torch

from choral import Compute
from choral.engine import executor
from choral.fit import fit
from choral.recipes import make
from choral.testing.problems import CALM, PROBLEMS

BUILD, DATA = PROBLEMS["regression"]


def seconds_of(monkeypatch, fastest):
    """Make a kernel the fastest one, whatever the machine says; returns the kernels that were tried."""
    tried = []

    def time(kind, task, *_):
        kernel = task.blueprint.network().kernel
        tried.append(kernel)
        return executor.Tried(1.0 if kernel == fastest else 2.0, {})

    monkeypatch.setattr(executor, "_tried", time)
    return tried


@pytest.mark.parametrize("name", ["packed", "batch_ensemble", "masksembles"])
@pytest.mark.parametrize("fastest", ["loop", "grouped", "matmul"])
def test_the_fastest_kernel_is_kept_and_changes_rounding_alone(name, fastest, monkeypatch, tmp_path):
    tried = seconds_of(monkeypatch, fastest)
    recipe = make(name, budget=3, training=CALM, kernel="measured")
    found = fit(BUILD, DATA(), recipe, run_dir=tmp_path, compute=Compute(executor="sequential"))
    assert tried == ["loop", "grouped", "matmul"]
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert plan["kernel"] == fastest
    assert plan["measured"] == {k: 1.0 if k == fastest else 2.0 for k in tried}
    usual = fit(BUILD, DATA(), make(name, budget=3, training=CALM), compute=Compute(executor="sequential"))
    for a, b in zip(found.states(), usual.states()):
        for n in a.params:
            assert torch.allclose(a.params[n], b.params[n], atol=1e-4), n


class Stop(Exception):
    pass


def test_a_resumed_run_keeps_its_kernel_and_its_bytes(monkeypatch, tmp_path):
    seconds_of(monkeypatch, "loop")
    recipe = make("packed", budget=4, training=CALM, kernel="measured")
    fit(BUILD, DATA(), recipe, run_dir=tmp_path / "whole", compute=Compute(executor="sequential"))

    def stop(event):
        if event["kind"] == "epoch" and event["epoch"] == 2:
            raise Stop

    with pytest.raises(Stop):
        fit(
            BUILD,
            DATA(),
            recipe,
            run_dir=tmp_path / "broken",
            compute=Compute(executor="sequential", checkpoint_seconds=0),
            callbacks=stop,
        )
    tried = seconds_of(monkeypatch, "matmul")
    fit(BUILD, DATA(), recipe, run_dir=tmp_path / "broken", compute=Compute(executor="sequential"))
    assert tried == []
    files = [(tmp_path / d / "members" / "00000.safetensors").read_bytes() for d in ("whole", "broken")]
    assert files[0] == files[1]


def test_kernels_are_really_timed():
    recipe = make("packed", budget=1, training=CALM, kernel="measured")
    assert torch.isfinite(fit(BUILD, DATA(), recipe).outputs(DATA()[0])).all()


def test_structures_without_a_choice_measure_nothing(tmp_path):
    fit(
        BUILD, DATA(), make("single", budget=1, training=CALM), run_dir=tmp_path, compute=Compute(executor="sequential")
    )
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert plan["kernel"] is None
    assert plan["measured"] == {}
