"""TabM against its authors' package: a training step, and the prediction of one row and of many, as ratios in one run.

    python benchmarks/tabm_speed.py --rivals SITE_PACKAGES [--repeats 12] [--members 32]

Networks of the package's defaults: 3 hidden layers of 512 on 16 numbers, and 2 of 512 behind piecewise-linear embeddings (48 bins, 16 wide) of
them; dropout 0.1, batches of 256, AdamW at 2e-3 with decay 3e-4, gradients clipped at norm 1. Ours goes through the engine's trainer and through
`Ensemble.predict`; theirs is their example's loop, and their network's call in evaluation. Steps take turns; medians of processor time, one
thread. Writes benchmarks/results/tabm_speed.json.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import choral
from choral import models
from choral.data.sources import source_of
from choral.engine.task import make_task
from choral.engine.trainers import Pace, PlainTrainer
from choral.layers import quantile_edges
from choral.recipes import tabm, tabm_mini
from choral.recipes.recipe import Recipe
from machine import write

FEATURES, CLASSES, BATCH, BINS, WIDTH = 16, 3, 256, 48, 16
Step = Callable[[], Any]


def data() -> tuple[Tensor, Tensor]:
    """Return rows with something to learn."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(2048, FEATURES, generator=g)
    return x, (x[:, 0] * x[:, 1] > 0).long() + (x[:, 2] > 1).long()


def network(embedded: bool, x: Tensor) -> Callable[[], nn.Module]:
    """Return the factory of the plain network."""
    if not embedded:
        return lambda: models.tabular(FEATURES, CLASSES, hidden=(512,) * 3, embedding="none", dropout=0.1)
    edges = quantile_edges(x, bins=BINS)
    return lambda: models.tabular(FEATURES, CLASSES, hidden=(512,) * 2, edges=edges, embedding_width=WIDTH, dropout=0.1)


def our_step(recipe: Recipe, build: Callable[[], nn.Module], x: Tensor, y: Tensor) -> Step:
    """Return one training step through the engine's trainer."""
    task = make_task(build, source_of((x, y)), recipe)
    (phase,) = (p for p in recipe.plan.children if isinstance(p, choral.plan.Train))
    trainer = PlainTrainer(task, phase, [len(x)])
    trainer.mount([task.blueprint.fresh(0, "benchmark")], [7])
    count = iter(range(10**9))
    return lambda: trainer.step(x[:BATCH], y[:BATCH], Pace(next(count), 0.0, 2e-3))


def their_network(kind: str, embedded: bool, x: Tensor, members: int) -> Any:
    """Return the package's network."""
    import rtdl_num_embeddings as rtdl
    import tabm as package

    embedding = None
    if embedded:
        bins = rtdl.compute_bins(x, n_bins=BINS)
        embedding = rtdl.PiecewiseLinearEmbeddings(bins, WIDTH, activation=False, version="B")
    return package.TabM.make(
        n_num_features=FEATURES, d_out=CLASSES, num_embeddings=embedding, k=members, arch_type=kind
    )


def their_step(net: nn.Module, members: int, x: Tensor, y: Tensor) -> Step:
    """Return one training step as in the package's example."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=3e-4)
    net.train()

    def step() -> None:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x[:BATCH]).flatten(0, 1), y[:BATCH].repeat_interleave(members, 0))
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()

    return step


def in_turn(calls: dict[str, Step], repeats: int, often: int = 1) -> dict[str, float]:
    """Return the median processor seconds of every call, made `often` times in a row when its turn comes."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(repeats + 2):
        for name, call in calls.items():
            started = time.process_time()
            for _ in range(often):
                call()
            if turn > 1:
                seconds[name].append((time.process_time() - started) / often)
    return {name: statistics.median(each) for name, each in seconds.items()}


def line(name: str, seconds: dict[str, float], target: float) -> dict[str, Any]:
    """Return and print a comparison."""
    ratio = seconds["ours"] / seconds["theirs"]
    print(f"{name}: {ratio:.2f} of theirs (at most {target})", flush=True)
    return {"what": name, "milliseconds": {k: 1e3 * s for k, s in seconds.items()}, "ratio": ratio, "target": target}


def main() -> None:
    """Measure both variants with and without embeddings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rivals", help="folder with tabm 0.0.3 and rtdl_num_embeddings, unless they are installed")
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--members", type=int, default=32)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if arguments.rivals:
        sys.path.append(arguments.rivals)
    load, (x, y), lines = os.getloadavg()[0], data(), []
    for recipe, kind in ((tabm, "tabm"), (tabm_mini, "tabm-mini")):
        for embedded in (False, True):
            build, members = network(embedded, x), arguments.members
            net = their_network(kind, embedded, x, members)
            name = f"{kind}{', embedded' if embedded else ''}"
            value = recipe(epochs=1, members=members)
            steps = {"ours": our_step(value, build, x, y), "theirs": their_step(net, members, x, y)}
            lines.append(line(f"{name}: training step", in_turn(steps, arguments.repeats), 1.0))
            ensemble = choral.fit(build, (x, y), recipe(epochs=0, members=members), progress=False)
            net.eval()
            for rows, often in ((1, 20), (1000, 1)):
                with torch.no_grad():
                    calls = {"ours": partial(ensemble.predict, x[:rows]), "theirs": partial(net, x[:rows])}
                    lines.append(
                        line(f"{name}: {rows} rows", in_turn(calls, often * arguments.repeats // 4 or 1, often), 1.2)
                    )
    write("tabm_speed", {"members": arguments.members, "batch": BATCH, "load": load, "lines": lines})


if __name__ == "__main__":
    main()
