"""Speed of the engine: every line a ratio measured in one run, by medians of interleaved repeats, in processor time.

    python benchmarks/engine.py [--quick]

Writes benchmarks/results/engine.json. The targets are those of the design: vectorized training of 20 small perceptrons at
least 12 times faster than a plain loop; one LeNet-S through the engine at most 3 % slower than a hand-written loop;
prediction with 20 stacked perceptrons no slower than a loop over them for few rows at once; memory that does not grow with the members.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from choral import Compute, models
from choral.data.sources import TensorSource
from choral.engine.checkpoint import MemberStore
from choral.engine.events import Log
from choral.engine.flops import Flops
from choral.engine.job import Job
from choral.engine.run import Run, cut
from choral.engine.task import make_task
from choral.fit import fit
from choral.plan import Adam, Collect, Constant, EarlyStopping, Reset, Train, fork, seq
from choral.recipes.recipe import Recipe
from machine import write


def interleaved(first: Callable[[], None], second: Callable[[], None], repeats: int) -> tuple[float, float]:
    """Return the median processor seconds of two functions run in turn, each first as often as second."""
    times: tuple[list[float], list[float]] = ([], [])
    for i in range(repeats + 1):
        for function, seconds in list(zip((first, second), times))[:: 1 if i % 2 else -1]:
            started = time.process_time()
            function()
            if i:  # the first round warms up
                seconds.append(time.process_time() - started)
    return statistics.median(times[0]), statistics.median(times[1])


def by_hand(
    build: Callable[[], torch.nn.Module], x: torch.Tensor, y: torch.Tensor, epochs: int, batch: int, fused: bool = True
) -> None:
    """Train one network as a user would without choral; `fused` takes torch's faster Adam instead of its default."""
    network = build()
    if x.dim() == 4:
        network = network.to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, fused=fused or None)
    for _ in range(epochs):
        order = torch.randperm(len(x))
        for start in range(0, len(x), batch):
            index = order[start : start + batch]
            out = network(x[index].permute(0, 3, 1, 2) if x.dim() == 4 else x[index])
            loss = F.cross_entropy(out, y[index]) if y.dtype == torch.int64 else F.mse_loss(out, y[index])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()


def train_phase(epochs: int, batch: int) -> Train:
    """Return the training phase of these benchmarks."""
    return Train(epochs=epochs, batch_size=batch, schedule=Constant(1e-3), optimizer=Adam())


def vectorized_training(repeats: int) -> dict[str, float]:
    """20 MLP members (8-50-1, batch 100): stacked against a plain loop of the same members."""
    x = torch.randn(1000, 8)
    y = x[:, :1].sin()

    def build() -> torch.nn.Module:
        return models.mlp(8, 1, hidden=(50,))

    epochs = 60
    recipe = Recipe(name="deep", plan=fork(20, Reset(), train_phase(epochs, 100), Collect()))

    def loop(fused: bool) -> Callable[[], None]:
        def run() -> None:
            for _ in range(20):
                by_hand(build, x, y, epochs, 100, fused)

        return run

    def stacked() -> None:
        fit(build, (x, y), recipe, compute=Compute(executor="vectorized"))

    plain, fast = interleaved(loop(False), stacked, repeats)
    fused, _ = interleaved(loop(True), stacked, max(1, repeats // 3))
    return {
        "loop_seconds": plain,
        "fused_loop_seconds": fused,
        "vectorized_seconds": fast,
        "faster": plain / fast,
        "faster_than_fused": fused / fast,
    }


def engine_overhead(repeats: int) -> dict[str, float]:
    """One LeNet-S (batch 128) through the engine against a hand-written loop, both with channels last."""
    x = torch.randn(128 * 24, 3, 32, 32)
    y = torch.randint(10, (len(x),))
    held = x.permute(0, 2, 3, 1).contiguous()

    def build() -> torch.nn.Module:
        return models.lenet("S")

    recipe = Recipe(name="single", plan=seq(Reset(), train_phase(1, 128), Collect()))
    source = TensorSource(x, y)
    task = make_task(build, source, recipe)
    counted = Flops(task, source)
    counted.train(None)

    def through() -> None:
        job = Job(recipe, task, source, None, EarlyStopping(patience=None, restore_best=False), {}, 0)
        run = Run(job=job, leaves=cut(job.recipe.plan, 1), store=MemberStore(), checkpoints=None, log=Log())
        run.flops = counted  # once for a whole run, not part of a step
        run.execute()

    plain, engine = interleaved(lambda: by_hand(build, held, y, 1, 128), through, repeats)
    return {"loop_seconds": plain, "engine_seconds": engine, "overhead": engine / plain - 1}


def stacked_prediction(repeats: int) -> dict[str, float]:
    """Predicting with 20 stacked MLPs against a loop over them, for some numbers of rows at once."""
    x = torch.randn(2000, 8)
    recipe = Recipe(name="deep", plan=fork(20, Reset(), Collect()))
    ensemble = fit(lambda: models.mlp(8, 1, hidden=(50,)), (x, x[:, :1]), recipe)
    networks = [ensemble.member(i) for i in range(20)]
    found: dict[str, float] = {}
    for rows in (1, 10, 100, 1000):
        points = x[:rows]

        def loop(points: torch.Tensor = points) -> None:
            with torch.inference_mode():
                for _ in range(10):
                    torch.stack([network(points) for network in networks])

        def stacked(points: torch.Tensor = points) -> None:
            for _ in range(10):
                ensemble.outputs(points)

        plain, fast = interleaved(loop, stacked, repeats)
        found |= {
            f"loop_seconds_{rows}": plain / 10,
            f"stacked_seconds_{rows}": fast / 10,
            f"faster_{rows}": plain / fast,
        }
    return found


MEMORY = """
import resource, sys, tempfile, torch
from choral import Compute, models
from choral.fit import fit
from choral.plan import *
from choral.recipes.recipe import Recipe
torch.set_num_threads(2)
generator = torch.Generator().manual_seed(0)
x = torch.randn(512, 3, 32, 32, generator=generator); y = torch.randint(10, (512,), generator=generator)
plan = fork(int(sys.argv[1]), Reset(), Train(epochs=1, optimizer=Adam()), Collect())
with tempfile.TemporaryDirectory() as folder:
    fit(lambda: models.lenet("L"), (x, y), Recipe(name="deep", plan=plan), run_dir=folder, compute=Compute(executor="sequential"))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def memory() -> dict[str, float]:
    """Peak memory of 8 sequential LeNet-L members against 2, in MiB."""
    peaks = {}
    for members in (2, 8):
        done = subprocess.run([sys.executable, "-c", MEMORY, str(members)], capture_output=True, text=True, check=True)
        peaks[members] = float(done.stdout)
    return {"mib_of_2": peaks[2], "mib_of_8": peaks[8], "growth": peaks[8] / peaks[2] - 1}


def main() -> None:
    """Measure everything and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    repeats = 3 if parser.parse_args().quick else 5
    results = {
        "training_20_mlps": vectorized_training(repeats),
        "lenet_s_overhead": engine_overhead(repeats * 6),
        "predicting_20_mlps": stacked_prediction(repeats * 5),
        "memory_8_against_2": memory(),
    }
    for name, row in results.items():
        print(name, {k: round(v, 4) for k, v in row.items()})
    print(write("engine", {"ratios": results}))


if __name__ == "__main__":
    main()
