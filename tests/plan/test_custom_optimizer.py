"""Optimizers and rates of the user's own."""

import json

import pytest
import torch
from torch import nn

import choral
from choral.base.errors import InputError
from choral.base.values import from_dict
from choral.plan.optimizers import OwnOptimizer
from choral.plan.schedules import OwnRate
from choral.recipes import make
from choral.recipes.training import Training
from choral.testing import CHECKS, PROBLEMS, check_recipe

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()
ELEMENTWISE = ("RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "Rprop", "ASGD")


def build():
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))


def given():
    torch.manual_seed(3)
    return build()


def trained(optimizer, executor="sequential", **options):
    training = Training(optimizer=optimizer, lr=0.02, batch_size=40, schedule="constant", **options)
    plan = choral.fork(3, choral.seq(choral.Start(), training.phase(4), choral.Collect()))
    return choral.fit(given(), (X, Y), choral.Recipe(name="own", plan=plan), compute=choral.Compute(executor=executor))


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_it_trains_as_a_hand_written_loop_does_alone_and_stacked(name):
    kind = getattr(torch.optim, name)
    network = given()
    by_hand = kind(network.parameters(), lr=0.02)
    for _ in range(4):
        by_hand.zero_grad()
        nn.functional.cross_entropy(network(X), Y).backward()
        by_hand.step()
    for executor in ("sequential", "vectorized"):
        member = trained(kind, executor).member(1)
        for p, q in zip(member.parameters(), network.parameters()):
            torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)


class Sharing(torch.optim.SGD):
    """Every number's step depends on all of them."""

    @torch.no_grad()
    def step(self, closure=None):
        total = sum(p.grad.square().sum() for g in self.param_groups for p in g["params"]).sqrt()
        for g in self.param_groups:
            for p in g["params"]:
                p.sub_(p.grad / total, alpha=g["lr"])


def test_an_optimizer_that_mixes_numbers_trains_members_one_at_a_time():
    value = OwnOptimizer.of(Sharing)
    assert not value.elementwise
    alone, together = trained(Sharing), trained(Sharing, "vectorized")
    for i in range(3):
        for p, q in zip(alone.member(i).parameters(), together.member(i).parameters()):
            assert torch.equal(p, q)


@pytest.mark.full
@pytest.mark.parametrize(
    "optimizer",
    [
        torch.optim.ASGD,
        pytest.param(lambda p: torch.optim.SGD(p, momentum=0.9, dampening=0.1), marks=pytest.mark.full),
    ],
)
def test_it_passes_the_public_suite(optimizer):
    training = Training(optimizer=optimizer, lr=0.01, batch_size=16)
    check_recipe(make("deep_ensemble", members=2, budget=4, training=training))


def test_runs_are_resumed_exactly():
    # it divides by the size of gradients, so that where those are 0 up to rounding (a bias before BatchNorm) executors differ
    training = Training(optimizer=torch.optim.NAdam, lr=0.01, batch_size=16)
    CHECKS["resumes_exactly"](make("deep_ensemble", members=2, budget=4, training=training), PROBLEMS["images"])


def test_weight_decay_of_the_factory_counts_and_leaves_where_the_objective_holds_the_prior():
    def decaying(groups):
        return torch.optim.SGD(groups, weight_decay=10.0)

    plain, held = (trained(f).member(0)[0].weight.norm() for f in (lambda g: torch.optim.SGD(g), decaying))
    assert held < 0.7 * plain
    training = Training(optimizer=decaying, lr=0.02).without_decay()
    (made,) = training.optimizer.make(training.optimizer.groups(dict(given().named_parameters())))
    assert {g["weight_decay"] for g in made.param_groups} == {0.0}


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        (torch.optim.LBFGS, "LBFGS .*closure"),
        (lambda p: None, "failed with"),
        (lambda: torch.optim.SGD([]), "failed with"),
        ("adamm", "give 'sgd', 'adam', 'adamw'.*[Dd]id you mean"),
        (7, "optimizer is 7"),
        (nn.Linear, "Linear .*failed"),
    ],
)
def test_what_cannot_be_used_is_said_before_training(optimizer, said):
    with pytest.raises(InputError, match=said):
        Training(optimizer=optimizer, lr=0.1)


def test_a_factory_brings_its_own_learning_rate_where_none_is_given():
    assert Training(optimizer=lambda p: torch.optim.NAdam(p, lr=0.3)).lr == 0.3
    assert Training(optimizer=torch.optim.NAdam).lr == 2e-3


def test_names_are_accepted():
    assert Training(optimizer="adam").optimizer == choral.Adam()
    assert Training(optimizer="AdamW").optimizer == choral.AdamW()


@pytest.mark.parametrize("wrong", [{"lr": "0.1"}, {"batch_size": "8"}, {"lr": True}, {"end": None}])
def test_settings_of_another_type_are_refused(wrong):
    with pytest.raises(InputError, match=f"{next(iter(wrong))} is .*give a"):
        Training(**wrong)


def test_a_rate_of_ones_own_is_the_rate_of_every_step():
    rates = []
    recipe = make(
        "single", budget=3, training=Training(optimizer="sgd", schedule=lambda step: 0.1 / (1 + step), batch_size=20)
    )
    choral.fit(build, (X, Y), recipe, callbacks=lambda e: rates.append(e.get("rate")))
    assert [r for r in rates if r is not None] == [0.1, 0.1 / 3, 0.1 / 5]
    both = OwnRate.of(lambda step, steps: 1 - step / steps)
    assert both.rate(5, 10) == 0.5
    assert both.at(0.25) == 0.75


@pytest.mark.parametrize(
    "function", [lambda step: -1.0, lambda step: "fast", lambda step: float("nan"), lambda step: None]
)
def test_what_is_no_rate_is_refused_at_once(function):
    with pytest.raises(InputError, match="finite rate of 0 or more"):
        Training(optimizer="sgd", batch_size=128, schedule=function)


def test_a_method_that_cuts_the_schedule_needs_the_steps():
    with pytest.raises(InputError, match=r"function of \(step, steps\)"):
        make(
            "prune_and_tune",
            budget=8,
            tuning="constant",
            members=2,
            training=Training(optimizer="sgd", batch_size=128, schedule=lambda step: 0.1),
        )


def test_a_recipe_with_functions_is_written_compared_and_read_by_name():
    recipe = make("single", budget=2, training=Training(optimizer=torch.optim.NAdam, schedule=lambda step: 0.1))
    read = from_dict(json.loads(json.dumps(recipe.to_dict())))
    assert read == recipe
    assert recipe != make("single", budget=2, training=Training(optimizer=torch.optim.RAdam, schedule=lambda step: 0.1))
    with pytest.raises(InputError, match="contains no code"):
        choral.fit(build, (X, Y), read)


def test_a_saved_ensemble_predicts_without_them(tmp_path):
    ensemble = trained(torch.optim.NAdam)
    ensemble.save(tmp_path / "e.choral")
    again = choral.load(tmp_path / "e.choral", build=build)
    assert torch.equal(again.predict(X).probs, ensemble.predict(X).probs)


def test_another_function_in_the_same_folder_is_another_run(tmp_path):
    def run(factor):
        training = Training(optimizer="sgd", batch_size=128, schedule=lambda step: factor / (1 + step))
        return choral.fit(build, (X, Y), make("single", budget=1, training=training), run_dir=tmp_path)

    run(0.1)
    run(0.1)
    with pytest.raises(choral.ChoralError, match="another run"):
        run(0.2)


def test_hooks_of_the_factory_are_called_at_every_step():
    called = []

    def factory(params):
        made = torch.optim.SGD(params, lr=0.1)
        made.register_step_pre_hook(lambda *_: called.append(1))
        return made

    training = Training(optimizer=OwnOptimizer.of(factory), batch_size=8)
    before = len(called)
    choral.fit(
        lambda: nn.Linear(3, 2), (torch.randn(16, 3), torch.arange(16) % 2), make("single", epochs=3, training=training)
    )
    assert len(called) >= before + 6
