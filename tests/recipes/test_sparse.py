"""Prune and Tune, DST and EDST: masks as promised, exact zeros, smaller networks, users' own networks."""

from dataclasses import replace

import pytest
import torch
from tests.plan.written_out import written_out
from torch import nn

from choral import Compute, masks, models
from choral.base.errors import InputError
from choral.compaction import compact
from choral.engine.checkpoint import encode_member
from choral.fit import fit
from choral.plan import SGD, Adam, AntiRandom, Collect, Hatch, Prune, Regrow, State, Train, fork, seq
from choral.plan.walk import trainings
from choral.recipes import make, prune_and_tune
from choral.recipes.training import Training

G = torch.Generator().manual_seed(0)
X = torch.randn(64, 6, generator=G)
Y = torch.randint(3, (64,), generator=G)
IMAGES = torch.randn(32, 3, 12, 12, generator=G)
QUICK = Training(lr=0.05, optimizer=SGD(), batch_size=16)


def rows_of(states):
    """Return the masks of members as rows."""
    return [torch.cat([m.flatten() for m in state.slots["mask"].values()]) for state in states]


def wide():
    return models.mlp(6, 3, hidden=(32, 24))


def test_budgets_of_the_paper():
    big, small = prune_and_tune(training="paper"), prune_and_tune(budget=16, members=8, training="paper")
    assert (big.epochs, big.members, small.epochs, small.members) == (200, 6, 16, 8)
    text = str(big), str(small)
    assert "Train 140 epochs" in text[0]
    assert "Train 10 epochs, OneCycle(peak=0.1)" in text[0]  # its defaults are 0.001 and 1e-7
    assert "Train 8 epochs" in text[1]
    assert "Train 1 epochs" in text[1]


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
@pytest.mark.parametrize("optimizer", [SGD(momentum=0.9, nesterov=True, weight_decay=1e-3), Adam(weight_decay=1e-3)])
def test_anti_random_children_are_complementary_pairs_with_exact_zeros(executor, optimizer):
    training = Training(lr=0.02, optimizer=optimizer, batch_size=16)
    states = list(
        fit(
            wide,
            (X, Y),
            make("prune_and_tune", budget=8, members=4, training=training),
            compute=Compute(executor=executor),
        ).states()
    )
    for first, second in (states[:2], states[2:]):
        for name, mask in first.slots["mask"].items():
            other = second.slots["mask"][name]
            assert torch.equal(mask, ~other)
            assert abs(int(mask.sum()) - mask.numel() / 2) <= 0.5
            assert (first.params[name][~mask] == 0).all()
            assert (first.params[name][mask] != 0).float().mean() > 0.99
    assert not torch.equal(states[0].slots["mask"]["linear2.weight"], states[2].slots["mask"]["linear2.weight"])
    assert set(states[0].slots["mask"]) == {"linear2.weight"}


def test_a_partition_covers_everything_once_and_random_masks_have_the_density():
    states = list(
        fit(wide, (X, Y), make("prune_and_tune", budget=6, members=3, pruning="partition", training=QUICK)).states()
    )
    for name in states[0].slots["mask"]:
        assert (sum(s.slots["mask"][name].int() for s in states) == 1).all()
    random = list(
        fit(
            wide, (X, Y), make("prune_and_tune", budget=6, members=3, pruning="random", sparsity=0.75, training=QUICK)
        ).states()
    )
    assert all(int(m.sum()) == round(0.25 * m.numel()) for s in random for m in s.slots["mask"].values())
    found, drawn = ([s.slots["mask"] for s in each] for each in (states, random))
    assert masks.total_distance(found) > masks.total_distance(drawn)


def test_both_executors_draw_the_same_masks_and_another_seed_draws_others():
    recipe = make("prune_and_tune", budget=6, members=4, training=QUICK)
    runs = [
        list(fit(wide, (X, Y), recipe, compute=Compute(executor=e), seed=s).states())
        for e, s in (("sequential", 0), ("vectorized", 0), ("sequential", 1))
    ]
    for a, b, c in zip(*runs):
        for name in a.slots["mask"]:
            assert torch.equal(a.slots["mask"][name], b.slots["mask"][name])
            assert not torch.equal(a.slots["mask"][name], c.slots["mask"][name])


def test_a_trained_parent_is_taken_as_it_is():
    torch.manual_seed(0)
    parent = wide()
    recipe = make(
        "prune_and_tune",
        budget=2,
        members=2,
        parent_epochs=0,
        tuning="constant",
        training=Training(lr=1e-12, optimizer=SGD(), schedule="constant"),
    )
    for state in fit(parent, (X, Y), recipe).states():
        for name, p in parent.named_parameters():
            mask = state.slots["mask"].get(name, torch.ones_like(p, dtype=torch.bool))
            assert torch.allclose(state.params[name], p.detach() * mask, atol=1e-6)


@pytest.mark.parametrize(("schedule", "rate"), [("linear_drop", 0.001), ("steps", 0.001), ("constant", 0.1)])
def test_constant_tuning_goes_on_at_the_last_rate_of_the_parent(schedule, rate):
    recipe = make(
        "prune_and_tune",
        budget=20,
        members=2,
        tuning="constant",
        training=Training(lr=0.1, optimizer="sgd", batch_size=128, schedule=schedule),
    )
    parent, (_, tune, _) = recipe.plan.phases[1], recipe.plan.phases[2].body.phases
    steps = 1000
    assert tune.schedule.rate(0, steps) == tune.schedule.rate(steps - 1, steps) == pytest.approx(rate)
    assert parent.schedule.rate(steps - 1, steps) == pytest.approx(rate)


def test_a_tuning_rate_is_that_of_children_alone():
    for training in (Training(), Training(lr=0.1, optimizer="sgd", schedule="linear_drop"), Training(lr=0.1, end=0.01)):
        rates = {}
        for tuning in ("constant", "one_cycle"):
            recipe = prune_and_tune(epochs=60, tuning=tuning, tuning_lr=0.02, training=training)
            parent, child = trainings(recipe.plan)[:2]
            assert parent.schedule == trainings(prune_and_tune(epochs=60, training=training).plan)[0].schedule
            rates[tuning] = [child.schedule.at(share) for share in (0.0, 0.1, 1.0)]
        assert rates["constant"] == [0.02, 0.02, 0.02]
        assert rates["one_cycle"] == pytest.approx([0.0002, 0.02, 2e-8])


def test_constant_tuning_after_a_schedule_that_ends_at_zero_is_refused():
    with pytest.raises(InputError, match=r"parent's.*0 with schedule='cosine'"):
        prune_and_tune(tuning="constant", training=Training(lr=0.1, optimizer="sgd", batch_size=128))


def test_odd_members_are_said_and_wrong_settings_refused():
    with pytest.warns(UserWarning, match="no complementary partner"):
        assert prune_and_tune(members=3).members == 3
    for options, message in [
        ({"sparsity": 0.7}, "need 0.5"),
        ({"pruning": "partition", "members": 4, "sparsity": 0.5}, "need 0.75"),
        ({"epochs": 6, "members": 6}, "too few for a parent and 6 children"),
        ({"pruning": "random", "sparsity": 1.0}, "sparsity is 1.0; give a number from 0 to below 1"),
    ]:
        with pytest.raises(InputError, match=message):
            prune_and_tune(**options)


def test_bagged_children_train_on_their_own_points():
    plan = str(make("prune_and_tune", budget=6, members=2, bagging=0.9, training=QUICK))
    assert "Bag()" in plan
    ensemble = fit(wide, (X, Y), make("prune_and_tune", budget=6, members=2, bagging=0.9, training=QUICK))
    assert ensemble.info["counted"]["points"] == 4 * 64 + 2 * 58


@pytest.mark.parametrize("cv", [None, 2])
def test_boosted_children_are_pairs_of_one_parent_on_points_drawn_by_losses(cv):
    still = {"tuning": "constant", "tuning_lr": 1e-30, "training": QUICK}
    recipe = make("prune_and_tune", budget=8, members=4, boosting=True, **still)
    ensemble = fit(wide, (X, Y), recipe, cv=cv)
    states = list(ensemble.states())
    for run in range(0, len(states), 4):
        parents = []
        for first, second in (states[run : run + 2], states[run + 2 : run + 4]):
            mask = first.slots["mask"]
            assert all(torch.equal(second.slots["mask"][name], ~m) for name, m in mask.items())
            # tuned at a rate of nearly nothing, a pair is its parent
            parents.append({n: p + second.params[n] if n in mask else p for n, p in first.params.items()})
        assert all(torch.allclose(parents[0][n], p) for n, p in parents[1].items())
        one, other = rows_of((states[run], states[run + 2]))
        assert 0 < (one & other).sum() < one.sum()
    assert ensemble.info["counted"]["points"] == 8 * 64 if cv is None else 2 * 8 * 32


def test_boosted_children_of_a_resumed_run_are_those_of_an_unbroken_one(tmp_path):
    recipe = make("prune_and_tune", budget=8, members=4, boosting=True, unit="neuron", training=QUICK)

    def stop(event):
        if event["kind"] == "collected" and event["place"].endswith("r1/5"):
            raise KeyboardInterrupt

    options = {"run_dir": tmp_path, "compute": Compute(checkpoint_seconds=0), "validation": None}
    with pytest.raises(KeyboardInterrupt):
        fit(wide, (X, Y), recipe, callbacks=stop, **options)
    resumed = fit(wide, (X, Y), recipe, **options)
    assert '"resumed"' in (tmp_path / "log.jsonl").read_text()
    for mine, whole in zip(resumed.states(), fit(wide, (X, Y), recipe, validation=None).states()):
        assert all(torch.equal(mine.params[n], p) for n, p in whole.params.items())


def test_neuron_pruned_members_are_physically_smaller_with_the_same_outputs():
    def build():
        return models.resnet_cifar(8, channels=3, classes=3)

    recipe = make("prune_and_tune", budget=3, members=2, unit="neuron", training=QUICK)
    ensemble = fit(build, (IMAGES, Y[:32]), recipe)
    dense = sum(p.numel() for p in build().parameters())
    for i, state in enumerate(ensemble.states()):
        assert state.form is not None
        assert sum(p.numel() for p in state.params.values()) < 0.4 * dense
        with torch.no_grad():
            assert torch.allclose(ensemble.member(i)(IMAGES[:4]), ensemble.outputs(IMAGES[:4])[i], atol=1e-5)
    whole = fit(build, (IMAGES, Y[:32]), make("single", budget=3, training=QUICK))
    saved = whole.info["counted"]["train_flops"] - ensemble.info["counted"]["train_flops"]
    assert (
        saved > 0.6 * 2 / 3 * whole.info["counted"]["train_flops"]
    )  # two of three epochs at about a quarter of the cost


def test_compacting_a_pruned_network_keeps_its_function():
    torch.manual_seed(1)
    network = models.lenet("5", side=16).eval()
    x = torch.randn(3, 3, 16, 16)
    keep = {"conv1": torch.rand(6) < 0.5, "fc1": torch.rand(120) < 0.5}
    result = compact(network, keep, x)
    with torch.no_grad():
        for layer, vector in keep.items():
            module = network.get_submodule(layer)
            module.weight[~vector] = 0
            module.bias[~vector] = 0
        assert torch.allclose(result.network(x), network(x), atol=1e-5)


def test_a_half_masked_member_is_stored_in_at_most_0_56_of_the_dense_bytes():
    def build():
        return models.mlp(64, 10, hidden=(256, 256))

    torch.manual_seed(0)
    state = State({n: p.detach() for n, p in build().named_parameters()}, {})

    class Place:
        turn, points = 0, 10

        def network(self, state):
            return build()

        def example(self):
            return torch.zeros(2, 64)

        def calls(self, state):
            return ()

        def generator(self, purpose):
            return torch.Generator().manual_seed(0)

        sibling_generator = generator

    pruned = Prune(masks=AntiRandom(), keep_classifier=False).apply(state, Place())
    assert len(encode_member(pruned)) <= 0.56 * len(encode_member(state))


def test_grown_weights_start_with_zero_value_and_zero_momentum():
    params = {"w": torch.tensor([[0.1, 5.0, 0.0, 0.0]])}
    memory = {"momentum_buffer/w": torch.full((1, 4), 7.0), "step/w": torch.tensor(3.0)}
    state = State(params, {}, {"mask": {"w": torch.tensor([[True, True, False, False]])}}, memory)

    class Place:
        def gradients(self, state, batches):
            return {"w": torch.tensor([[9.0, 0.0, 0.5, -1.0]])}

        def generator(self, purpose):
            return torch.Generator().manual_seed(0)

    new = Regrow(rate=0.5).apply(state, Place())
    assert new.slots["mask"]["w"].tolist() == [[False, True, False, True]]
    assert new.params["w"].tolist() == [[0.0, 5.0, 0.0, 0.0]]
    assert new.memory["momentum_buffer/w"].tolist() == [[0.0, 7.0, 0.0, 0.0]]
    assert new.memory["step/w"] == 3


@pytest.mark.parametrize("name", ["dst", "edst"])
def test_dynamic_sparse_members_keep_their_density_and_differ_in_their_masks(name):
    recipe = make(name, budget=12, members=3, interval=3, training=QUICK)
    states = list(fit(wide, (X, Y), recipe).states())
    total = sum(m.numel() for m in states[0].slots["mask"].values())
    for state in states:
        assert sum(int(m.sum()) for m in state.slots["mask"].values()) == round(0.2 * total)
        assert all((state.params[n][~m] == 0).all() for n, m in state.slots["mask"].items())
    one, other, _ = rows_of(states)
    assert float((one & other).sum() / (one | other).sum()) < 0.9


def trained(recipe):
    """The training phases of a plan in order, repeats written out."""
    return trainings(recipe.plan)


@pytest.mark.parametrize(
    ("options", "split"),
    [
        ({}, [150, 50, 50, 50, 50, 50, 50]),
        ({"epochs": 850, "members": 7}, [150] + 14 * [50]),
        ({"epochs": 450, "members": 7}, [156] + 14 * [21]),
        ({"epochs": 16, "members": 3}, [7, 2, 1, 2, 1, 2, 1]),
        ({"epochs": 40, "members": 2, "explore_epochs": 0}, [0, 10, 10, 10, 10]),
    ],
)
def test_edst_explores_for_epochs_of_its_own(options, split):
    recipe = make("edst", training="paper", **options)
    assert [phase.epochs for phase in trained(recipe)] == split
    assert {round(p.schedule.at(0.5), 6) for p in trained(recipe)} == {0.1, 0.01, 0.001}


@pytest.mark.parametrize("name", ["dst", "edst"])
def test_connections_move_to_the_end_of_every_phase_unless_told_to_stop(name):
    for moving, last in ((None, 12000), (0.75, 9000)):
        for phase in trained(make(name, moving=moving)):
            (rule,) = phase.every
            assert max(step for step in range(1, 12001) if rule.due(step, 12000)) == last
        assert ("until 75 %" in str(make(name, moving=moving))) == (moving == 0.75)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 7, "members": 3}, "at least 8 epochs"),
        ({"epochs": 20, "members": 3, "explore_epochs": 15}, "at least 21 epochs"),
        ({"moving": 1.5}, "stop is 1.5"),
    ],
)
def test_impossible_explorations_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        make("edst", **options)


class OwnResidual(nn.Module):
    """Nested Sequentials, a residual sum, BatchNorm: a user's network that knows nothing of choral."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)), nn.ReLU())
        self.block = nn.Sequential(
            nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1)
        )
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))

    def forward(self, x):
        h = self.stem(x)
        return self.head(torch.relu(h + self.block(h)))


@pytest.mark.parametrize("unit", ["connection", "neuron"])
@pytest.mark.parametrize(
    "build", [OwnResidual, lambda: models.vit(12, patch=4, classes=3, width=16, depth=2, heads=2, hidden=32)]
)
def test_users_own_networks_go_through_without_changes(build, unit):
    ensemble = fit(build, (IMAGES, Y[:32]), make("prune_and_tune", budget=4, members=2, unit=unit, training=QUICK))
    assert torch.isfinite(ensemble.outputs(IMAGES)).all()
    dense = sum(p.numel() for p in build().parameters())
    assert ensemble._parameters < 0.85 * 2 * dense


def test_children_of_a_table_keep_the_first_layer_and_those_of_images_do_not():
    def masked(network, x):
        data = (x, torch.arange(len(x)) % 3)
        recipe = prune_and_tune(budget=3, members=2, training=Training(optimizer="sgd", lr=0.01, batch_size=8))
        ensemble = fit(lambda: network, data, recipe, progress=False)
        return [sorted(n for n, m in state.mask.items() if not m.all()) for state in ensemble.states()]

    g = torch.Generator().manual_seed(0)
    rows = torch.randn(16, 5, generator=g)
    deep = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 3))
    assert masked(deep, rows) == [["2.weight"], ["2.weight"]]
    flat = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    assert masked(flat, rows) == [["0.weight"], ["0.weight"]]  # else nothing would differ
    images = torch.randn(16, 3, 6, 6, generator=g)
    conv = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(64, 3))
    assert masked(conv, images) == [["0.weight"], ["0.weight"]]


class Sentence(nn.Module):
    """Nothing but a recurrent layer and the classifier."""

    def __init__(self):
        super().__init__()
        self.body, self.last = nn.LSTM(6, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.body(x)[0][:, -1])


def test_recurrent_weights_are_pruned_too():
    states = list(
        fit(Sentence, (X.view(16, 4, 6), Y[:16]), make("prune_and_tune", budget=8, members=2, training=QUICK)).states()
    )
    first, second = (s.slots["mask"] for s in states)
    assert set(first) == {"body.weight_ih_l0", "body.weight_hh_l0"}
    assert all(torch.equal(mask, ~second[name]) for name, mask in first.items())
    assert all((states[0].params[name][~mask] == 0).all() for name, mask in first.items())


@pytest.mark.parametrize("method", ["prune_and_tune", "dst", "edst"])
def test_a_network_with_nothing_to_prune_is_refused_before_training(method):
    heard = []
    with pytest.raises(InputError, match="nothing to prune: "):
        fit(lambda: nn.Linear(6, 3), (X, Y), make(method, budget=12), callbacks=heard.append)
    assert not heard


def test_recurrent_neurons_are_not_pruned_without_a_word():
    recipe = make("prune_and_tune", budget=8, members=2, unit="neuron", training=QUICK)
    with pytest.raises(InputError, match="nothing to prune: the network has no convolutions and linear layers"):
        fit(Sentence, (X.view(16, 4, 6), Y[:16]), recipe)


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (lambda: models.resnet_cifar(8, width=8, classes=4), (3, 16, 16)),
        (lambda: models.lenet("S", classes=4, side=16), (3, 16, 16)),
        (lambda: models.mlp(6, 4, hidden=(40, 30)), (6,)),
    ],
)
def test_children_of_a_mother_are_wider_and_compute_the_same_before_they_are_tuned(build, shape):
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(24, *shape, generator=generator), torch.arange(24) % 4
    recipe = make("mothernets", budget=6, members=2, training=Training(lr=0.01, optimizer=Adam(), batch_size=8))
    plan = seq(*recipe.plan.phases[:-1], Collect(), fork(2, Hatch(), Collect()))
    ensemble = fit(build, (x, y), replace(recipe, plan=plan))
    mother, *children = ensemble.states()
    sizes = [sum(p.numel() for p in state.params.values()) for state in (mother, *children)]
    assert sizes[0] < 0.6 * sizes[1] == 0.6 * sizes[2]
    logits = ensemble._predictive(x).logits
    assert (logits - logits[:1]).abs().max() < 1e-6
    assert any((a - children[1].params[n]).abs().max() > 1e-3 for n, a in children[0].params.items())
    assert sizes[1] == sum(p.numel() for p in build().parameters())


def test_neurons_that_cannot_leave_are_masked_and_train_in_children():
    """LayerNorm reads all features, so the mother keeps them as zeros."""
    x, y = torch.randn(24, 6, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 4
    recipe = make("mothernets", budget=12, members=2, training=Training(lr=0.01, optimizer=Adam(), batch_size=8))
    ensemble = fit(
        lambda: nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 4)), (x, y), recipe
    )
    for state in ensemble.states():
        assert not state.mask
        assert (state.params["0.weight"] != 0).all()


def test_a_mother_gets_half_of_the_epochs_and_what_does_not_divide():
    for options, epochs in (({"budget": 21}, [13, 2, 2, 2, 2]), ({"budget": 20, "mother_epochs": 4}, [4, 4, 4, 4, 4])):
        recipe = make("mothernets", members=4, **options)
        assert [p.epochs for p, _ in written_out(recipe.plan) if isinstance(p, Train)] == epochs
    with pytest.raises(InputError, match="a mother and 4 members"):
        make("mothernets", budget=4)
    with pytest.raises(InputError, match="size is 1"):
        make("mothernets", size=1.0)


def test_children_without_layers_compute_what_the_shortcuts_and_the_other_layers_give():
    recipe = make("prune_and_tune", budget=6, members=4, unit="layer", training=QUICK)
    ensemble = fit(lambda: models.resnet_cifar(8, classes=3, width=8), (IMAGES, Y[:32]), recipe)
    bodies = {f"layer{i}.0" for i in (1, 2, 3)}
    lost = []
    for i, state in enumerate(ensemble.states()):
        assert all(bool(m.all()) or not bool(m.any()) for m in state.mask.values())
        lost.append({name.rsplit(".", 2)[0] for name, m in state.mask.items() if not m.any()})
        network = ensemble.member(i)
        for body in lost[-1]:
            network.get_submodule(body).bn2 = Zero()
        with torch.no_grad():
            assert torch.allclose(network(IMAGES), ensemble.outputs(IMAGES)[i], atol=1e-5)
    assert lost[0] ^ lost[1] == lost[2] ^ lost[3] == bodies
    assert {len(own) for own in lost} == {1, 2}


class Zero(nn.Module):
    """Nothing, in place of the end of a residual body."""

    def forward(self, x):
        return torch.zeros_like(x)


def test_layers_of_a_chain_are_not_removed():
    with pytest.raises(InputError, match="Prune has no layer to remove"):
        fit(wide, (X, Y), make("prune_and_tune", budget=6, members=2, unit="layer", training=QUICK))
