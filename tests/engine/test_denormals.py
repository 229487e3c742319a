import pytest
import torch

from choral.engine.denormals import flushes, flushing
from choral.fit import fit
from choral.recipes import make
from choral.testing.problems import CALM, PROBLEMS

CAN = torch.set_flush_denormal(True)
torch.set_flush_denormal(False)
pytestmark = pytest.mark.skipif(not CAN, reason="this processor cannot flush")


@pytest.fixture(autouse=True)
def _as_usual():
    torch.set_flush_denormal(False)
    yield
    torch.set_flush_denormal(False)


@pytest.mark.parametrize("before", [False, True])
def test_training_flushes_and_the_program_goes_on_as_before(before):
    torch.set_flush_denormal(before)
    build, data = PROBLEMS["regression"]
    seen = []
    recipe = make("single", budget=1, training=CALM)
    fit(build, data(), recipe, listener=lambda _: seen.append(flushes()))
    assert seen
    assert all(seen)
    assert flushes() is before


def test_a_failure_restores_it_too():
    @flushing()
    def fail():
        assert float((torch.tensor([1e-38]) * 0.1)[0]) == 0
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not flushes()


def test_settings_of_the_process_can_be_left_alone(monkeypatch):
    asked, seen = [], []
    monkeypatch.setattr("choral.engine.process_wide.keep_freed", lambda: asked.append(True))
    build, data = PROBLEMS["regression"]
    recipe = make("single", budget=1, training=CALM)
    fit(build, data(), recipe, listener=lambda _: seen.append(flushes()), process_wide=False)
    assert seen
    assert not any(seen)
    assert not asked
