"""Stacks of different perceptrons: a training step of 64 against one, members that stop, and what killing leaves.

    python benchmarks/tabpack_speed.py [--repeats 4] [--members 64] [--kills 10] [--only step stop kill]

`step`: the members of `tabpack` (width 384, depth 1 to 3, Muon) in one stack against one of them alone, batches of 256; also with AdamW, and
AdamW on batches of 32, where calls and not arithmetic take the time. `stop`: whole trainings of a stack of which half stops after the first
epochs against one that does not. `kill`: a run of 8 members with selection, killed at ten moments and begun again, against an unbroken
one, member by member. One thread, processor time, in turns. Writes benchmarks/results/tabpack_speed.json.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import choral
from choral import models
from choral.data.sources import source_of
from choral.engine.task import make_task
from choral.engine.trainers import Pace, PlainTrainer, StackedTrainer, Trainer
from choral.plan import AdamW, Collect, Constant, Muon, Optimizer, Reset, Resize, Train, Variant, fork
from choral.recipes.recipe import Recipe
from choral.recipes.tabpack import SPACE
from machine import RESULTS, write

FEATURES, CLASSES = 16, 3


def data(rows: int = 2048) -> tuple[Tensor, Tensor]:
    """Return rows with something to learn."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(rows, FEATURES, generator=g)
    return x, (x[:, 0] * x[:, 1] > 0).long() + (x[:, 2] > 1).long()


def network(width: int = 384) -> nn.Module:
    """Return the perceptron of the paper."""
    return models.tabular(FEATURES, CLASSES, hidden=(width,) * 3, embedding="none", dropout=0.1, skippable=True)


def variants(count: int, names: set[str]) -> list[Variant]:
    """Return drawn settings."""
    drawn = [SPACE.draw(lambda n, i=i: torch.Generator().manual_seed(hash((i, n)) % 2**31)) for i in range(count)]
    return [Variant(tuple(pair for pair in v.settings if pair[0] in names)) for v in drawn]


def stepping(optimizer: Optimizer, members: int, batch: int) -> Any:
    """Return a training step of so many members, through the engine's trainers."""
    x, y = data()
    train = Train(epochs=1, schedule=Constant(1e-3), optimizer=optimizer, batch_size=batch)
    names = {"dropout", "rate", "weight_decay", *({"matrix_rate"} if isinstance(optimizer, Muon) else ())}
    task = make_task(network, source_of((x, y)), Recipe(name="r", plan=fork(2, Reset(), train, Collect())))
    kind: type[Trainer] = PlainTrainer if members == 1 else StackedTrainer
    trainer = kind(task, train, [len(x)] * members)
    trainer.variants = variants(members, names)
    states = [task.blueprint.fresh(0, "member", i) for i in range(members)]
    for i, state in enumerate(states):
        used = {n: torch.tensor(k < i % 3) for k, n in enumerate(n for n in state.buffers if n.endswith("used"))}
        states[i] = state.having(buffers=state.buffers | used)
    trainer.mount(states, list(range(members)))
    rows = torch.arange(batch) if members == 1 else torch.arange(batch).expand(members, -1)
    count = iter(range(10**9))
    return lambda: trainer.step(x[rows], y[rows], Pace(next(count), 0.0, 1e-3))


def steps(repeats: int, members: int) -> list[dict[str, Any]]:
    """Return how many steps of one member a step of all takes."""
    found = []
    for name, optimizer, batch in (
        ("Muon, batch 256", Muon(), 256),
        ("AdamW, batch 256", AdamW(), 256),
        ("AdamW, batch 32", AdamW(), 32),
    ):
        calls = {"one": stepping(optimizer, 1, batch), "all": stepping(optimizer, members, batch)}
        seconds: dict[str, list[float]] = {"one": [], "all": []}
        for turn in range(repeats + 1):
            for which, call in calls.items():
                often = 8 if which == "one" else 1
                started = time.process_time()
                for _ in range(often):
                    call()
                if turn:
                    seconds[which].append((time.process_time() - started) / often)
        one, every = (statistics.median(seconds[k]) for k in ("one", "all"))
        print(f"{name}: {members} members in {every / one:.1f} steps of one", flush=True)
        found.append({"what": name, "members": members, "milliseconds": [1e3 * one, 1e3 * every], "ratio": every / one})
    return found


def stopped(members: int = 16) -> dict[str, Any]:
    """Return how much faster a training is of which half the members stop after the first epochs."""
    x, y = data(1024)
    held = data(1200)
    held = (held[0][1024:], held[1][1024:])
    train = Train(epochs=12, schedule=Constant(1e-3), optimizer=AdamW(), batch_size=256)
    seconds = {}
    for name, slow in (("all go on", 1.0), ("half stop", 1e-12)):
        own = [{"rate": slow if i % 2 else 1.0} for i in range(members)]
        plan = fork(Reset(), Resize(), train, Collect(), variants=own)
        ensemble = choral.fit(
            lambda: network(192),
            (x, y),
            Recipe(name="r", plan=plan),
            validation=held,
            early_stopping=choral.EarlyStopping(patience=1 if slow < 1 else 12, min_delta=1e-4),
            compute=choral.Compute(executor="vectorized"),
            progress=False,
        )
        seconds[name] = ensemble.info["counted"]["train_seconds"]
        epochs = ensemble.info["counted"]["epochs"]
        print(f"{name}: {seconds[name]:.1f} s, {epochs} epochs", flush=True)
    return {"members": members, "seconds": seconds, "faster": seconds["all go on"] / seconds["half stop"]}


_CHILD = """
import sys, torch, choral
sys.path.insert(0, sys.argv[2])
from tabpack_speed import data, network
from choral.recipes import tabpack
torch.set_num_threads(1)
x, y = data(300)
choral.fit(lambda: network(32), (x[:200], y[:200]), tabpack(epochs=8 * 8, members=8), validation=(x[200:], y[200:]), progress=False,
           stop=choral.EarlyStopping(patience=4), run_dir=sys.argv[1], executor="vectorized", checkpoint_seconds=0)
"""


def killed(kills: int) -> dict[str, Any]:
    """Return how many members of a killed run differ from those of an unbroken one."""
    here = str(Path(__file__).parent)
    with tempfile.TemporaryDirectory() as place:
        whole, broken = Path(place, "whole"), Path(place, "broken")
        started = time.monotonic()
        subprocess.run([sys.executable, "-c", _CHILD, str(whole), here], check=True)
        long, done = time.monotonic() - started, 0
        for i in range(kills):
            child = subprocess.Popen([sys.executable, "-c", _CHILD, str(broken), here])
            time.sleep(long * (0.35 + 0.05 * i))
            if child.poll() is None:
                os.kill(child.pid, signal.SIGKILL)
                done += 1
            child.wait()
        subprocess.run([sys.executable, "-c", _CHILD, str(broken), here], check=True)
        files = [{p.name: p.read_bytes() for p in (d / "members").iterdir()} for d in (whole, broken)]
    other = [n for n in files[0] if files[0][n] != files[1].get(n)]
    print(f"killed {done} times: {len(other)} of {len(files[0])} members differ", flush=True)
    return {"kills": done, "members": len(files[0]), "different": len(other)}


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--members", type=int, default=64)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--only", nargs="+", default=["step", "stop", "kill"], choices=["step", "stop", "kill"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    path = RESULTS / "tabpack_speed.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    found: dict[str, Any] = {k: v for k, v in before.items() if k != "machine"} | {"load": os.getloadavg()[0]}
    parts: dict[str, Callable[[], Any]] = {
        "step": lambda: steps(arguments.repeats, arguments.members),
        "stop": stopped,
        "kill": lambda: killed(arguments.kills),
    }
    for name in arguments.only:
        found[name] = parts[name]()
        write("tabpack_speed", found)


if __name__ == "__main__":
    main()
