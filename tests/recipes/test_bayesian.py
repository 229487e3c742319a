import itertools
import json
from dataclasses import replace
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from tests.plan.written_out import written_out
from torch import nn
from typer.testing import CliRunner

from choral import Compute, models
from choral.base.errors import InputError, PlanError
from choral.base.values import from_dict
from choral.cli.app import app
from choral.fit import fit
from choral.objectives.kl import std_of
from choral.objectives.likelihoods import FixedGaussian
from choral.plan import SGD, Adam, Collect, Constant, DrawTargetShift, Perturb, Reset, ResetStds, Train, fork
from choral.plan.bayes import IID, GuidedWalk
from choral.plan.walk import trainings
from choral.recipes import make
from choral.recipes.recipe import Recipe
from choral.recipes.sebays import Exploitation, schedules
from choral.testing.problems import CALM, PROBLEMS, regression

BUDGETS = [(200, 51, 11), (500, 152, 32), (1000, 351, 72), (10000, 4510, 910)]


@pytest.mark.parametrize(("epochs", "members", "small"), BUDGETS)
def test_sequential_anchored_members_are_those_of_the_papers_tables(epochs, members, small):
    done = CliRunner().invoke(app, ["plan", "sequential_anchored", "--budget", str(epochs), "--json"])
    described = json.loads(done.output)
    assert described["members"] == members
    assert epochs - 4 <= described["epochs"] <= epochs
    assert make("sequential_anchored", budget=epochs, step_epochs=10).members == small
    assert make("anchored", budget=epochs).members == epochs // 100


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({"epochs": 24}, [12, 2, 2, 2, 2, 2, 2]),
        ({"epochs": 3}, [3]),
        ({"epochs": 1}, [1]),
        ({"epochs": 20, "members": 6}, [10, 2, 2, 2, 2, 2]),
        ({"epochs": 20, "members": 1}, [20]),
        ({"epochs": 20, "chains": 2}, [6, 2, 2] * 2),
        ({"epochs": 500, "members": 3}, [100, 200, 200]),
        ({"epochs": 20, "first_epochs": 4, "step_epochs": 8}, [4, 8, 8]),
    ],
)
def test_other_budgets_are_split_by_the_same_rule(options, shape):
    recipe = make("sequential_anchored", **options)
    assert [phase.epochs for phase in trainings(recipe.plan)] == shape
    assert recipe.epochs <= options["epochs"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 20, "members": 5, "chains": 2}, "a multiple of 2"),
        ({"epochs": 20, "members": 30}, "too few for .* a first member of 10 and 29 more"),
        ({"epochs": 20, "first_epochs": 21}, "too few for .* a first member of 21"),
        ({"epochs": 20, "members": 0}, "members is 0"),
        ({"epochs": 3, "chains": 4}, "too few for 4 members"),
    ],
)
def test_budgets_that_cannot_be_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        make("sequential_anchored", **options)


def test_the_anchor_is_the_only_prior_whatever_the_training_says():
    decaying = replace(CALM, optimizer=SGD(weight_decay=0.1))
    for name in ("anchored", "sequential_anchored"):
        found = trainings(make(name, budget=12, training=decaying).plan)
        assert found
        assert all(phase.optimizer.weight_decay == 0 for phase in found)


@pytest.mark.parametrize("chains", [1, 3])
def test_every_chain_sees_its_own_noisy_targets_under_both_executors(chains):
    """One full-batch step of a linear network, against the step worked out from the slots."""
    x, y = regression(20)
    plan = fork(
        chains,
        Reset(),
        DrawTargetShift(walk=IID(), prior_std=1.0),
        Train(epochs=2, batch_size=7, schedule=Constant(0.1), optimizer=SGD(momentum=0.0)),
        Collect(),
    )
    likelihood = FixedGaussian(precision=4.0)
    results = {}
    for executor in ("sequential", "vectorized"):
        recipe = Recipe(name="noisy", plan=plan)
        ensemble = fit(
            lambda: nn.Linear(6, 1), (x, y), recipe, compute=Compute(executor=executor), likelihood=likelihood, seed=5
        )
        results[executor] = [s.params for s in ensemble.states()]
    for a, b in zip(results["sequential"], results["vectorized"]):
        assert torch.allclose(a["weight"], b["weight"], atol=1e-6)
    from choral.base import rng
    from choral.engine.epochs import order_of

    for i, params in enumerate(results["sequential"]):
        with rng.seeded(5, f"f{i}", 0, "build"):
            network = nn.Linear(6, 1)
        noise = torch.randn(20, 1, generator=rng.generator(5, f"f{i}", 1, "target shift")) * 0.5
        key = rng.key(5, f"f{i}", 2, "train")
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        for epoch in range(2):
            order = order_of(key, epoch, 20, None)
            for start in (0, 7, 14):
                index = order[start : start + 7]
                optimizer.zero_grad()
                (2.0 * F.mse_loss(network(x[index]), y[index] + noise[index])).backward()
                optimizer.step()
        assert torch.allclose(network.weight, params["weight"], atol=1e-6)


def test_chains_with_walking_noise_resume_and_agree_across_executors(tmp_path):
    x, y = regression(40)
    recipe = make("sequential_anchored", budget=24, chains=3, target_noise=True, walk=GuidedWalk(step_std=0.1))

    def run(**options):
        noise = FixedGaussian(precision=1.0)  # known: targets are shifted by noise of this size
        return fit(lambda: models.mlp(6, 1, hidden=(5,)), (x, y), recipe, likelihood=noise, **options)

    one, many = run(compute=Compute(executor="sequential")), run(compute=Compute(executor="vectorized"))
    for a, b in zip(one.states(), many.states()):
        assert all(torch.allclose(a.params[n], b.params[n], atol=1e-4) for n in a.params)
    seen = 0

    def stop(event):
        nonlocal seen
        seen += 1
        if seen == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(compute=Compute(executor="vectorized", checkpoint_seconds=0), run_dir=tmp_path, callbacks=stop)
    resumed = run(compute=Compute(executor="vectorized"), run_dir=tmp_path)
    for a, b in zip(resumed.states(), many.states()):
        assert all(torch.equal(a.params[n], b.params[n]) for n in a.params)


def test_target_noise_is_refused_for_classes():
    build, data = PROBLEMS["classification"]
    with pytest.raises(PlanError, match="leave target_noise off"):
        fit(build, data(), make("anchored", budget=4, target_noise=True))


@pytest.mark.parametrize(
    ("name", "first", "later"),
    [
        ("stepwise", [0.01, 0.01, 0.001, 0.001], [0.01, 0.01, 0.001, 0.001]),
        ("cosine", [0.01, 0.0086820, 0.0055, 0.0023180], [0.01, 0.0086820, 0.0055, 0.0023180]),
        ("linear_1", [0.01, 0.00775, 0.0055, 0.00325], [0.01, 0.00775, 0.0055, 0.00325]),
        ("linear_fge", [0.1, 0.055, 0.01, 0.0055], [0.001, 0.0055, 0.01, 0.0055]),
    ],
)
def test_exploitation_schedules_are_those_of_appendix_g(name, first, later):
    found = [[schedule.at(p) for p in (0.0, 0.25, 0.5, 0.75)] for schedule in schedules(name, 0.1)]
    assert found[0] == pytest.approx(first, abs=1e-6)
    assert found[1] == pytest.approx(later, abs=1e-6)
    ends = [schedule.at(1.0) for schedule in schedules(name, 0.1)]
    assert ends == pytest.approx([0.001, 0.001])


def test_the_sequential_plans_are_those_of_the_paper():
    for name in ("sebays_freeze", "sebays_no_freeze", "bnn_sequential"):
        found = [phase for phase, _ in written_out(make(name).plan)]
        trained = [(n.epochs, n.schedule.at(0), n.schedule.at(0.99)) for n in found if isinstance(n, Train)]
        assert trained == [(150, 0.1, 0.1)] + [(100, 0.01, pytest.approx(0.001))] * 3
        assert all(n.optimizer == SGD(momentum=0.9, clip=1.0) for n in found if isinstance(n, Train))
        names = [type(n).__name__ for n in found]
        frozen = ["FreezeGates", "CompactGates"] if name == "sebays_freeze" else []
        kept = ["Train", *(["Recalibrate"] if name == "sebays_no_freeze" else []), "Collect"]
        cycle = ["Perturb", "ResetStds", *kept]
        assert names == ["Reset", "Train", *frozen, *kept, *cycle, *cycle]


def test_statistics_of_kept_members_fit_the_gates_they_predict_with():
    """Gates are drawn in training: the statistics collected then fit no single network, least of all the settled one."""
    torch.manual_seed(0)
    x = torch.randn(512, 6)
    y = (x[:, 0] + x[:, 1] > 0).long()

    def build():
        return nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2))

    for name in ("ssbnn", "sebays_no_freeze"):
        ensemble = fit(build, (x, y), make(name, budget=8, gamma=0.5, training=CALM, draws=1))
        for number in range(ensemble._count):
            network = ensemble._network(number).eval()
            hidden = network[0](x)
            statistics = [b for n, b in network[1].named_buffers() if "running" in n]
            torch.testing.assert_close(statistics[0], hidden.mean(0), atol=0.05, rtol=0.05)
            torch.testing.assert_close(statistics[1], hidden.var(0), atol=0.05, rtol=0.05)


@pytest.mark.parametrize("name", ["ssbnn", "sebays_no_freeze"])
def test_gates_are_drawn_at_prediction_if_asked_for(name):
    """With narrow posteriors and gates near one half, passes differ by their gates alone."""
    problem = PROBLEMS["classification"]
    spread = {}
    for gates in ("median", "drawn"):
        recipe = make(name, budget=4, members=1, draws=8, rho=-20.0, gamma=0.6, gates=gates, training=CALM)
        ensemble = fit(problem.build, problem.data(), recipe)
        probs = ensemble._predictive(problem.data()[0]).member_probs
        spread[gates] = float(probs.std(0).max())
    assert spread["median"] < 1e-4 < 1e-2 < spread["drawn"]


def test_a_frozen_node_may_keep_the_weight_of_its_probability():
    problem = PROBLEMS["classification"]
    logits = {}
    for kl in ("certain", "gamma"):
        recipe = make("sebays_freeze", budget=6, members=2, gamma=0.8, frozen_kl=kl, training=CALM)
        states = fit(problem.build, problem.data(), recipe).states()
        logits[kl] = [torch.cat([p for n, p in s.params.items() if n.endswith("gate_logit")]) for s in states]
    assert all((gates.abs() > 30).all() for gates in logits["certain"])
    first, last = logits["gamma"]
    assert torch.equal(first, last)  # gates are not trained after they are frozen
    assert (first.sigmoid() > 0.5).all()
    assert (first.sigmoid() < 1).all()


def test_every_branch_begins_with_a_perturbation_of_its_own():
    found = written_out(make("sebays_freeze", members=4, branches=2).plan)
    names = [type(phase).__name__ for phase, _ in found]
    kept = ["Train", "Collect"]
    branch = ["Perturb", "ResetStds", *kept, "Perturb", "ResetStds", *kept]
    assert names == ["Reset", "Train", "FreezeGates", "CompactGates", *branch, *branch]
    assert [place.branch for phase, place in found if isinstance(phase, Perturb)] == [0, 0, 1, 1]


def test_a_clip_the_user_chose_is_kept_and_a_missing_one_is_set():
    for clip in (None, 3.0):
        found = trainings(make("bnn", budget=4, training=replace(CALM, optimizer=SGD(clip=clip))).plan)
        assert [phase.optimizer.clip for phase in found] == [clip or 1.0]


@pytest.mark.parametrize("name", ["ssbnn", "sebays_freeze", "sebays_no_freeze"])
def test_gates_are_clipped_with_all_others_unless_the_user_wants_a_norm_of_their_own(name):
    for options, apart in (({"clip_gates": "apart"}, ("*gate_logit",)), ({}, ())):
        found = [phase for phase, _ in written_out(make(name, **options).plan)]
        assert all(n.optimizer.apart == apart for n in found if isinstance(n, Train))
        for node in (n for n in found if isinstance(n, ResetStds)):
            assert node.how == "redraw"
    with pytest.raises(InputError, match="give 'apart' or 'joint'"):
        make(name, clip_gates="alone")


SEQUENTIAL = ["sebays_freeze", "sebays_no_freeze", "bnn_sequential"]


def phases_of(recipe):
    return trainings(recipe.plan)


@pytest.mark.parametrize("name", SEQUENTIAL)
@pytest.mark.parametrize(
    ("options", "total", "explore", "exploit"),
    [
        ({"members": 5}, 650, 150, 100),
        ({"members": 10}, 1150, 150, 100),
        ({"members": 3, "explore_epochs": 20}, 320, 20, 100),
        ({"members": 2, "explore_epochs": 5, "exploit_epochs": 3}, 11, 5, 3),
        ({"members": 3, "epochs": 16}, 16, 7, 3),
        ({"members": 3, "epochs": 16, "explore_epochs": 10}, 16, 10, 2),
        ({"members": 3, "epochs": 16, "exploit_epochs": 2}, 16, 10, 2),
        ({"members": 1, "epochs": 2}, 2, 1, 1),
    ],
)
def test_exploration_and_exploitation_have_epochs_of_their_own(name, options, total, explore, exploit):
    recipe = make(name, **options)
    assert recipe.epochs == total
    assert [phase.epochs for phase in phases_of(recipe)] == [explore] + [exploit] * options["members"]


@pytest.mark.parametrize("name", SEQUENTIAL)
def test_a_sequential_kl_rises_in_the_exploration_alone_and_has_its_weight(name):
    recipe = make(name, anneal=0.5, kl_weight=0.1)
    assert [phase.annealing for phase in phases_of(recipe)] == [True, False, False, False]
    (kl,) = recipe.objective.penalties
    params = {"fc.weight_mean": torch.ones(2, 3), "fc.weight_rho": torch.zeros(2, 3), "fc.gate_logit": torch.zeros(2)}
    (full,) = make(name).objective.penalties
    whole = float(full(params, {}, 0.0))
    assert float(kl(params, {}, 1.0)) == pytest.approx(0.1 * whole, rel=1e-5)
    assert float(kl(params, {}, 0.25)) == pytest.approx(0.05 * whole, rel=1e-5)
    with pytest.raises(InputError, match=r"weight is -1\.0"):
        make(name, kl_weight=-1.0)


def test_a_phase_without_annealing_has_the_full_penalty_from_its_first_step():
    """One epoch at rate 1e-9 measures the loss: the penalty of the plain phase is nearly absent at first."""
    build, data = PROBLEMS["classification"]
    losses = {}
    for annealing in (True, False):
        recipe = make("bnn", budget=1, anneal=1.0, training=replace(CALM, lr=1e-9, schedule="constant"))
        reset, train, collect = recipe.plan.body.phases
        plan = fork(1, reset, replace(train, annealing=annealing), collect)
        events = []
        fit(build, data(), replace(recipe, plan=plan), callbacks=events.append)
        (losses[annealing],) = [e["losses"][0] for e in events if e["kind"] == "epoch"]
    assert losses[False] > 1.5 * losses[True]


@pytest.mark.slow
@pytest.mark.parametrize("name", SEQUENTIAL)
def test_momentum_is_carried_through_phases_if_asked_for(name):
    build, data = PROBLEMS["classification"]
    options = {"epochs": 4, "members": 2, "training": CALM, "draws": 1}
    assert [p.memory for p in phases_of(make(name, memory="carried", **options))] == ["fresh", "carried", "carried"]
    members = []
    for memory in ("fresh", "carried"):
        ensemble = fit(build, data(), make(name, memory=memory, **options))
        members.append([dict(ensemble._network(i).named_parameters()) for i in range(2)])
    for fresh, carried in zip(*members):
        if fresh["last.weight_mean"].shape == carried["last.weight_mean"].shape:
            assert not torch.equal(fresh["last.weight_mean"], carried["last.weight_mean"])


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_rho_and_gates_learn_at_rates_of_their_own(executor):
    """A rate of zero leaves them where they start; another factor moves them further."""
    build, data = PROBLEMS["images"]
    options = {"epochs": 2, "members": 2, "training": CALM, "draws": 1}
    still = fit(
        build, data(), make("ssbnn", rho_rate=0.0, gate_rate=0.0, **options), compute=Compute(executor=executor)
    )
    start, moved = make("ssbnn", **options), make("ssbnn", rho_rate=10.0, gate_rate=3.0, **options)
    assert from_dict(json.loads(json.dumps(moved.to_dict()))) == moved
    for i in range(2):
        params = dict(still._network(i).named_parameters())
        assert torch.equal(params["last.weight_rho"], torch.full_like(params["last.weight_rho"], -6.0))
        assert torch.allclose(params["body.0.gate_logit"].sigmoid(), torch.tensor(0.99))
        assert not torch.equal(params["body.0.weight_mean"], torch.zeros(()).expand_as(params["body.0.weight_mean"]))
    plain, faster = (fit(build, data(), r, compute=Compute(executor=executor)) for r in (start, moved))
    for i in range(2):
        ours, theirs = (dict(e._network(i).named_parameters()) for e in (faster, plain))
        for name, least in (("last.weight_rho", 3.0), ("more.0.gate_logit", 1.5)):
            begin = dict(still._network(i).named_parameters())[name]
            assert (ours[name] - begin).abs().mean() > least * (theirs[name] - begin).abs().mean()


class Stop(Exception):
    pass


@pytest.mark.full
@pytest.mark.parametrize(
    ("optimizer", "executor"),
    [
        (SGD(momentum=0.9, nesterov=True), "vectorized"),
        (Adam(), "sequential"),
        pytest.param(SGD(momentum=0.9, nesterov=True), "sequential", marks=pytest.mark.full),
        pytest.param(Adam(), "vectorized", marks=pytest.mark.full),
    ],
)
def test_clips_rates_and_carried_momentum_survive_a_stop_byte_for_byte(executor, optimizer, tmp_path):
    build, data = PROBLEMS["classification"]
    recipe = make(
        "sebays_freeze",
        budget=8,
        members=4,
        branches=2,
        gamma=0.6,
        memory="carried",
        rho_rate=3.0,
        gate_rate=0.5,
        anneal=0.5,
        training=replace(CALM, optimizer=optimizer),
    )
    fit(build, data(), recipe, run_dir=tmp_path / "whole", compute=Compute(executor=executor))
    stops = itertools.count()

    def stopping(event):
        if event["kind"] == "epoch" and next(stops) % 2:
            raise Stop

    for _ in range(20):
        try:
            fit(
                build,
                data(),
                recipe,
                run_dir=tmp_path / "broken",
                compute=Compute(executor=executor, checkpoint_seconds=0),
                callbacks=stopping,
            )
            break
        except Stop:
            continue
    assert next(stops) > 3
    for member in sorted((tmp_path / "whole" / "members").iterdir()):
        assert (tmp_path / "broken" / "members" / member.name).read_bytes() == member.read_bytes()


@pytest.mark.parametrize("name", SEQUENTIAL)
def test_impossible_sequential_settings_are_refused(name):
    with pytest.raises(InputError, match="a multiple of the branches"):
        make(name, members=4, branches=3)
    with pytest.raises(InputError, match=r"give at least 4 epochs"):
        make(name, budget=3, members=3)
    with pytest.raises(InputError, match=r"make them agree"):
        make(name, budget=20, explore_epochs=5, exploit_epochs=6, members=3)
    with pytest.raises(InputError, match=r"explore_epochs is 0; give .*1 or more"):
        make(name, explore_epochs=0)
    with pytest.raises(InputError, match="give 'stepwise' or 'cosine'"):
        make(name, schedule="stepwize")


PRUNING = {"gamma": 0.6, "training": CALM}


def pruned_network():
    return nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 3)
    )


@pytest.mark.slow
@pytest.mark.parametrize("schedule", get_args(Exploitation))
@pytest.mark.parametrize("branches", [1, 2])
def test_freezing_makes_exploitation_cheaper_and_branches_agree_across_executors(branches, schedule):
    _, data = PROBLEMS["classification"]
    reset = "redraw" if branches == 2 else "small"
    recipe = make(
        "sebays_freeze", budget=12, members=4, branches=branches, schedule=schedule, reset=reset,
        recalibrate=branches == 2, **PRUNING,
    )  # fmt: skip
    events = []
    ensemble = fit(
        pruned_network,
        data(),
        recipe,
        compute=Compute(executor="sequential"),
        callbacks=lambda e: events.append(json.loads(json.dumps(e))),
    )
    other = fit(pruned_network, data(), recipe, compute=Compute(executor="vectorized"))
    for a, b in zip(ensemble.states(), other.states()):
        assert a.form == b.form
        assert all(torch.allclose(a.params[n], b.params[n], atol=2e-4, rtol=2e-3) for n in a.params)
    epochs = [e for e in events if e["kind"] == "epoch"]
    used = [0, *(e["counted"]["train_flops"] for e in epochs)]
    spent = [b - a for a, b in itertools.pairwise(used)]
    explored = recipe.epochs - 4 * 2
    assert len(set(spent[:explored])) == 1
    assert max(spent[explored:]) < 0.8 * spent[0]
    ratio = spent[-1] / spent[0]
    assert epochs[-1]["remaining"][0]["flops"] == pytest.approx(ratio, rel=1e-6)  # all closed nodes could be cut
    assert epochs[0]["remaining"][0]["flops"] >= epochs[-1]["remaining"][0]["flops"]
    assert all(s.form["axes"]["0.weight_mean"]["0"] for s in ensemble.states())
    assert ensemble._parameters < 4 * 0.8 * sum(2 * p.numel() for p in pruned_network().parameters())
    first, second = (s.params["0.weight_mean"] for s in list(ensemble.states())[:2])
    assert not torch.equal(first, second)


def test_without_freezing_the_gates_go_on_learning_and_the_network_keeps_its_shape():
    _, data = PROBLEMS["classification"]
    events = []
    recipe = make("sebays_no_freeze", budget=12, members=4, **PRUNING)
    ensemble = fit(pruned_network, data(), recipe, callbacks=lambda e: events.append(json.loads(json.dumps(e))))
    gates = [s.params["0.gate_logit"] for s in ensemble.states()]
    assert all(s.form is None for s in ensemble.states())
    assert all((a != b).all() for a, b in itertools.pairwise(gates))
    assert all((s.buffers["0.frozen_gate"] == -1).all() for s in ensemble.states())
    assert all(0 < e["remaining"][0]["parameters"] <= 1 for e in events if e["kind"] == "epoch")


@pytest.mark.parametrize(("reset", "scale"), [("small", 1e-6), ("redraw", 0.00248)])
def test_posteriors_are_narrow_again_after_each_member(reset, scale):
    _, data = PROBLEMS["regression"]
    recipe = make("bnn_sequential", budget=12, members=4, reset=reset, training=replace(CALM, lr=1e-4))
    ensemble = fit(lambda: models.mlp(6, 1, hidden=(8,)), data(), recipe)
    for state in list(ensemble.states())[1:]:  # rates are so small that nothing moves far from the reset
        stds = std_of(state.params["linear1.weight_rho"])
        assert float(stds.median()) == pytest.approx(scale, rel=0.1)


def test_kept_deviations_go_on_from_the_last_member_while_means_move_by_the_factor():
    _, data = PROBLEMS["regression"]
    still = {"rho": -2.0, "factor": 2.0, "training": replace(CALM, lr=1e-7)}  # nothing moves but by perturbation
    for reset in ("keep", "redraw"):
        recipe = make("bnn_sequential", budget=12, members=3, reset=reset, **still)
        first, second, _ = (s.params for s in fit(lambda: models.mlp(6, 1, hidden=(8,)), data(), recipe).states())
        step = (second["linear1.weight_mean"] - first["linear1.weight_mean"]).abs() / std_of(
            first["linear1.weight_rho"]
        )
        assert torch.allclose(step, torch.full_like(step, 2.0), atol=1e-3)
        same = torch.allclose(second["linear1.weight_rho"], first["linear1.weight_rho"], atol=1e-4)
        assert same == (reset == "keep")


def test_several_bayesian_networks_agree_across_executors():
    _, data = PROBLEMS["regression"]
    for name in ("bnn", "ssbnn"):
        recipe = make(name, budget=12, members=3, training=CALM)
        runs = [
            fit(lambda: models.mlp(6, 1, hidden=(8,)), data(), recipe, compute=Compute(executor=e))
            for e in ("sequential", "vectorized")
        ]
        for a, b in zip(*(run.states() for run in runs)):
            assert all(torch.allclose(a.params[n], b.params[n], atol=2e-4, rtol=2e-3) for n in a.params)


def test_a_member_that_closed_every_node_is_told_of(tmp_path):
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    recipe = make("ssbnn", budget=30, gamma=0.05, training=CALM)
    with pytest.warns(UserWarning, match="closed every node of 'linear1', 'linear2'"):
        fit(lambda: models.mlp(4, 2, hidden=(6, 6)), (x, (x[:, 0] > 0).long()), recipe, run_dir=tmp_path)
    assert "closed every node" in (tmp_path / "log.jsonl").read_text()
