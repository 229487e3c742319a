"""Training on another device: nothing is mixed with the processor, and no step waits for the device."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import choral
from choral import recipes
from choral.base import devices
from choral.base.errors import InputError
from choral.data.sources import TensorSource
from choral.plan.optimizers import Adam, Member, Stepper
from choral.recipes import METHODS


@pytest.mark.slow
@pytest.mark.full
def test_steps_of_every_method_stay_on_the_device():
    script = Path(__file__).parent / "pretend_device.py"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split("\n")[:-1] == [f"{name} {count} ok" for name in METHODS for count in (1, 2)]


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(InputError, match="cannot be used here"):
        devices.usable("cuda:7")


def test_constants_are_copied_once():
    one = devices.constant((0.5, 2.0), torch.float32, torch.device("cpu"))
    assert devices.constant((0.5, 2.0), torch.float32, torch.device("cpu")) is one
    assert devices.constant((0.5, 2.0), torch.float64, torch.device("cpu")).dtype == torch.float64


def test_data_goes_to_a_device_that_has_room_and_else_stays_pinned(monkeypatch):
    source = TensorSource(torch.ones(6, 2), torch.arange(6))
    assert source.placed(torch.device("cpu")) is source
    meta = torch.device("meta")
    monkeypatch.setattr(devices, "is_processor", lambda device: device.type == "cpu")
    monkeypatch.setattr(devices, "holds", lambda device, size: size < 1000)
    there = source.placed(meta)
    assert there.x.device == there.y.device == meta
    x, y = next(there.epoch(torch.arange(6), 4))
    assert x.device == y.device == meta
    assert source.x.device.type == "cpu"
    monkeypatch.setattr(devices, "holds", lambda device, size: False)
    pinned: list[torch.Tensor] = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: pinned.append(self) or self)
    source.placed(meta)
    assert len(pinned) == 2


def test_the_steps_an_optimizer_remembers_are_where_its_kernel_reads_them():
    weight = nn.Parameter(torch.ones(3, device="meta"))
    stepper = Stepper({"w": weight}, [Member(Adam())])
    memory = {"step/w": torch.tensor(5.0), "exp_avg/w": torch.zeros(3), "exp_avg_sq/w": torch.zeros(3)}
    stepper.restore([memory])
    assert {t.device.type for t in stepper.optimizers[0].state[weight].values()} == {"meta"}


@pytest.mark.parametrize(("device", "kernel"), [("cpu", "loop"), ("cuda", "grouped")])
def test_the_kernel_is_chosen_where_the_network_is(device, kernel, monkeypatch):
    joint = recipes.batch_ensemble(budget=1).structure.convert(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)), torch.Generator()
    )
    monkeypatch.setattr(devices, "is_processor", lambda _: device == "cpu")
    joint.choose_kernel()
    assert joint.kernel == kernel


def test_tensors_from_elsewhere_are_read(monkeypatch):
    moved: list[torch.Tensor] = []
    real = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: moved.append(self) or real(self))
    x, y = torch.randn(20, 3), torch.randint(2, (20,))
    choral.fit(lambda: nn.Linear(3, 2), (x, y), recipes.single(budget=1), progress=False)
    assert any(t.data_ptr() == x.data_ptr() for t in moved)
