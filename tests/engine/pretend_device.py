"""Training steps of every method on a device that only pretends: tensors have a place and a shape but no values.

Mixing it with the processor is an error there, and so is reading a value back, which would make a step wait for the device.
Prints one line for each method and trainer: 'ok', or what went wrong.
"""

import copy
import sys
from dataclasses import replace

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import choral
from choral.base.errors import ChoralError
from choral.engine.blueprint import Blueprint
from choral.engine.job import call_of
from choral.engine.trainers import Pace, PlainTrainer, StackedTrainer
from choral.plan.operators import UpdateMoments
from choral.plan.optimizers import Stepper
from choral.plan.walk import trainings
from choral.recipes import METHODS, make
from choral.recipes.training import Training

x = torch.randn(40, 3, 8, 8, generator=torch.Generator().manual_seed(0))
y = (x.mean((1, 2, 3)) > 0).long()
RULED = "swag"  # whose rule is tried too


def build():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Flatten(),
        nn.Linear(72, 16),
        nn.ReLU(),
        nn.Linear(16, 2),
    )


def steps(name, count, mode, device):
    recipe = make(name, budget=24, training=Training(optimizer="sgd", lr=0.1, batch_size=16))
    inputs = (choral.data.Normalize(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)), choral.data.PadCrop(pixels=1))
    task = call_of(build, (x, y), recipe, {"validation": None, "transforms": inputs, "device": "cpu"}).job().task
    phase, state = trainings(recipe.plan)[0], task.blueprint.fresh(0, "pretend")
    slots = {s: {n: torch.zeros_like(p) for n, p in state.params.items()} for s in task.objective.slots}
    network = copy.deepcopy(task.blueprint.network())

    def faked(tensors):
        return {n: mode.from_tensor(t) for n, t in tensors.items()}

    with mode:
        for module in network.modules():
            for n, p in [(n, p) for n, p in module._parameters.items() if p is not None]:
                module._parameters[n] = nn.Parameter(mode.from_tensor(p.detach()).to(device), p.requires_grad)
            for n, b in [(n, b) for n, b in module._buffers.items() if b is not None]:
                module._buffers[n] = mode.from_tensor(b).to(device)
        twin = Blueprint(build, recipe.structure, device=device, images=True, interface=task.blueprint.interface)
        twin._skeletons["null"] = network
        kind = PlainTrainer if count == 1 else StackedTrainer
        trainer = kind(replace(task, blueprint=twin, device=device), phase, [40] * count)
        trainer.steps = 200
        held = replace(
            state,
            params=faked(state.params),
            buffers=faked(state.buffers),
            slots={s: faked(v) for s, v in slots.items()},
        )
        trainer.mount([held] * count, list(range(count)))
        rows, labels = mode.from_tensor(x)[:16], mode.from_tensor(y)[:16]
        if count > 1:
            rows, labels = torch.stack([rows] * count), torch.stack([labels] * count)
        for step in range(2):
            trainer.step(rows, labels, Pace(step, 0.0, 0.1))
        assert trainer.total.device.type == device.type
        if name == RULED:
            moments(trainer, count, device)
            trainer.step(rows, labels, Pace(2, 0.0, 0.1))


def moments(trainer, count, device):
    """A rule within training that computes anywhere: nothing of it leaves the device until states are taken out."""
    for _ in range(2):
        changed = [UpdateMoments(rank=2).apply(state, None) for state in trainer.states(here=True)]
        for state in changed:
            slots = [t for slot in ("mean", "square", "deviations") for t in state.slots[slot].values()]
            assert {t.device.type for t in (*state.params.values(), *slots)} == {device.type}
        trainer.mount(changed, list(range(count)))
    for state in trainer.states():
        assert {t.device.type for t in state.flat().values()} == {"cpu"}


def main():
    _setup_privateuseone_for_python_backend("pretend")
    Stepper.step = lambda self, rate: None  # torch's own optimizers make tensors where no mode sees it
    device = torch.device("pretend")
    for name in METHODS:
        for count in (1, 2):
            try:
                steps(name, count, FakeTensorMode(allow_non_fake_inputs=True), device)
                sys.stdout.write(f"{name} {count} ok\n")
            except ChoralError as error:
                sys.stdout.write(f"{name} {count} refused {error}\n")


if __name__ == "__main__":
    main()
