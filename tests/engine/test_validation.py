"""Validation: what is held out, what stops, what is kept, and that training does not notice."""

import json
import time
import warnings
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from choral import Compute, models, show
from choral.base.errors import InputError, RunError
from choral.data.sources import source_of
from choral.data.splitting import held_out
from choral.engine.validation import Limit
from choral.fit import fit, load
from choral.objectives import FixedGaussian
from choral.plan import Adam, EarlyStopping, Measure
from choral.predictions import Classification, MultiLabel, Regression
from choral.recipes import make
from choral.recipes.training import Training

G = torch.Generator().manual_seed(0)
X = torch.randn(120, 5, generator=G)
Y = (X[:, 0] + 0.8 * torch.randn(120, generator=G) > 0).long()
QUICK = Training(lr=0.02, optimizer=Adam(), batch_size=32, schedule="constant")
EXECUTORS = ("sequential", "vectorized")
SOON = EarlyStopping(patience=3)


def build():
    return nn.Sequential(nn.Linear(5, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))


def recipe(name="deep_ensemble", epochs=60, **options):
    return make(name, budget=epochs, training=QUICK, **options)


def flat(ensemble):
    return [state.flat() for state in ensemble.states()]


def assert_same(one, other, **tolerance):
    assert len(one) == len(other)
    for a, b in zip(one, other):
        assert a.keys() == b.keys()
        for name in a:
            if tolerance:
                torch.testing.assert_close(a[name], b[name], **tolerance)
            else:
                assert torch.equal(a[name], b[name]), name


def epochs_of(folder):
    lines = (folder / "log.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["kind"] == "epoch"]


def rows_of(share=0.25, seed=0, y=Y):
    return held_out(source_of((X[: len(y)], y)), share, seed)


def test_the_held_out_share_is_stratified_apart_and_decided_by_the_seed():
    y = torch.tensor([0] * 80 + [1] * 30 + [2] * 9 + [3])
    kept, held = rows_of(0.3, y=y)
    assert sorted([*kept.tolist(), *held.tolist()]) == list(range(120))
    assert y[held].bincount(minlength=4).tolist() == [24, 9, 3, 0]
    assert torch.equal(held, rows_of(0.3, y=y)[1])
    assert not torch.equal(held, rows_of(0.3, seed=1, y=y)[1])
    many = held_out(source_of((X, X[:, :2])), 0.3, 0)
    assert (len(many[0]), len(many[1])) == (84, 36)


def test_real_targets_are_held_out_over_their_whole_range():
    for seed in range(4):
        kept, held = held_out(source_of((X, X[:, :1])), 0.25, seed)
        assert sorted([*kept.tolist(), *held.tolist()]) == list(range(120))
        ranks = X[:, 0].argsort().argsort()[held].sort().values
        assert (ranks // 4).tolist() == list(range(30))  # one of every four neighbors


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 0.001, 3])
def test_a_share_that_leaves_a_side_empty_is_refused(share):
    with pytest.raises(InputError, match="share above 0 and below 1"):
        fit(build, (X, Y), recipe(epochs=4), validation=share)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", ["deep_ensemble", "bagged", "mc_dropout", "snapshot"])
def test_training_does_not_notice_that_it_is_watched(name, executor):
    kept, _ = rows_of()
    plain = fit(build, (X[kept], Y[kept]), recipe(name, 8), compute=Compute(executor=executor))
    watched = fit(
        build,
        (X, Y),
        recipe(name, 8),
        compute=Compute(executor=executor),
        validation=0.25,
        early_stopping=EarlyStopping(patience=None, restore_best=False),
    )
    assert_same(flat(plain), flat(watched))


@pytest.mark.slow
@pytest.mark.parametrize("executor", EXECUTORS)
def test_what_is_measured_is_the_prediction_in_evaluation_mode_and_the_best_is_kept(executor, tmp_path):
    _, held = rows_of()
    found = {}
    for keep in ("last", "best"):
        folder = tmp_path / keep
        ensemble = fit(
            build,
            (X, Y),
            recipe(epochs=48),
            run_dir=folder,
            compute=Compute(executor=executor),
            validation=0.25,
            early_stopping=EarlyStopping(patience=None, restore_best=keep == "best"),
        )
        prediction = ensemble._predictive(X[held])
        found[keep] = [float(-one.log().gather(1, Y[held, None]).mean()) for one in prediction.member_probs]
    curves: dict[str, list[float]] = {}
    for event in epochs_of(tmp_path / "best"):
        for place, value in zip(event["places"], event["validation"]):
            curves.setdefault(place, []).append(value)
    assert len(curves) == 4
    assert found["best"] == pytest.approx([min(curve) for curve in curves.values()], rel=1e-4)
    assert found["last"] == pytest.approx([curve[-1] for curve in curves.values()], rel=1e-4)
    assert any(best < last for best, last in zip(found["best"], found["last"]))


@pytest.mark.parametrize("by", ["member", "ensemble"])
@pytest.mark.parametrize("name", ["deep_ensemble", "prune_and_tune", "snapshot"])
def test_executors_stop_at_the_same_epochs_with_the_same_members(name, by):
    found = [
        fit(
            build,
            (X, Y),
            recipe(name),
            compute=Compute(executor=executor),
            validation=0.25,
            early_stopping=EarlyStopping(patience=3, by=by),
        )
        for executor in EXECUTORS
    ]
    stops = [sorted((s["place"], s["epoch"], s["best_epoch"]) for s in e.info["stopped"]) for e in found]
    assert stops[0]
    assert stops[0] == stops[1]
    assert len({s["epoch"] for s in found[0].info["stopped"]}) > (by == "member" and name == "deep_ensemble")
    assert_same(*map(flat, found), rtol=1e-3, atol=1e-4)
    assert found[0].info["counted"]["epochs"] == found[1].info["counted"]["epochs"] < 60


def test_an_ensemble_stops_by_its_mean_prediction(tmp_path):
    stop = EarlyStopping(patience=3, by="ensemble")
    whole = fit(
        build,
        (X, Y),
        recipe(),
        run_dir=tmp_path,
        compute=Compute(executor="vectorized"),
        validation=0.25,
        early_stopping=stop,
    )
    _, held = rows_of()
    best = {s["best"] for s in whole.info["stopped"]}
    assert len(best) == 1
    assert len({s["epoch"] for s in whole.info["stopped"]}) == 1
    nll = float(-whole.predict(X[held]).probs.log().gather(1, Y[held, None]).mean())
    assert nll == pytest.approx(best.pop(), rel=1e-4)


class Stop(Exception):
    pass


@pytest.mark.parametrize(
    ("executor", "by"),
    [
        pytest.param("sequential", "member", marks=pytest.mark.full),
        pytest.param("sequential", "ensemble", marks=pytest.mark.full),
        ("vectorized", "member"),
        pytest.param("vectorized", "ensemble", marks=pytest.mark.full),
    ],
)
def test_a_run_that_is_interrupted_everywhere_ends_with_the_same_bytes(executor, by, tmp_path):
    settings = {
        "compute": Compute(executor=executor, checkpoint_seconds=0),
        "validation": 0.25,
        "early_stopping": EarlyStopping(patience=3, by=by),
    }
    whole = fit(build, (X, Y), recipe(members=6), run_dir=tmp_path / "whole", **settings)
    resumed, interruptions = None, 0
    while resumed is None:
        heard = []

        def stop(event, heard=heard, after=2 + interruptions // 3):
            heard.append(event)
            if len(heard) > after:
                raise Stop

        try:
            resumed = fit(build, (X, Y), recipe(members=6), run_dir=tmp_path / "cut", callbacks=stop, **settings)
        except Stop:
            interruptions += 1
    assert interruptions >= 10
    assert_same(flat(whole), flat(resumed))
    assert resumed.info["stopped"] == whole.info["stopped"]
    ours, theirs = (
        [(e["places"], e["epoch"], e["validation"]) for e in epochs_of(tmp_path / f)] for f in ("whole", "cut")
    )
    assert ours == theirs


def test_stopped_members_leave_the_stack_with_the_others_memory_kept():
    widths = []

    def hear(event):
        if event["kind"] == "epoch":
            widths.append(len(event["places"]))

    settings = {"validation": 0.25, "early_stopping": SOON}
    stacked = fit(
        build, (X, Y), recipe(members=8, epochs=160), compute=Compute(executor="vectorized"), callbacks=hear, **settings
    )
    assert widths == sorted(widths, reverse=True)
    assert len(set(widths)) > 2
    alone = fit(build, (X, Y), recipe(members=8, epochs=160), compute=Compute(executor="sequential"), **settings)
    assert_same(flat(stacked), flat(alone), rtol=1e-3, atol=1e-4)


def test_own_measures_have_a_direction():
    def confidence(prediction, y):
        return float(prediction.probs.gather(1, y[:, None]).mean())

    found = {}
    for larger in (True, False):
        measure = Measure.of(confidence, larger_is_better=larger)
        ensemble = fit(
            build,
            (X, Y),
            recipe("single", 12),
            validation=0.25,
            early_stopping=EarlyStopping(patience=2, monitor=measure),
        )
        found[larger] = ensemble.info.get("stopped", [{"best_epoch": 12}])[0]["best_epoch"]
    assert found[False] == 1
    assert found[True] > 1
    by_name = fit(
        build,
        (X, Y),
        recipe("single", 12),
        validation=0.25,
        early_stopping=EarlyStopping(monitor="accuracy", patience=1),
    )
    assert by_name.info["stopped"][0]["reason"] == "patience"


def test_wrong_wishes_are_refused_before_training():
    for early in (SOON, EarlyStopping(patience=None)):
        with pytest.raises(InputError, match="early_stopping needs held-out points"):
            fit(build, (X, Y), recipe(), validation=None, early_stopping=early)
    with pytest.raises(InputError, match="early_stopping is 16"):
        fit(build, (X, Y), recipe(), validation=0.2, early_stopping=16)
    with pytest.raises(InputError, match="time_limit is 0"):
        fit(build, (X, Y), recipe(), compute=Compute(time_limit=0))
    with pytest.raises(InputError, match="monitor is 'rmse'"):
        fit(build, (X, Y), recipe(), validation=0.2, early_stopping=EarlyStopping(monitor="rmse"))
    with pytest.raises(InputError, match=r"class label 7.*2 outputs"):
        fit(build, (X, Y), recipe(), validation=(X[:3], torch.tensor([0, 1, 7])))
    with pytest.raises(InputError, match=r"patience is 0; give .*1 or more"):
        EarlyStopping(patience=0)


def test_changed_wishes_in_the_same_folder_are_refused_in_the_users_words(tmp_path):
    fit(build, (X, Y), recipe(epochs=4), run_dir=tmp_path, validation=0.25, early_stopping=SOON)
    with pytest.raises(RunError, match="patience of EarlyStopping was 3, now 4"):
        fit(
            build, (X, Y), recipe(epochs=4), run_dir=tmp_path, validation=0.25, early_stopping=EarlyStopping(patience=4)
        )
    with pytest.raises(RunError, match=r"validation was 0\.25, now 0\.5"):
        fit(build, (X, Y), recipe(epochs=4), run_dir=tmp_path, validation=0.5, early_stopping=SOON)


def test_data_of_its_own_leaves_all_rows_for_training():
    plain = fit(build, (X, Y), recipe(epochs=8), compute=Compute(executor="sequential"))
    watched = fit(
        build,
        (X, Y),
        recipe(epochs=8),
        compute=Compute(executor="sequential"),
        validation=(X[:20], Y[:20]),
        early_stopping=EarlyStopping(patience=None, restore_best=False),
    )
    assert_same(flat(plain), flat(watched))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_time_limit_ends_with_what_is_there(executor, tmp_path):
    settings = {"compute": Compute(executor=executor, time_limit=1e-6), "run_dir": tmp_path}
    ensemble = fit(build, (X, Y), recipe(), **settings)
    kept = 1 if executor == "sequential" else 4
    assert (ensemble.members, ensemble.info["ended"], ensemble.info["networks"]) == (kept, "time_limit", kept)
    assert ensemble.info["counted"]["epochs"] == kept
    assert {s["reason"] for s in ensemble.info["stopped"]} == {"time_limit"}
    assert ensemble.predict(X).probs.shape == (120, 2)
    again = fit(build, (X, Y), recipe(), **settings)
    assert_same(flat(ensemble), flat(load(tmp_path, build)))
    assert_same(flat(ensemble), flat(again))
    (tmp_path / "members" / "00000.safetensors").unlink()
    with pytest.raises(RunError, match="and member 0 is lost"):
        fit(build, (X, Y), recipe(), **settings)


def test_a_limit_counts_from_the_moment_its_clock_began():
    late = Limit.of(50.0, time.perf_counter() - 100.0)  # building took all of the time
    ensemble = fit(build, (X, Y), recipe(), compute=Compute(executor="vectorized", time_limit=late))
    assert ensemble.info["ended"] == "time_limit"
    assert ensemble.info["counted"]["epochs"] == ensemble.members == 4
    assert (
        "ended"
        not in fit(build, (X, Y), recipe(epochs=8), compute=Compute(time_limit=Limit.of(1e9, time.perf_counter()))).info
    )


@pytest.mark.parametrize("executor", EXECUTORS)
def test_validation_every_few_epochs_leaves_training_as_it_is(executor, tmp_path):
    settings = {"compute": Compute(executor=executor), "validation": 0.25}
    last = EarlyStopping(patience=50, restore_best=False)
    often = fit(build, (X, Y), recipe(epochs=28), early_stopping=last, **settings)
    seldom = fit(
        build,
        (X, Y),
        recipe(epochs=28),
        early_stopping=replace(last, every=3),
        run_dir=tmp_path,
        **settings,
    )
    assert_same(flat(often), flat(seldom))
    looked = {event["epoch"] for event in epochs_of(tmp_path) if event["validation"][0] is not None}
    assert looked == {3, 6, 7}  # the last one too


def test_a_limit_counts_the_time_of_all_parts_of_a_run(tmp_path):
    settings = {"run_dir": tmp_path, "compute": Compute(checkpoint_seconds=0, time_limit=1e9, executor="sequential")}

    def stop(event):
        if event["kind"] == "epoch" and event["epoch"] == 6:
            raise Stop

    with pytest.raises(Stop):
        fit(build, (X, Y), recipe(), callbacks=stop, **settings)
    seconds = [e["counted"]["train_seconds"] for e in epochs_of(tmp_path)]
    whole = fit(build, (X, Y), recipe(), **settings)
    assert whole.info["counted"]["train_seconds"] > seconds[-2]
    assert "ended" not in whole.info
    assert len(epochs_of(tmp_path)) == 60


def test_snapshots_are_not_collected_twice_after_the_time_is_up():
    ensemble = fit(build, (X, Y), recipe("snapshot", 20), compute=Compute(time_limit=1e-6))
    assert ensemble.members == 1


def test_a_phase_whose_rules_give_slots_does_not_stop_before_they_are_there():
    ensemble = fit(
        build, (X, Y), recipe("swag", 40, members=3), validation=0.25, early_stopping=EarlyStopping(patience=1)
    )
    assert ensemble.members == 3


HEAVY = torch.tensor([0.0, 1.0, 2.0, 5.0]).repeat(30)


@pytest.mark.parametrize("by", ["member", "ensemble"])
@pytest.mark.parametrize("measure", ["nll", "brier"])
def test_the_measure_counts_held_out_points_by_their_weights_as_if_they_were_repeated(tmp_path, measure, by):
    stop = EarlyStopping(patience=9, monitor=measure, by=by)
    many = HEAVY.long()
    held = {"weighted": (X, Y, HEAVY), "repeated": (X.repeat_interleave(many, 0), Y.repeat_interleave(many))}
    found = {}
    for name, points in held.items():
        options = {
            "validation": points,
            "early_stopping": stop,
            "run_dir": tmp_path / name,
            "compute": Compute(executor="vectorized"),
        }
        fit(build, (X, Y), recipe(epochs=2, members=2), **options)
        found[name] = [event["validation"] for event in epochs_of(tmp_path / name)]
    assert torch.tensor(found["weighted"]).sub(torch.tensor(found["repeated"])).abs().max() < 1e-6


def test_noise_estimated_on_held_out_points_and_a_share_of_weighted_ones_follow_the_weights(tmp_path):
    real, network = X[:, :1].exp(), lambda: nn.Linear(5, 1)
    ensemble = fit(
        network,
        (X, real),
        recipe("single", epochs=2),
        sample_weight=HEAVY + 1,
        validation=0.3,
        run_dir=tmp_path,
        early_stopping=EarlyStopping(patience=None, restore_best=False),
    )
    _, held = held_out(source_of((X, real)), 0.3, 0)
    scores = ensemble.evaluate(X[held], real[held], sample_weight=(HEAVY + 1)[held])
    assert abs(epochs_of(tmp_path)[-1]["validation"][0] - scores["nll"]) < 1e-4


def test_a_measure_that_is_no_mean_over_points_is_said_to_be_taken_without_weights():
    with pytest.warns(UserWarning, match="'ece' is no mean over points and is taken without them"):
        fit(
            build,
            (X, Y),
            recipe("single", epochs=1),
            validation=(X, Y, HEAVY),
            early_stopping=EarlyStopping(monitor="ece"),
        )


def test_nan_of_an_own_measure_is_an_error_and_of_a_score_a_warning(monkeypatch):
    own = EarlyStopping(patience=2, monitor=lambda prediction, y: float("nan"))
    with pytest.raises(RunError, match="gave NaN after epoch 1 of"):
        fit(build, (X, Y), recipe("single", epochs=3), validation=(X, Y), early_stopping=own)
    monkeypatch.setattr(Regression, "brief", lambda prediction, y: {"nll": float("nan")})
    with pytest.warns(UserWarning, match="'nll' is NaN after epoch 1 of") as said:
        fit(
            lambda: nn.Linear(5, 1),
            (X, X[:, :1]),
            recipe("single", epochs=3),
            validation=(X, X[:, :1]),
            early_stopping=SOON,
        )
    assert sum("is NaN" in str(w.message) for w in said) == 1


LIMITED = {
    "a stack": ({"compute": Compute(executor="vectorized")}, {}),
    "one by one": ({"compute": Compute(executor="sequential")}, {}),
    "stopping by member": ({"compute": Compute(executor="vectorized"), "validation": 0.25, "early_stopping": SOON}, {}),
    "stopping together": (
        {
            "compute": Compute(executor="sequential"),
            "validation": 0.25,
            "early_stopping": EarlyStopping(patience=3, by="ensemble"),
        },
        {},
    ),
    "cycles": ({"compute": Compute(executor="sequential")}, {"name": "snapshot"}),
    "a parent and its children": (
        {"compute": Compute(executor="vectorized")},
        {"name": "prune_and_tune", "members": 2},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", LIMITED)
def test_a_run_that_its_limit_ended_goes_on_to_the_members_of_an_unbroken_one(kind, tmp_path, monkeypatch):
    options, about = LIMITED[kind]
    made = recipe(**{"epochs": 12, "members": 3} | about)
    whole = fit(build, (X, Y), made, **options)
    ticks = iter(range(10**6))
    monkeypatch.setattr(
        "choral.engine.epochs.time.perf_counter", lambda: float(next(ticks))
    )  # an epoch takes 1 or 2 "seconds"
    seen = set()
    for limit in (3, 8, 8, 21, 5, 34):
        part = fit(
            build,
            (X, Y),
            made,
            run_dir=tmp_path,
            **options | {"compute": replace(options["compute"], time_limit=limit)},
        )
        seen.add(part.info.get("ended"))
        assert_same(flat(part), flat(load(tmp_path, build)))
    assert "time_limit" in seen
    rest = fit(build, (X, Y), made, run_dir=tmp_path, **options)
    assert "ended" not in rest.info
    assert rest.info["counted"]["epochs"] == whole.info["counted"]["epochs"]
    assert_same(flat(rest), flat(whole))
    assert_same(flat(rest), flat(load(tmp_path, build)))
    assert not list((tmp_path / "checkpoints").iterdir())


def test_going_on_after_a_limit_may_be_interrupted_and_the_limit_set_again(tmp_path, monkeypatch):
    made, options = (
        recipe(epochs=12, members=3),
        {"compute": Compute(executor="sequential", checkpoint_seconds=0), "run_dir": tmp_path},
    )
    whole = fit(build, (X, Y), made, compute=Compute(executor="sequential"))
    ticks = iter(range(10**6))  # an epoch takes 1 "second", and so does what comes before the first
    monkeypatch.setattr("choral.engine.epochs.time.perf_counter", lambda: float(next(ticks)))

    def stop(event, kind="epoch"):
        if event["kind"] == kind:
            raise Stop

    ended = fit(
        build,
        (X, Y),
        made,
        **options | {"run_dir": tmp_path / "ended"} | {"compute": replace(options["compute"], time_limit=6)},
    )
    for kind in ("stopped", "collected"):  # while it winds up
        with pytest.raises(Stop):
            fit(
                build,
                (X, Y),
                made,
                callbacks=partial(stop, kind=kind),
                **options | {"compute": replace(options["compute"], time_limit=6)},
            )
    again = fit(build, (X, Y), made, **options | {"compute": replace(options["compute"], time_limit=6)})
    assert again.info["ended"] == "time_limit"
    assert_same(flat(again), flat(ended))

    for limit in (40, None, 17):
        with pytest.raises(Stop):
            fit(
                build,
                (X, Y),
                made,
                callbacks=stop,
                **options | {"compute": replace(options["compute"], time_limit=limit)},
            )
    assert_same(flat(fit(build, (X, Y), made, **options)), flat(whole))


def test_a_run_that_was_ended_is_extended_once_it_is_whole(tmp_path):
    fit(build, (X, Y), recipe(epochs=20, members=2), run_dir=tmp_path, compute=Compute(time_limit=1e-6))
    with pytest.raises(RunError, match="a larger time_limit or none"):
        fit(
            build,
            (X, Y),
            recipe(epochs=30, members=3),
            run_dir=tmp_path,
            compute=Compute(time_limit=1e-6),
            on_existing="extend",
        )


@pytest.mark.parametrize(
    "method", ["bnn", "ssbnn", "rank1_bnn", "mc_dropout", "drop_connect", "emp", "packed", "single"]
)
def test_networks_are_measured_as_they_are_now(method):
    g = torch.Generator().manual_seed(3)
    x = torch.randn(80, 3, generator=g)
    y = x @ torch.tensor([1.0, 2.0, 3.0])
    found: list[float] = []

    def hear(event):
        if event["kind"] == "epoch":
            found.append(event["validation"][0])

    value = make(method, budget=6, training=Training(lr=0.01, optimizer=Adam(), batch_size=16))
    held, known = (x[60:], y[60:]), FixedGaussian(precision=1.0)
    network, data = models.mlp(3, 1, hidden=(8, 8)), (x[:60], y[:60])
    options = {
        "early_stopping": EarlyStopping(patience=None, restore_best=False),
        "callbacks": hear,
        "likelihood": known,
    }
    ensemble = fit(network, data, value, validation=held, **options)
    last = ensemble.evaluate(*held)["nll"]
    assert len(set(found)) == len(found)  # weights that are drawn are drawn anew, from what was learned
    assert abs(found[-1] - last) < 0.2 * abs(last)


def test_the_best_epoch_by_exact_matches_is_kept_not_the_worst():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(200, 4, generator=g)
    y = torch.stack([x[:, 0] > 0, x[:, 1] + x[:, 2] > 0, x[:, 3] > 0], 1).float()
    seen = []
    ensemble = fit(
        lambda: models.mlp(4, 3, hidden=(16,)),
        (x, y),
        make("single", budget=10, training=QUICK),
        validation=(x, y),
        early_stopping=EarlyStopping(patience=10, monitor="exact_match"),
        callbacks=lambda event: seen.append(event["validation"][0]) if event["kind"] == "epoch" else None,
    )
    assert max(seen) > min(seen)
    assert ensemble.evaluate(x, y)["exact_match"] == pytest.approx(max(seen))


def test_every_score_is_better_in_the_direction_that_ranks_a_better_ensemble_first():
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 400, 4, generator=g)
    y = torch.randint(0, 4, (400,), generator=g)
    right = logits + 3 * torch.nn.functional.one_hot(y, 4)
    good, bad = (Classification(values).scores(y) for values in (right, logits))
    for name in ("accuracy", "nll", "brier", "member_accuracy", "member_nll"):
        assert Measure.of(name).improves(good[name], bad[name]), name
    labels = (torch.rand(400, 4, generator=g) > 0.5).float()
    good, bad = (MultiLabel(values).scores(labels) for values in (logits + 6 * (labels - 0.5), logits))
    for name in ("accuracy", "exact_match", "nll", "brier"):
        assert Measure.of(name).improves(good[name], bad[name]), name


def test_epochs_are_chosen_for_the_points_that_are_trained_on():
    x, y = X[:75], Y[:75]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        ensemble = fit(build, (x, y), "packed")
    assert not [w for w in said if "below what the method needs" in str(w.message)]
    assert f"{ensemble.recipe.epochs} epochs" in show("packed", build, (x, y)).splitlines()[0]
