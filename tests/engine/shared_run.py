"""One of several processes that share every batch: rank, processes, meeting point, folder, epochs, methods.

The rank 'both' makes two of one process: a fork costs less than a new interpreter.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import choral
from choral import recipes
from choral.recipes.training import Training


def build():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Dropout2d(0.2),
        nn.Flatten(),
        nn.Linear(72, 16),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(16, 2),
    )


def perceptron():
    """Members of one network normalize and drop in one product, not one after the other."""
    layers = [nn.Linear(192, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 2)]
    return nn.Sequential(nn.Flatten(), *layers)


def main():
    rank, size, meeting, folder, epochs, *methods = sys.argv[1:]
    torch.set_num_threads(1)
    child = os.fork() if rank == "both" else None
    rank = rank if child is None else int(child == 0)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=int(rank), world_size=int(size))
    train(int(rank), folder, int(epochs), *methods, data_parallel=True)
    dist.destroy_process_group()
    if child:
        assert os.waitpid(child, 0)[1] == 0


def train(rank, folder, epochs, *methods, data_parallel=False):
    """Fit every method, and write its members, buffers and losses to the folder."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(77, 3, 8, 8, generator=generator)
    y = (x.mean((1, 2, 3)) > 0).long()

    for method in methods:
        losses: list[float] = []

        def hear(event, losses=losses):
            if event["kind"] == "epoch":
                losses.append(event["losses"][0])

        name, _, network = method.partition("-")
        ensemble = choral.fit(
            perceptron if network else build,
            (x, y),
            recipes.make(
                name,
                budget=9 if network == "own" else epochs,
                training=Training(lr=0.1, optimizer=choral.plan.SGD(), batch_size=32),
            ),
            run_dir=Path(folder) / method,
            transforms=(choral.data.PadCrop(pixels=1), choral.data.HorizontalFlip()),
            validation=0.2,
            compute=choral.Compute(
                executor="sequential",
                data_parallel=data_parallel,
                checkpoint_seconds=0,
                accumulate=2 if network == "own" else 1,
            ),
            callbacks=hear,
        )
        members = [dict(state.params) for state in ensemble.states()]
        buffers = [dict(state.buffers) for state in ensemble.states()]
        torch.save({"losses": losses, "members": members, "buffers": buffers}, Path(folder) / f"{method}-{rank}.pt")


if __name__ == "__main__":
    main()
