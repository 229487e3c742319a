import math
import os

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import choral
from choral.base.errors import InputError
from choral.data import DatasetSource, HorizontalFlip, PadCrop, TensorSource, prepare, source_of
from choral.layers.keyed import keyed
from choral.objectives import FixedGaussian
from choral.plan.cost import batches_in
from choral.recipes import make
from choral.recipes.training import Training

X = torch.arange(24.0).view(6, 4)
Y = torch.arange(6)


@pytest.mark.parametrize("make", [lambda: TensorSource(X, Y), lambda: DatasetSource(TensorDataset(X, Y))])
def test_batches_follow_the_order_also_with_a_member_axis(make):
    source = make()
    order = torch.tensor([5, 1, 0, 2, 4])
    batches = list(source.epoch(order, 2))
    assert len(batches) == batches_in(5, 2) == 2  # the last single point is left out
    assert [y.tolist() for _, y in batches] == [[5, 1], [0, 2]]
    branches = torch.stack([order, order.flip(0)])
    (x, y), *_ = source.epoch(branches, 3)
    assert y.tolist() == [[5, 1, 0], [4, 2, 0]]
    assert torch.equal(x, X[y])


def test_images_keep_their_values_and_come_channels_last():
    images = torch.randint(0, 256, (5, 3, 4, 6)).to(torch.uint8)
    (x, _), *_ = TensorSource(images, torch.arange(5)).epoch(torch.arange(4), 4)
    assert torch.equal(x, images[:4])
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert torch.allclose(prepare(x, (), training=True), images[:4].float() / 255)


def test_the_digest_changes_with_any_value():
    one = TensorSource(X, Y).digest()
    other = X.clone()
    other[5, 3] += 1
    assert TensorSource(other, Y).digest() != one
    assert TensorSource(X, Y.flip(0)).digest() != one
    assert TensorSource(X.clone(), Y.clone()).digest() == one


def test_streams_that_cannot_be_indexed_are_refused():
    class Stream(IterableDataset):
        def __iter__(self):
            yield X[0], Y[0]

    with pytest.raises(InputError, match="cannot be read again by index"):
        source_of(DataLoader(Stream()))


def test_a_crop_is_a_shift_and_a_flip_a_mirror():
    x = torch.arange(2 * 36.0).view(2, 1, 6, 6) + 1
    seen = set()
    for key in range(200):
        with keyed(key):
            out = PadCrop(pixels=1)(x)
        padded = torch.nn.functional.pad(x, (1, 1, 1, 1))
        shifts = [(a, b) for a in range(3) for b in range(3) if torch.equal(out[0], padded[0, :, a : a + 6, b : b + 6])]
        assert len(shifts) == 1
        seen |= set(shifts)
    assert len(seen) == 9
    with keyed(3):
        out = HorizontalFlip()(x.repeat(200, 1, 1, 1))
    mirrored = [bool(torch.equal(o, x[i % 2].flip(-1))) for i, o in enumerate(out)]
    assert all(m or torch.equal(o, x[i % 2]) for i, (m, o) in enumerate(zip(mirrored, out)))
    assert 150 < sum(mirrored) < 250


class Pids(Dataset):
    """Items that say which process read them."""

    def __len__(self):
        return 6

    def __getitem__(self, i):
        return torch.tensor([float(i)]), os.getpid()


def test_loader_workers_last_from_epoch_to_epoch_also_after_one_that_was_left():
    source = DatasetSource(Pids(), workers=2)
    order = torch.tensor([5, 1, 0, 2])
    pids = set()
    for _ in range(3):
        next(iter(source.epoch(order.flip(0), 2)))  # left on the way
        batches = list(source.epoch(order, 2))
        assert torch.cat([x[:, 0] for x, _ in batches]).tolist() == order.tolist()
        pids |= {int(pid) for _, y in batches for pid in y}
    assert len(pids) == 2
    assert os.getpid() not in pids
    outer = source.epoch(order, 2)
    first = next(outer)[0]
    inner = [x[:, 0].tolist() for x, _ in source.epoch(order.flip(0), 2)]
    assert inner == [[2, 0], [1, 5]]
    assert torch.cat([first, next(outer)[0]])[:, 0].tolist() == order.tolist()


def _line(y, network=lambda: nn.Linear(3, 1)):
    x = torch.randn(len(y), 3, generator=torch.Generator().manual_seed(0))
    return x, choral.fit(network, (x, y), make("single", budget=1), validation=None)


def _learned(y, **options):
    x = torch.randn(len(y), 3, generator=torch.Generator().manual_seed(0))
    recipe = make("deep_ensemble", members=2, budget=60, training=Training(optimizer="adam", lr=0.03, batch_size=16))
    return x, choral.fit(lambda: nn.Linear(3, y.shape[1]), (x, y), recipe, **options)


@pytest.mark.parametrize(("shift", "size"), [(1.7e9, 1.0), (0.0, 1e20), (0.0, 1e-25), (1e12, 1e3)])
def test_targets_far_from_zero_and_large_ones_are_learned_in_double_precision(shift, size):
    draw = torch.Generator().manual_seed(0)
    slope = torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64)
    noise = 0.1 * torch.randn(48, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    plain = torch.randn(48, 3, generator=draw).double() @ slope + noise
    x, usual = _learned(plain)
    x, ensemble = _learned(shift + size * plain)
    expected, found = usual.evaluate(x, plain), ensemble.evaluate(x, shift + size * plain)
    assert ensemble.predict(x).mean.dtype == torch.float64
    assert expected["rmse"] < 0.5
    for name in ("rmse", "mae", "crps"):
        assert found[name] / size == pytest.approx(expected[name], rel=1e-2), name
    assert found["nll"] - math.log(size) == pytest.approx(expected["nll"], abs=1e-2)
    assert found["coverage_90"] == pytest.approx(expected["coverage_90"], abs=0.05)
    whole = torch.round(1.7e9 + 1000 * plain).long() if shift == 1.7e9 else None
    if whole is not None:
        _, ensemble = _learned(whole, likelihood="gaussian")
        assert ensemble.evaluate(x, whole)["rmse"] / 1000 == pytest.approx(expected["rmse"], rel=1e-2)


def test_targets_of_a_dataset_are_scaled_before_they_are_rounded():
    x = torch.randn(32, 3, generator=torch.Generator().manual_seed(0))
    items = [(row, 1.7e9 + float(row.sum())) for row in x]

    class Items(torch.utils.data.Dataset):
        def __len__(self):
            return len(items)

        def __getitem__(self, index):
            return items[index]

    recipe = make("single", budget=60, training=Training(optimizer="adam", lr=0.03, batch_size=16))
    ensemble = choral.fit(lambda: nn.Linear(3, 1), Items(), recipe, validation=0.25)
    assert ensemble.evaluate(x, np.array([y for _, y in items]))["rmse"] < 0.5


def test_targets_that_stay_in_their_units_must_fit_the_type_of_training():
    noise = torch.randn(40, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for far in (1.7e9 + noise, 1.7e9 + 20 * noise, torch.cat([noise, 1.7e9 + noise], 1)):
        with pytest.raises(InputError, match="which float32 rounds away; subtract a constant"):
            _learned(far, likelihood=FixedGaussian(standardize=False))
    for fine in (1e4 + noise, noise * 1e6, noise * 1e-6):
        x, ensemble = _line(fine)
        assert bool(torch.isfinite(ensemble.predict(x).std).all())
        assert ensemble.predict(x).mean.dtype == torch.float32
    far = 1.7e9 + noise
    x, ensemble = _line(far, lambda: nn.Linear(3, 1).double())
    x = x.double()
    assert ensemble.evaluate(x, far)["rmse"] < 3


def test_masked_values_and_a_missing_axis_over_rows_are_said():
    y = torch.arange(12) / 5
    x, ensemble = _line(y)
    masked = np.ma.masked_array(x.numpy(), mask=x.numpy() > 1)
    with pytest.raises(InputError, match=r"x has .* masked values"):
        ensemble.predict(masked)
    with pytest.raises(InputError, match="y has 1 masked values"):
        ensemble.evaluate(x, np.ma.masked_array(y.numpy(), mask=[1] + [0] * 11))
    ensemble.predict(np.ma.masked_array(x.numpy()))  # nothing is masked
    with pytest.raises(InputError, match=r"shape \(3,\) of one row, without the axis over rows"):
        ensemble.predict(x[0])
