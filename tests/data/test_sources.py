import os

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from choral.base import draws
from choral.base.errors import InputError
from choral.data import DatasetSource, HorizontalFlip, PadCrop, TensorSource, prepare, source_of
from choral.plan.cost import batches_in

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
        with draws.keyed(key):
            out = PadCrop(pixels=1)(x)
        padded = torch.nn.functional.pad(x, (1, 1, 1, 1))
        shifts = [(a, b) for a in range(3) for b in range(3) if torch.equal(out[0], padded[0, :, a : a + 6, b : b + 6])]
        assert len(shifts) == 1
        seen |= set(shifts)
    assert len(seen) == 9
    with draws.keyed(3):
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
