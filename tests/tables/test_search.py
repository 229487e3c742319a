"""Choosing by validation among candidates, and an ensemble of the members that predict best together."""

import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import choral
from choral import models
from choral.base.errors import DivergedError, InputError, RunError
from choral.calibration import StackingWeights
from choral.comparison.evaluation import Trial, judged
from choral.data.sources import source_of
from choral.engine.validation import Limit, set_apart
from choral.ensemble.ensemble import Ensemble
from choral.objectives import LearnedGaussian
from choral.plan import Adam, EarlyStopping
from choral.recipes import make
from choral.recipes.recipe import Recipe
from choral.recipes.training import Training
from choral.tables.search import Candidate, Judge, Pool, joined, search

QUICK = Training(lr=0.02, optimizer=Adam(), batch_size=32)
WILD = Training(lr=1e12, optimizer=Adam(), batch_size=32)


def data(rows: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 3, generator=g)
    return x, x[:, :1] - x[:, 1:2].abs() + 0.3 * torch.randn(rows, 1, generator=g)


def wide() -> nn.Module:
    return models.mlp(3, 2, hidden=(12,))


def small() -> nn.Module:
    return models.mlp(3, 2, hidden=(4,))


def candidate(name: str, method: str = "deep_ensemble", training: Training = QUICK) -> Candidate:
    def recipe(epochs: int, count: int) -> Recipe:
        total = epochs * count if method == "deep_ensemble" else epochs
        more = {"width": float(count)} if method == "packed" else {}
        return make(method, budget=total, members=count, training=training, **more)

    return Candidate(name, recipe, 12, 3, "for the test")


def trainer(builds: dict[str, Callable[[], nn.Module]], **options: Any) -> tuple[Any, Any]:
    source, held = set_apart(source_of(data()), 0.3, 0)
    assert held is not None
    fixed: dict[str, Any] = {"validation": held, "early_stopping": EarlyStopping(patience=4), "progress": False}

    def train(one: Candidate, recipe: Recipe, limits: dict[str, Any]) -> Ensemble:
        return choral.fit(
            builds[one.name],
            source,
            recipe,
            compute=choral.Compute(executor="sequential", time_limit=limits.pop("time_limit"), checkpoint_seconds=0.0),
            **fixed,
            **limits,
            **options,
        )

    return train, held


def found(run_dir: Path | None = None, **options: Any) -> tuple[Ensemble, Any]:
    listed = [candidate("first"), candidate("second"), candidate("third", "packed"), candidate("fourth", "tabm")]
    train, held = trainer({"first": small, "second": wide, "third": wide, "fourth": wide}, **options)
    return search(listed, train, Judge(held), run_dir=run_dir), held


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ensemble, Any]:
    """A finished search, for tests that read it or copy its folder."""
    folder = tmp_path_factory.mktemp("searched") / "run"
    return folder, *found(folder)


def test_the_best_members_of_all_candidates_are_one_ensemble_never_worse_on_validation(
    searched: tuple[Path, Ensemble, Any], tmp_path: Path
) -> None:
    folder, ensemble, held = searched
    judge = Judge(held)
    first = choral.load(folder / "first")
    assert judge.scores(ensemble._predictive(judge.x))[0] <= judge.scores(first._predictive(judge.x))[0] + 1e-6
    assert judge.scores(ensemble._predictive(judge.x))[1] <= judge.scores(first._predictive(judge.x))[1] + 1e-6
    about = ensemble.info["auto"]
    assert judge.scores(ensemble._predictive(judge.x))[0] == pytest.approx(about["validation"], abs=1e-4)
    assert len(about["tried"]) == 4
    assert "chosen from 4 trainings" in repr(ensemble)
    assert "0.0," not in repr(ensemble)  # no list of weights
    ensemble.save(tmp_path / "e.choral")
    x = data()[0]
    for path in (tmp_path / "e.choral", folder):  # of several kinds of networks, and without their code
        again = choral.load(path)
        assert torch.equal(again.predict(x).mean, ensemble.predict(x).mean)
        assert again.info["auto"]["reasons"] == about["reasons"]


def test_a_search_that_is_interrupted_ends_with_the_same_ensemble(
    searched: tuple[Path, Ensemble, Any], tmp_path: Path
) -> None:
    _, whole, _ = searched
    cuts, done = 0, None
    while done is None:
        heard = [0]

        def cut(event: dict[str, Any], heard: list[int] = heard, after: int = 20 + 20 * cuts) -> None:
            heard[0] += event["kind"] == "epoch"
            if heard[0] > after:
                raise KeyboardInterrupt

        try:
            done, _ = found(tmp_path / "cut", callbacks=cut)
        except KeyboardInterrupt:
            cuts += 1
    assert cuts >= 1
    assert (tmp_path / "cut" / "ensemble.choral").exists()
    assert torch.equal(done.predict(data()[0]).mean, whole.predict(data()[0]).mean)


def test_light_candidates_are_tried_whatever_the_first_took(monkeypatch: pytest.MonkeyPatch) -> None:
    line = replace(candidate("line"), light=True)
    train, held = trainer({"first": small, "line": lambda: models.mlp(3, 2, hidden=()), "heavy": wide})
    listed = [candidate("first"), candidate("heavy"), line]
    tried = search(listed, train, Judge(held)).info["auto"]["tried"]
    assert [one.split(",")[0] for one in tried] == ["first", "heavy", "line"]
    monkeypatch.setattr("choral.tables.defaults.LONG", 0.0)
    about = search(listed, train, Judge(held)).info["auto"]
    assert [one.split(",")[0] for one in about["tried"]] == ["first", "line"]
    assert any("took long enough, but for light ones" in reason for reason in about["reasons"])


@pytest.mark.parametrize(("most", "tried"), [(0.0, ["first", "short"]), (9.0, ["first", "long"])])
def test_the_noise_that_the_first_candidate_leaves_decides_which_others_follow(
    most: float, tried: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("choral.tables.defaults.CLEAN", most)
    train, held = trainer({"first": small, "short": wide, "long": wide})
    listed = [
        candidate("first"),
        replace(candidate("short"), clean=False),
        replace(candidate("long"), clean=True, epochs=99),
    ]
    ensemble = search(listed, train, Judge(held), run_dir=tmp_path)
    about, y = ensemble.info["auto"], Judge(held).y
    assert [one.split(",")[0] for one in about["tried"]] == tried
    (noise,) = [float(reason.split()[3]) for reason in about["reasons"] if "deviations of the target" in reason]
    first = Judge(held).scores(choral.load(tmp_path / "first")._predictive(Judge(held).x))[1]
    assert noise == pytest.approx((first / float(y.double().var())) ** 0.5, abs=0.006)
    assert most == 0.0 or "long, 99 epochs at most" in about["tried"]  # what the first took says nothing about it


def test_a_time_limit_counts_from_its_own_beginning_and_ends_with_what_is_there() -> None:
    train, held = trainer({"first": small, "second": wide})
    told: list[str] = []
    late = Limit.of(50.0, time.perf_counter() - 100.0)
    ensemble = search([candidate("first"), candidate("second")], train, Judge(held), time_limit=late, tell=told.append)
    about = ensemble.info["auto"]
    assert [one.split(",")[0] for one in about["tried"]] == ["first"]
    assert any("the time limit was reached" in reason for reason in about["reasons"])
    assert ensemble.info["counted"]["epochs"] == 1
    assert len(told) == 1
    assert "validation nll" in told[0]
    whole = search([candidate("first"), candidate("second")], train, Judge(held), time_limit=1e4)
    assert [one.split(",")[0] for one in whole.info["auto"]["tried"]] == ["first", "second"]


def test_rounds_repeat_all_candidates_from_other_seeds_while_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, builds = [0.0], {"first": small, "second": wide}
    monkeypatch.setattr("choral.tables.search.time.perf_counter", lambda: clock[0])
    train, held = trainer({f"{name}{more}": build for name, build in builds.items() for more in ("", "_2", "_3")})
    seconds, seen = {"first": 10.0, "second": 20.0}, list[tuple[str, int, float]]()

    def timed(one: Candidate, recipe: Recipe, limits: dict[str, Any]) -> Ensemble:
        seen.append((one.name, one.round, limits["time_limit"]))
        made = train(one, recipe, limits | {"time_limit": None})
        clock[0] += seconds[one.name.split("_")[0]]
        return made

    listed = [candidate("first"), candidate("second")]
    ensemble = search(listed, timed, Judge(held), time_limit=Limit.of(100.0, 0.0), rounds=9)
    # training ends after 85 seconds; 30 a round, so that two and the first of the third fit, and no other
    assert seen == [
        (n, r, 85.0) for n, r in (("first", 0), ("second", 0), ("first_2", 1), ("second_2", 1), ("first_3", 2))
    ]
    assert clock[0] == 70.0
    assert len(ensemble.info["auto"]["tried"]) == 5


def test_what_follows_training_gets_as_long_as_what_came_before_it() -> None:
    train, held = trainer({"first": small})
    seen: list[float] = []

    def timed(one: Candidate, recipe: Recipe, limits: dict[str, Any]) -> Ensemble:
        seen.append(limits["time_limit"])
        return train(one, recipe, limits | {"time_limit": None})

    search([candidate("first")], timed, Judge(held), time_limit=Limit.of(1_000.0, time.perf_counter() - 300.0))
    assert seen == [pytest.approx(700.0, abs=5.0)]


def test_a_candidate_that_diverges_is_left_out_and_told_of_even_the_first() -> None:
    listed = [candidate("bad", training=WILD), candidate("good")]
    train, held = trainer({"bad": small, "good": wide})
    ensemble = search(listed, train, Judge(held))
    assert any("bad" in reason and "members were kept" in reason for reason in ensemble.info["auto"]["reasons"])
    assert torch.isfinite(ensemble.predict(data()[0]).mean).all()
    with pytest.raises(DivergedError, match="bad"):
        search(listed[:1], train, Judge(held))


@pytest.mark.parametrize("method", ["packed", "tabm", "batch_ensemble", "deep_ensemble"])
def test_members_say_alone_what_they_said_among_their_siblings(method: str) -> None:
    recipe = make(method, budget=2, members=2, training=QUICK)
    ensembles = [choral.fit(wide, data(), recipe, seed=seed, progress=False) for seed in range(2)]
    x = data()[0]
    outputs = torch.cat([e.outputs(x) for e in ensembles])
    made = joined(ensembles, (0.5, 0.0, 0.25, 0.25), name="some")
    torch.testing.assert_close(made.outputs(x), outputs[[0, 2, 3]], rtol=1e-3, atol=1e-4)
    assert made.posthoc == (StackingWeights(weights=(0.5, 0.25, 0.25)),)


def test_folds_judge_by_all_points_and_the_choice_keeps_what_they_tell(tmp_path: Path) -> None:
    source = source_of(data())

    def train(one: Candidate, recipe: Recipe, limits: dict[str, Any]) -> Ensemble:
        build = small if one.name == "first" else wide
        fixed: dict[str, Any] = {"cv": 3, "early_stopping": EarlyStopping(patience=4), "progress": False}
        compute = choral.Compute(executor="vectorized", time_limit=limits.pop("time_limit"))
        return choral.fit(build, source, recipe, compute=compute, **fixed, **limits)

    listed = [candidate(name) for name in ("first", "second", "third")]
    ensemble = search(listed, train, Judge(), run_dir=tmp_path / "run")
    first = choral.load(tmp_path / "run" / "first")
    judge = Judge()
    before, after = judge.prediction(first), judge.prediction(ensemble)
    assert judge.scores(after)[0] <= judge.scores(before)[0]
    assert judge.scores(after)[1] <= judge.scores(before)[1]
    assert ensemble.info["out_of_fold"]["rows"] == 60
    assert ensemble.info["out_of_fold"]["scores"]["nll"] == pytest.approx(judge.scores(after)[0], abs=1e-6)
    again = choral.load(tmp_path / "run")
    assert torch.equal(again._out_of_fold.outputs, ensemble._out_of_fold.outputs)
    assert again.posthoc == ensemble.posthoc
    prediction: Any = again.predict(data()[0])
    low, high = prediction.conformal_interval()
    assert bool((low < high).all())
    # a file of another ensemble in the folder is not taken for its own
    first.save(tmp_path / "run" / "ensemble.choral")
    assert choral.load(tmp_path / "run")._out_of_fold is None


class Given(Judge):
    """Says what it is told about each ensemble."""

    def __init__(self, outputs: dict[int, torch.Tensor]):
        super().__init__()
        self.given, self.y, self.weights = outputs, torch.zeros(60, 1), None

    def prediction(self, ensemble: Ensemble) -> Any:
        return ensemble._uncorrected(self.given[id(ensemble)], networks=1)

    def outputs(self, ensemble: Ensemble) -> torch.Tensor:
        return self.given[id(ensemble)]

    def finish(self, made: Ensemble, outputs: torch.Tensor, shares: Any) -> None:
        pass


def test_a_candidate_that_is_better_in_log_score_alone_is_not_taken() -> None:
    """Nor a mixture with it: what is sure of itself may be further off."""
    recipe = make("deep_ensemble", budget=2, members=2, training=QUICK)
    both = [
        choral.fit(small, data(), recipe, seed=seed, likelihood=LearnedGaussian(standardize=False), progress=False)
        for seed in range(2)
    ]
    far = torch.randn(60, generator=torch.Generator().manual_seed(0))
    unsure = torch.stack([0.5 * far, torch.full((60,), 9.0)], 1)[None]  # raw variances: much too large
    sure = torch.stack([0.9 * far, far.abs()], 1)[None]
    judge = Given({id(both[0]): unsure, id(both[1]): sure})
    scores = [judge.scores(judge.prediction(one))[0] for one in both]
    assert scores[1] < scores[0]
    found = Pool(["first", "second"], both, judge).best([], [], 0)
    assert found.members == 2
    assert "first, alone is best" in found.info["auto"]["reasons"][-1]
    near = Given({id(both[0]): unsure, id(both[1]): torch.stack([0.4 * far, far.abs()], 1)[None]})
    taken = Pool(["first", "second"], both, near).best([], [], 0).info["auto"]["reasons"][-1]
    assert "second" in taken


def test_scores_of_a_search_are_those_of_the_ensemble_it_gave_last(tmp_path: Path) -> None:
    x, y = data()
    trial = Trial(x, y.numpy())
    listed = [candidate("first"), candidate("second")]

    def run(seed: int, *, overwrite: bool) -> Ensemble:
        train, held = trainer({"first": small, "second": wide}, seed=seed)
        return search(listed, train, Judge(held), run_dir=tmp_path / "run", overwrite=overwrite)

    def score(ensemble: Ensemble) -> float:
        return float(judged(tmp_path / "run", ensemble, trial)["scores"]["nll"])

    first = run(0, overwrite=False)
    assert score(first) == score(run(0, overwrite=False))
    second = run(1, overwrite=True)
    assert not (tmp_path / "run/evaluation.json").exists()
    assert score(second) == pytest.approx(second.evaluate(x, y)["nll"])
    assert score(second) != score(first)


def test_a_search_begun_anew_leaves_nothing_of_the_one_before_and_one_refused_leaves_all(
    searched: tuple[Path, Ensemble, Any], tmp_path: Path
) -> None:
    folder, before = tmp_path / "run", searched[1]
    shutil.copytree(searched[0], folder)
    listed = [candidate("first"), candidate("second")]
    train, held = trainer({"first": small, "second": wide}, seed=1)

    def refused(one: Candidate, recipe: Recipe, limits: dict[str, Any]) -> Ensemble:
        raise InputError("no")

    with pytest.raises(InputError, match="no"):
        search(listed, refused, Judge(held), run_dir=folder, overwrite=True)
    assert choral.load(folder / "ensemble.choral")._digest == before._digest

    def interrupted(one: Candidate, recipe: Recipe, limits: dict[str, Any]) -> Ensemble:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(listed, interrupted, Judge(held), run_dir=folder, overwrite=True)
    assert choral.load(folder / "ensemble.choral")._digest == before._digest
    search(listed, train, Judge(held), run_dir=folder, overwrite=True)
    assert sorted(p.parent.name for p in folder.glob("*/plan.json")) == ["first", "second"]


def test_a_run_of_one_method_does_not_replace_a_search(searched: tuple[Path, Ensemble, Any], tmp_path: Path) -> None:
    before = searched[1]
    shutil.copytree(searched[0], tmp_path / "run")
    recipe = make("single", budget=1, training=QUICK)
    with pytest.raises(RunError, match="holds a choice among several methods"):
        choral.fit(small, data(), recipe, run_dir=tmp_path / "run")
    assert choral.load(tmp_path / "run")._digest == before._digest
    choral.fit(small, data(), recipe, run_dir=tmp_path / "run", on_existing="overwrite")
    assert choral.load(tmp_path / "run").recipe.name == "single"
