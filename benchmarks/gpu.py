"""Speed on another device: the ratios of engine.py and shared_speed.py, and those that only a device has.

    python benchmarks/gpu.py [--device cuda] [--quick]

Writes benchmarks/results/gpu-DEVICE.json. Every line is a ratio of medians of interleaved repeats in one run; the device is waited
for before a clock is read. It has not been run on a GPU yet: no figures of it are published.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from choral import models, recipes
from choral.base import devices
from choral.base.errors import InputError
from choral.data.sources import TensorSource
from choral.engine.task import make_task
from choral.engine.trainers import Pace, PlainTrainer, StackedTrainer, Trainer
from choral.fit import fit
from choral.plan import SGD, Adam
from choral.plan.walk import trainings
from choral.recipes.training import Training
from machine import write

Step = Callable[[], None]


def ratio(device: torch.device, first: Step, second: Step, repeats: int) -> float:
    """Return the seconds of the first over those of the second, medians of turns."""
    times: dict[Step, list[float]] = {first: [], second: []}
    for turn in range(repeats + 2):  # two turns warm up
        for step in (first, second) if turn % 2 else (second, first):
            torch.get_device_module(device.type).synchronize()
            started = time.perf_counter()
            step()
            torch.get_device_module(device.type).synchronize()
            if turn > 1:
                times[step].append(time.perf_counter() - started)
    return statistics.median(times[first]) / statistics.median(times[second])


def images(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random images and labels."""
    g = torch.Generator().manual_seed(0)
    return torch.randn(count, 3, 32, 32, generator=g), torch.randint(10, (count,), generator=g)


def engine_step(
    name: str,
    build: Callable[[], torch.nn.Module],
    device: torch.device,
    *,
    batch: int,
    steps: int,
    members: int = 1,
    **options: Any,
) -> Step:
    """Return one training step of a method through the engine, on data that lies on the device."""
    x, y = images(batch) if build is not perceptron else (torch.randn(batch, 8), torch.randn(batch, 1))
    recipe = recipes.make(name, budget=10, training=Training(lr=0.01, optimizer=SGD(momentum=0.9), batch_size=batch))
    source = TensorSource(x, y)
    task = make_task(build, source, recipe, device=device, **options)
    kind: type[Trainer] = PlainTrainer if members == 1 else StackedTrainer
    trainer = kind(task, trainings(recipe.plan)[0], [float(batch)] * members)
    trainer.steps = 1000
    states = [task.blueprint.fresh(0, i) for i in range(members)]
    trainer.mount(states, list(range(members)))
    read = source.reading(task.likelihood.read).placed(device)
    order = torch.arange(batch) if members == 1 else torch.arange(batch).expand(members, -1)
    rows, labels = next(iter(read.epoch(order, batch)))

    def step() -> None:
        for i in range(steps):
            trainer.step(rows, labels, Pace(i, 0.0, 0.01))

    return step


def hand_step(build: Callable[[], torch.nn.Module], device: torch.device, *, batch: int, steps: int) -> Step:
    """Return the step of a loop without choral."""
    x, y = images(batch) if build is not perceptron else (torch.randn(batch, 8), torch.randn(batch, 1))
    x, y = x.to(device), y.to(device)
    network = build().to(device)
    if x.dim() == 4:
        network, x = network.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9, nesterov=True, fused=True)

    def step() -> None:
        for _ in range(steps):
            out = network(x)
            loss = F.cross_entropy(out, y) if y.dtype == torch.int64 else F.mse_loss(out, y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()

    return step


def perceptron() -> torch.nn.Module:
    """Return a small perceptron."""
    return models.mlp(8, 1, hidden=(50,))


def resnet() -> torch.nn.Module:
    """Return a ResNet-20."""
    return models.resnet_cifar(20)


def prediction(device: torch.device) -> tuple[Step, Step]:
    """Return prediction with 20 stacked perceptrons, and with a loop over them."""
    x, y = torch.randn(1000, 8), torch.randn(1000, 1)
    training = Training(lr=0.01, optimizer=Adam(), batch_size=100)
    ensemble = fit(perceptron, (x, y), recipes.deep_ensemble(members=20, budget=20, training=training), device=device)
    alone = [ensemble.member(i).to(device) for i in range(20)]
    rows = x[:100].to(device)

    def loop() -> None:
        with torch.no_grad():
            torch.stack([network(rows) for network in alone])

    def together() -> None:
        ensemble.outputs(x[:100], device=str(device))

    return together, loop


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="few repeats and small batches: shows that it runs")
    given = parser.parse_args()
    try:
        device = devices.usable(given.device)
    except InputError as error:
        parser.error(str(error))
    repeats = 1 if given.quick else 11
    size = {"batch": 4, "steps": 1} if given.quick else {"batch": 256, "steps": 10}
    plain = {net: hand_step(net, device, **size) for net in (perceptron, resnet)}
    own = {net: engine_step("single", net, device, **size) for net in (perceptron, resnet)}
    found: dict[str, float] = {}
    for net in (perceptron, resnet):
        found[f"single {net.__name__}: engine / loop by hand"] = ratio(device, own[net], plain[net], repeats)
    stacked = engine_step("deep_ensemble", perceptron, device, **size, members=20)
    found["20 perceptrons stacked / one"] = ratio(device, stacked, own[perceptron], repeats)
    for name in ("packed", "batch_ensemble", "masksembles", "emp", "ecmp", "bnn", "rank1_bnn", "ssbnn"):
        step = engine_step(name, resnet, device, **size)
        found[f"{name} ResNet-20 / plain"] = ratio(device, step, own[resnet], repeats)
    for precision in ("bf16", "fp16"):
        step = engine_step("single", resnet, device, **size, precision=precision)
        found[f"{precision} ResNet-20 / fp32"] = ratio(device, step, own[resnet], repeats)
    mine, loop = prediction(device)
    found["predict, 20 perceptrons, 100 rows: ours / loop"] = ratio(device, mine, loop, repeats)
    write(f"gpu-{device.type}", {"device": str(device), **size, "ratios": found})


if __name__ == "__main__":
    main()
