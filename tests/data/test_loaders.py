"""Datasets and DataLoaders: obeyed or refused, exact with random items, and known again by what they hold."""

import random
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import choral
from choral.base.errors import InputError, RunError
from choral.data import DatasetSource, TensorSource, source_of
from choral.plan import Adam
from choral.recipes import make
from choral.recipes.training import Training

G = torch.Generator().manual_seed(0)
X = torch.randn(32, 3, generator=G)
Y = torch.arange(32) % 2
EIGHT = Training(lr=0.01, optimizer=Adam(), batch_size=8)


def build():
    return nn.Linear(3, 2)


def one(**options):
    return make("single", **({"epochs": 2, "training": EIGHT} | options))


def weights(ensemble):
    return torch.cat([p.flatten() for state in ensemble.states() for p in state.params.values()])


class Items(Dataset):
    """Items that are made as they are read."""

    def __init__(self, x=X, y=Y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], int(self.y[i])


class Shaken(Items):
    """Every item drawn anew, by three generators."""

    def __getitem__(self, i):
        noise = torch.randn(3) + float(np.random.normal()) + random.random()
        return self.x[i] + noise, int(self.y[i])


class Own(Items):
    """Items drawn by a generator that nobody can set."""

    draw = np.random.default_rng()

    def __getitem__(self, i):
        return self.x[i] + float(self.draw.normal()), int(self.y[i])


class Stream(IterableDataset):
    def __iter__(self):
        yield from zip(X, Y)


def test_a_weighted_sampler_decides_what_is_seen():
    heavy = torch.where(Y == 1, 3.0, 1.0)
    source = source_of(DataLoader(TensorDataset(X, Y), 8, sampler=WeightedRandomSampler(heavy, 4000)))
    assert source.points == 32
    assert source.drawn() == 4000
    order = source.sampling.order(torch.Generator().manual_seed(1))
    assert float((Y[order] == 1).float().mean()) == pytest.approx(0.75, abs=0.03)
    without = WeightedRandomSampler(heavy, 20, replacement=False)
    order = source_of(DataLoader(Items(), 8, sampler=without)).sampling.order(torch.Generator().manual_seed(1))
    assert len(order) == len(order.unique()) == 20


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
@pytest.mark.parametrize("data", [TensorDataset(X, Y), Items()], ids=["memory", "items"])
def test_points_of_weight_nothing_are_never_trained_on(executor, data):
    """With weights on eight points alone, members are those that never saw any other."""
    some = torch.zeros(32).index_fill_(0, torch.arange(0, 32, 4), 1.0)
    spoilt = torch.where(some.unsqueeze(1) > 0, X, X + 1e3)
    twin = TensorDataset(spoilt, Y) if isinstance(data, TensorDataset) else Items(spoilt)
    recipe = make("deep_ensemble", budget=4, members=2, training=EIGHT)
    found = [
        choral.fit(
            build,
            DataLoader(d, 8, sampler=WeightedRandomSampler(some, 16)),
            recipe,
            compute=choral.Compute(executor=executor),
        )
        for d in (data, twin)
    ]
    assert torch.equal(*map(weights, found))
    plain = choral.fit(build, data, recipe, compute=choral.Compute(executor=executor))
    assert not torch.equal(weights(found[0]), weights(plain))
    assert found[0].info["counted"]["points"] == 4 * 16
    assert found[0].info["counted"]["steps"] == 4 * 2


def test_a_sampler_is_part_of_the_run(tmp_path):
    loaders = [DataLoader(Items(), 8, sampler=WeightedRandomSampler(torch.ones(32) + w * Y, 16)) for w in (0, 1)]
    choral.fit(build, loaders[0], one(), run_dir=tmp_path)
    choral.fit(build, loaders[0], one(), run_dir=tmp_path)
    with pytest.raises(RunError, match="of the DataLoader was changed"):
        choral.fit(build, loaders[1], one(), run_dir=tmp_path)


def test_a_subset_sampler_trains_on_the_subset():
    rows = list(range(0, 32, 3))
    expected = weights(choral.fit(build, (X[rows], Y[rows]), one()))
    for data in (
        DataLoader(TensorDataset(X, Y), 8, sampler=SubsetRandomSampler(rows)),
        DataLoader(Items(), 8, sampler=SubsetRandomSampler(rows)),
        Subset(TensorDataset(X, Y), rows),
        DataLoader(Subset(Items(), rows), 8, shuffle=True),
    ):
        assert torch.equal(weights(choral.fit(build, data, one())), expected)


def test_a_random_sampler_that_draws_some_is_obeyed():
    source = source_of(DataLoader(Items(), 8, sampler=RandomSampler(Items(), num_samples=12)))
    assert source.drawn() == 12
    assert source_of(DataLoader(Items(), 8, shuffle=True)).sampling is None


class Backwards(Sampler):
    def __iter__(self):
        return iter(range(31, -1, -1))

    def __len__(self):
        return 32


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (lambda: DataLoader(Items(), 4), "batch_size=4, but the recipe trains with batches of 8; give training=Training"),
        (lambda: DataLoader(Items(), 8, sampler=Backwards()), "sampler is Backwards, which choral cannot reproduce"),
        (lambda: DataLoader(Items(), batch_sampler=[[0, 1]]), "batch_sampler list"),
        (lambda: DataLoader(Items(), batch_size=None), "no batches"),
        (lambda: DataLoader(Items(), 8, sampler=WeightedRandomSampler([1.0], 4)), r"weights has shape \(1,\) for 32 points"),
        (lambda: DataLoader(Items(), 8, sampler=WeightedRandomSampler([0.0] * 32, 4)), "at least one of them above 0"),
        (lambda: DataLoader(Stream(), 8), "cannot be read again by index"),
    ],
)  # fmt: skip
def test_what_a_loader_asks_and_cannot_have_is_refused(loader, message, tmp_path):
    with pytest.raises(InputError, match=message):
        choral.fit(build, loader(), one(), run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_loader_that_drops_nothing_is_taken():
    expected = weights(choral.fit(build, (X, Y), one()))
    for loader in (DataLoader(Items(), 8, drop_last=True), DataLoader(TensorDataset(X, Y), 8, shuffle=True)):
        assert torch.equal(weights(choral.fit(build, loader, one())), expected)


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_items_that_draw_are_exact(executor, tmp_path):
    recipe = make("deep_ensemble", budget=2, members=2, training=EIGHT)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    first = choral.fit(build, Shaken(), recipe, compute=choral.Compute(executor=executor), run_dir=tmp_path)
    after = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]
    torch.rand(3), np.random.normal(), random.random()
    again = choral.fit(build, Shaken(), recipe, compute=choral.Compute(executor=executor))
    assert torch.equal(weights(first), weights(again))
    assert torch.equal(
        weights(first),
        weights(choral.fit(build, Shaken(), recipe, compute=choral.Compute(executor=executor), run_dir=tmp_path)),
    )


def test_items_that_draw_are_the_same_in_worker_processes():
    expected = weights(choral.fit(build, Shaken(), one()))
    loader = DataLoader(Shaken(), 8, num_workers=2)
    assert torch.equal(weights(choral.fit(build, loader, one())), expected)


def test_every_epoch_branch_and_position_draws_anew():
    source = DatasetSource(Shaken(torch.zeros(4, 3), torch.zeros(4)))
    order = torch.tensor([[0, 1, 0, 2], [0, 1, 0, 2]])
    (x, _), = source.epoch(order, 4, keys=(1, 2))  # fmt: skip
    assert len({tuple(row) for row in x.flatten(0, 1).tolist()}) == 8
    (again, _), = source.epoch(order[:1], 4, keys=(1,))  # fmt: skip
    assert torch.equal(x[:1], again)
    halves = [x for x, _ in source.epoch(order[0], 2, keys=(1,))]
    assert torch.equal(torch.cat(halves), x[0])


def test_datasets_that_draw_nothing_pay_nothing():
    source = DatasetSource(Items())
    list(source.epoch(torch.arange(32), 8))
    assert not source._items.drawn


def test_one_replaced_item_is_noticed(tmp_path):
    choral.fit(build, Items(), one(), run_dir=tmp_path)
    choral.fit(build, Items(), one(), run_dir=tmp_path)
    other = X.clone()
    other[17, 1] += 1e-3
    with pytest.raises(RunError, match="the training data was changed"):
        choral.fit(build, Items(other), one(), run_dir=tmp_path)


def test_one_changed_row_of_a_large_array_is_noticed():
    x = np.zeros((5_000, 4_096), dtype=np.float32)  # 80 MB
    y = np.zeros(5_000)
    before = TensorSource(x, y).digest()
    x[3_333, 7] = 1
    assert TensorSource(x, y).digest() != before


def test_a_name_stands_for_what_a_dataset_holds():
    one, other = Items(), Items(X + 1)
    one.name = other.name = "rows of May"
    assert DatasetSource(one).digest() == DatasetSource(other).digest()
    other.name = "rows of June"
    assert DatasetSource(one).digest() != DatasetSource(other).digest()
    assert DatasetSource(Subset(one, range(8))).digest() != DatasetSource(one).digest()


def test_items_that_no_key_decides_are_said_and_known_by_their_number(tmp_path):
    with pytest.warns(UserWarning, match="of the Own differ"):
        choral.fit(build, Own(), one(), run_dir=tmp_path)
    with pytest.warns(UserWarning, match="two reads"):
        choral.fit(build, Own(), one(), run_dir=tmp_path)


def test_predictions_of_datasets_loaders_and_streams():
    ensemble = choral.fit(build, (X, Y), one())
    expected = ensemble.predict(X).probs
    for x in (
        TensorDataset(X),
        TensorDataset(X, Y),
        Items(),
        DataLoader(Items(), 5),
        DataLoader(Stream(), 5),
        Stream(),
    ):
        assert torch.allclose(ensemble.predict(x).probs, expected, atol=1e-6)
    with pytest.raises(InputError, match="gives no batches"):
        ensemble.predict(DataLoader(Subset(Items(), []), 5))


@pytest.mark.parametrize(
    ("loader", "why"),
    [
        (lambda: DataLoader(Items(), 8, shuffle=True), "order of a RandomSampler.*shuffle=False"),
        (lambda: DataLoader(Items(), batch_sampler=BatchSampler(RandomSampler(Items()), 8, False)), "RandomSampler"),
        (lambda: DataLoader(Items(), batch_sampler=[[0, 1]]), "order of a list"),
        (lambda: DataLoader(Items(), 5, drop_last=True), "drop_last=False"),
        (lambda: DataLoader(Stream(), 5, drop_last=True), "drop_last=False"),
    ],
)
def test_loaders_that_mix_or_lose_rows_are_refused_for_prediction(loader, why):
    ensemble = choral.fit(build, (X, Y), one())
    for asked in (lambda: ensemble.predict(loader()), lambda: ensemble.evaluate(loader(), Y)):
        with pytest.raises(InputError, match=why):
            asked()
    assert len(ensemble.predict(DataLoader(Items(), 8, drop_last=True)).probs) == 32  # nothing is lost


@pytest.mark.parametrize(
    "data",
    [
        (X, Y),
        TensorDataset(X, Y),
        Items(),
        DataLoader(Items(), 5),
        DataLoader(Items(), 5, shuffle=True),
        DataLoader(Stream(), 5),
    ],
    ids=["pair", "tensors", "items", "loader", "shuffled", "stream"],
)
def test_evaluation_takes_inputs_and_targets_together_as_fit_does(data):
    ensemble = choral.fit(build, (X, Y), one())
    expected = ensemble.evaluate(X, Y)
    assert ensemble.evaluate(data) == pytest.approx(expected, abs=1e-6)
    temperature = ensemble.calibrated(X, Y).posthoc[0].temperatures
    assert ensemble.calibrated(data).posthoc[0].temperatures == pytest.approx(temperature, rel=1e-3)


@pytest.mark.parametrize(
    "data", [X, TensorDataset(X), DataLoader(TensorDataset(X), 5)], ids=["array", "dataset", "loader"]
)
def test_evaluation_asks_for_targets_that_are_not_there(data):
    ensemble = choral.fit(build, (X, Y), one())
    with pytest.raises(InputError, match="y is None"):
        ensemble.evaluate(data)


def test_labels_of_a_dataset_in_memory_are_all_looked_at():
    labels = Y.clone()
    labels[31] = 5
    with pytest.raises(InputError, match="5"):
        choral.fit(build, TensorDataset(X, labels), one())


def test_loaders_warn_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".*(budget is below|rows no better than)")  # few steps on purpose
        choral.fit(build, DataLoader(Items(), 8, shuffle=True), one())


def test_batches_of_different_shapes_are_not_stacked():
    class Sequences(Dataset):
        def __len__(self):
            return 12

        def __getitem__(self, index):
            return torch.ones(1 + index, 3), index % 2

    def padded(items):
        x = nn.utils.rnn.pad_sequence([x for x, _ in items], batch_first=True)
        return x, torch.tensor([y for _, y in items])

    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(3, 2)

        def forward(self, x):
            return self.last(x.mean(1))

    def trained(executor):
        data, recipe = DataLoader(Sequences(), 4, collate_fn=padded), make("deep_ensemble", budget=4, members=2)
        return choral.fit(Mean, data, recipe, validation=None, compute=choral.Compute(executor=executor))

    assert trained("auto").members == 2
    with pytest.raises(InputError, match="differ in shape; use executor='sequential'"):
        trained("vectorized")
