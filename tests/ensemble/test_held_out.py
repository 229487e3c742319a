"""Cross-validation ensembles: members never see what they hold out, and what they say about it is honest."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import choral
from choral import models
from choral.base.errors import InputError, PlanError
from choral.objectives import LearnedGaussian
from choral.plan import Adam, EarlyStopping
from choral.recipes import make
from choral.recipes.training import Training

QUICK = Training(lr=0.02, optimizer=Adam(), batch_size=8)


def line(rows: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 3, generator=g)
    return x, x[:, :1] - x[:, 1:2].abs() + 0.3 * torch.randn(rows, 1, generator=g)


def build(outputs: int = 2) -> nn.Module:
    return models.mlp(3, outputs, hidden=(8,))


def fitted(data: Any, *, cv: Any = 4, members: int = 4, epochs: int = 12, network: Any = build, **options: Any) -> Any:
    recipe = make("deep_ensemble", budget=epochs, members=members, training=QUICK)
    return choral.fit(network, data, recipe, cv=cv, progress=False, **options)


def weights(ensemble: Any) -> list[torch.Tensor]:
    return [torch.cat([p.flatten() for p in state.params.values()]) for state in ensemble.states()]


def test_a_member_does_not_notice_what_becomes_of_the_points_it_holds_out() -> None:
    x, y = line(30)
    groups = np.arange(30) % 4  # decide the folds, whatever the points are
    before = fitted(
        (x, y),
        cv=(4, groups),
        likelihood=LearnedGaussian(standardize=False),
        early_stopping=choral.EarlyStopping(patience=None, restore_best=False),
    )
    held = before._out_of_fold.folds == 0
    other = x.clone()
    other[held] += 3.0
    after = fitted(
        (other, y),
        cv=(4, groups),
        likelihood=LearnedGaussian(standardize=False),
        early_stopping=choral.EarlyStopping(patience=None, restore_best=False),
    )
    same = [torch.equal(a, b) for a, b in zip(weights(before), weights(after))]
    assert same == [True, False, False, False]


def test_both_executors_agree_and_ragged_folds_are_trained_too() -> None:
    x, y = line(31)  # parts of 8, 8, 8 and 7
    groups = np.minimum(np.arange(31) // 5, 3)  # parts of 5, 5, 5 and 16
    for own in (None, groups):
        one = fitted((x, y), compute=choral.Compute(executor="sequential"), cv=4 if own is None else (4, own))
        all_ = fitted((x, y), compute=choral.Compute(executor="vectorized"), cv=4 if own is None else (4, own))
        for a, b in zip(weights(one), weights(all_)):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(one._out_of_fold.outputs, all_._out_of_fold.outputs, rtol=1e-3, atol=1e-3)


def test_out_of_fold_outputs_are_those_of_the_members_that_hold_the_points_out() -> None:
    x, y = line(30)
    ensemble = fitted((x, y), members=8)  # two members for each part
    found = ensemble._out_of_fold
    assert found.outputs.shape == (2, 30, 2)
    assert torch.equal(found.points, torch.arange(30))
    outputs = ensemble.outputs(x)
    for point in range(30):
        fold = int(found.folds[point])
        torch.testing.assert_close(found.outputs[:, point], outputs[[fold, fold + 4], point])
    assert ensemble.info["out_of_fold"]["rows"] == 30


def test_scores_and_coverage_are_near_those_of_new_points() -> None:
    x, y = line(160)
    ensemble = fitted((x, y), cv=4, epochs=120, early_stopping=EarlyStopping(patience=5))
    new = line(2000, seed=1)
    about, truth = ensemble.info["out_of_fold"], ensemble.evaluate(*new)
    assert abs(about["scores"]["rmse"] / truth["rmse"] - 1) < 0.25
    assert about["level"] == 0.9
    assert 0.82 <= about["coverage"] <= 0.97
    prediction = ensemble._predictive(new[0])
    assert float(prediction.covered(prediction.targets(new[1])).double().mean()) >= 0.86


def test_the_noise_is_estimated_on_points_members_have_not_seen() -> None:
    x, y = line(24)
    y = torch.randn(
        24, 1, generator=torch.Generator().manual_seed(3)
    )  # nothing to learn, so all that is fitted is noise
    big = lambda: models.mlp(3, 1, hidden=(64,))  # noqa: E731
    plain = choral.fit(big, (x, y), make("deep_ensemble", budget=240, members=4, training=QUICK), progress=False)
    honest = fitted(
        (x, y), epochs=240, network=big, early_stopping=choral.EarlyStopping(patience=None, restore_best=False)
    )
    assert (honest.likelihood.noise_std or 0) > 1.3 * (plain.likelihood.noise_std or 1)


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_a_run_that_is_interrupted_ends_with_the_same_bytes(executor: Any, tmp_path: Path) -> None:
    data: Any = line(30)
    options: dict[str, Any] = {
        "compute": choral.Compute(executor=executor, checkpoint_seconds=0.0),
        "early_stopping": EarlyStopping(patience=2),
    }
    whole = fitted(data, run_dir=tmp_path / "whole", **options)
    cuts, done = 0, None
    while done is None:
        heard = [0]

        def cut(event: dict[str, Any], heard: list[int] = heard, after: int = 2 + cuts) -> None:
            heard[0] += event["kind"] == "epoch"
            if heard[0] > after:
                raise KeyboardInterrupt

        try:
            done = fitted(data, run_dir=tmp_path / "cut", callbacks=cut, **options)
        except KeyboardInterrupt:
            cuts += 1
    assert cuts >= 1
    for name in ("members/00000.safetensors", "members/00003.safetensors"):
        assert torch.equal(weights(whole)[int(name[12])], weights(done)[int(name[12])])
    assert torch.equal(whole._out_of_fold.outputs, done._out_of_fold.outputs)
    with pytest.raises(choral.ChoralError, match="folds was 4, now 2"):
        fitted(data, cv=2, run_dir=tmp_path / "whole", **options)


def test_a_folder_gives_everything_back_and_a_file_what_can_be_shared(tmp_path: Path) -> None:
    x, y = line(30)
    ensemble = fitted((x, y), run_dir=tmp_path / "run")
    again = choral.load(tmp_path / "run")
    assert torch.equal(again._out_of_fold.outputs, ensemble._out_of_fold.outputs)
    assert again.posthoc == ensemble.posthoc
    again.save(tmp_path / "e.choral")
    shared = choral.load(tmp_path / "e.choral")
    assert shared._out_of_fold is None  # targets of training points stay at home
    assert shared.info["out_of_fold"] == ensemble.info["out_of_fold"]
    low, _ = shared.predict(x).conformal_interval()  # type: ignore[attr-defined]
    assert torch.equal(low, ensemble.predict(x).conformal_interval()[0])
    (tmp_path / "run" / "out_of_fold.safetensors").write_bytes(b"damaged")
    with pytest.warns(UserWarning, match="out-of-fold predictions .* are not loaded"):
        assert choral.load(tmp_path / "run")._out_of_fold is None
    assert fitted((x, y), run_dir=tmp_path / "run").posthoc == ensemble.posthoc


def test_classes_of_one_point_a_dozen_rows_and_weights() -> None:
    x, _ = line(12)
    labels = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2])
    ensemble = fitted((x, labels), network=lambda: build(3), epochs=4, sample_weight=[2.0] * 6 + [1.0] * 5 + [0.0])
    assert ensemble.info["out_of_fold"]["rows"] == 11
    assert 0 <= ensemble.info["out_of_fold"]["coverage"] <= 1
    lone = fitted((x, labels), network=lambda: build(3), epochs=4)
    assert lone._out_of_fold.outputs.shape == (1, 12, 3)
    steps = torch.tensor([[0.0]] * 9 + [[2.5]] * 3)
    assert fitted((x, steps), epochs=4, cv=(4, np.arange(12) // 3)).info["out_of_fold"]["rows"] == 12


@pytest.mark.parametrize("method", ["packed", "snapshot", "bagged", "prune_and_tune"])
def test_methods_of_every_shape(method: str) -> None:
    x, y = line(24)
    options = {"members": 4} if method in ("packed", "bagged") else {}
    recipe = make(method, budget=12, training=QUICK, **options)
    ensemble = choral.fit(build, (x, y), recipe, cv=4, progress=False)
    assert len(ensemble._out_of_fold.y) == 24
    assert ensemble.predict(x).mean.shape == (24, 1)


def test_what_does_not_go_together_is_refused() -> None:
    data = line(12)
    with pytest.raises(InputError, match="give one of them"):
        fitted(data, validation=0.2)
    with pytest.raises(InputError, match=r"cv=\(5, groups\)"):
        choral.fit(build, data, "single", groups=np.arange(12))  # type: ignore[call-arg]  # an argument that people try
    with pytest.raises(PlanError, match="a multiple of 5"):
        fitted(data, cv=5)
    with pytest.raises(InputError, match="2 or more"):
        fitted(data, cv=1)


def test_folds_of_targets_in_their_own_units_raise_no_false_alarm() -> None:
    x, y = line(60)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*no better than")
        ensemble = fitted((x, 1000 + 100 * y), epochs=120)
    assert ensemble.info["out_of_fold"]["scores"]["rmse"] < 100 * float(y.std())
