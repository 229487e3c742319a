"""Another number of threads rounds sums differently and changes nothing else; within one number nothing changes at all."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

from choral import Compute, models
from choral.base.errors import InputError
from choral.engine import compute, evaluate
from choral.fit import fit
from choral.plan import Adam
from choral.recipes import make
from choral.recipes.training import Training


def build():
    return models.mlp(64, 10, hidden=(512,))


def members(count, executor, **options):
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(256, 64, generator=draw), torch.randint(10, (256,), generator=draw)
    training = Training(lr=0.001, optimizer=Adam(), batch_size=128)
    recipe = make("deep_ensemble", budget=6, members=2, training=training)
    return list(fit(build, (x, y), recipe, compute=Compute(executor=executor, threads=count), **options).states())


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_members_agree_across_numbers_of_threads_to_rounding(executor):
    one, two, again = (members(t, executor) for t in (1, 2, 2))
    for a, b, c in zip(one, two, again):
        for name in a.params:
            torch.testing.assert_close(a.params[name], b.params[name], atol=1e-4, rtol=1e-3)
            assert torch.equal(b.params[name], c.params[name])


SEEN: list[int] = []


class Counting(nn.Module):
    """Notes how many threads torch has whenever it runs."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))

    def forward(self, x):
        SEEN.append(torch.get_num_threads())
        return self.layers(x)


@pytest.fixture
def two():
    """A user who allows two threads."""
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


SMALL = (torch.randn(64, 4, generator=torch.Generator().manual_seed(0)), torch.arange(64) % 3)
SINGLE = make("single", budget=2, training=Training(lr=0.1, optimizer="sgd", batch_size=16))


def test_small_networks_are_trained_by_one_thread_and_the_setting_comes_back(two, tmp_path):
    fit(Counting, SMALL, SINGLE, run_dir=tmp_path)
    assert set(SEEN[-8:]) == {1}
    assert torch.get_num_threads() == 2
    assert json.loads((tmp_path / "plan.json").read_text())["environment"]["threads"] == 1


def test_an_exception_gives_the_setting_back_too(two):
    def stop(event):
        assert torch.get_num_threads() == 1
        raise KeyError("stopped")

    with pytest.raises(KeyError, match="stopped"):
        fit(Counting, SMALL, SINGLE, callbacks=stop)
    assert torch.get_num_threads() == 2


def test_threads_asked_for_are_obeyed(two, tmp_path):
    ensemble = fit(Counting, SMALL, SINGLE, run_dir=tmp_path, compute=Compute(threads=2))
    assert set(SEEN[-9:-1]) == {2}
    assert json.loads((tmp_path / "plan.json").read_text())["environment"]["threads"] == 2
    SEEN.clear()
    ensemble.predict(SMALL[0], threads=3)
    assert SEEN[-1] == 3
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "2"])
def test_threads_that_are_no_number_are_refused(wrong):
    with pytest.raises(InputError, match="threads is"):
        fit(Counting, SMALL, SINGLE, compute=Compute(threads=wrong))


def test_large_networks_get_all_threads(two, monkeypatch, tmp_path):
    monkeypatch.setattr(compute, "_SMALL", 2000)  # 16 rows of 2 * (16 + 12) operations are 896, 64 are 3584
    large = make("single", budget=2, training=Training(lr=0.1, optimizer="sgd", batch_size=64))
    ensemble = fit(Counting, SMALL, large, run_dir=tmp_path)
    assert json.loads((tmp_path / "plan.json").read_text())["environment"]["threads"] == 2
    used: list[int] = []
    real = evaluate.using
    monkeypatch.setattr(evaluate, "using", lambda number: (used.append(number), real(number))[1])
    ensemble.predict(SMALL[0][:16])
    assert used[-1] == 1
    ensemble.predict(SMALL[0])
    assert used[-1] == 2


class Stop(Exception):
    pass


def test_a_run_goes_on_with_the_threads_it_was_begun_with(tmp_path):
    x, y = torch.randn(256, 64, generator=torch.Generator().manual_seed(0)), torch.arange(256) % 10
    recipe = make("single", budget=4, training=Training(lr=0.001, optimizer=Adam(), batch_size=128))

    def stop(event):
        if event["kind"] == "epoch" and event["epoch"] == 3:
            raise Stop

    options = {"compute": Compute(executor="sequential", checkpoint_seconds=0.0)}
    (whole,) = fit(build, (x, y), recipe, **options | {"compute": replace(options["compute"], threads=2)}).states()
    (one,) = fit(build, (x, y), recipe, **options | {"compute": replace(options["compute"], threads=1)}).states()
    with pytest.raises(Stop):
        fit(
            build,
            (x, y),
            recipe,
            run_dir=tmp_path,
            callbacks=stop,
            **options | {"compute": replace(options["compute"], threads=2)},
        )
    assert torch.get_num_threads() == 1
    (resumed,) = fit(build, (x, y), recipe, run_dir=tmp_path, **options).states()
    assert all(torch.equal(resumed.params[n], whole.params[n]) for n in whole.params)
    if all(torch.equal(one.params[n], whole.params[n]) for n in whole.params):
        pytest.skip("one thread and two give the same bits on this machine, so nothing was shown")
