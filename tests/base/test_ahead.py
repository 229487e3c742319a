"""Numbers drawn with those of other sites are those drawn one by one, to the last bit."""

import numpy as np
import pytest
import torch
from torch import Tensor

from choral import Compute, models
from choral.base import ahead, draws
from choral.base.hashing import signed, site_words
from choral.base.streams import Stream
from choral.fit import fit
from choral.recipes import make

LIKE = torch.zeros(1)
SHAPES = [(3, 4), (1,), (700,), (16, 3, 3, 3), (20_000,), (0,), (9,)]


def drawn(of: draws.Ahead | None, key: int, step: int, shapes: list[tuple[int, ...]] = SHAPES) -> list[Tensor]:
    with draws.keyed(key, step, catch=False, ahead=of) as stream:
        found = [kind(shape, like=LIKE) for shape in shapes for kind in (draws.normal, draws.uniform)]
        found.append(draws.normal((2, 5), like=LIKE.double()))
        found.append(draws.keep_mask((5,), 0.5, device=LIKE.device))
        found.append(draws.normal((6, 2), like=LIKE, rows=0))
        return [*found, torch.tensor([stream.site, stream.drawn])]


@pytest.mark.parametrize("key", [0, 5, 2**63 + 12_345, 2**64 - 1])
def test_numbers_drawn_ahead_are_those_drawn_one_by_one(key):
    held = draws.Ahead()
    for step in (0, 1, 2, 2**40):
        for together, alone in zip(drawn(held, key, step), drawn(None, key, step), strict=True):
            assert together.dtype == alone.dtype
            assert torch.equal(together, alone)


@pytest.mark.parametrize("key", [0, 77, 2**64 - 3])
def test_words_of_many_sites_are_those_of_each(key):
    stream = Stream(key, 9)
    one_by_one = [stream.next_words() for _ in range(50)]
    firsts, seconds = site_words(key, 9, np.arange(50, dtype=np.uint32))
    assert [(signed(int(a)), signed(int(b))) for a, b in zip(firsts, seconds)] == one_by_one


def test_a_pass_that_draws_elsewhere_gets_the_right_numbers_and_gives_up_in_the_end(monkeypatch):
    monkeypatch.setattr(ahead, "_PLANS", 3)
    held = draws.Ahead()
    for step in range(8):
        shapes = SHAPES[step % 3 :] + SHAPES[: step % 3]
        for together, alone in zip(drawn(held, 4, step, shapes), drawn(None, 4, step, shapes), strict=True):
            assert torch.equal(together, alone)
    assert not held._ready


def test_a_pass_run_twice_gets_equal_numbers_in_memory_of_its_own():
    held = draws.Ahead()
    drawn(held, 1, 0)
    first = drawn(held, 1, 1)
    second = drawn(held, 1, 1)
    for a, b in zip(first[:4], second[:4], strict=True):
        assert torch.equal(a, b)
        assert a.data_ptr() != b.data_ptr()


def test_training_gives_the_same_weights_drawn_ahead_or_not(monkeypatch):
    x, y = torch.randn(40, 4, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 3

    def weights():
        ensemble = fit(
            lambda: models.mlp(4, 3, hidden=(8,)),
            (x, y),
            make("ssbnn", budget=3),
            compute=Compute(executor="sequential"),
        )
        return next(ensemble.states()).params

    together = weights()
    monkeypatch.setattr(ahead.Ahead, "take", lambda *_: None)
    alone = weights()
    assert all(torch.equal(together[name], alone[name]) for name in alone)
