"""One of two processes that are to share every batch but are given different calls: meeting point, rank."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn

import choral
from choral import recipes
from choral.base.errors import ChoralError


def main():
    meeting, rank = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    calls = (
        ((x + rank, y), 0, 2),
        ((x, y), rank, 2),
        ((x, y), 0, 2 + rank),
        ((x, y[: 40 - rank]), 0, 2),
        ((x, y), 0, 2),
    )
    for data, seed, epochs in calls:
        try:
            choral.fit(
                lambda: nn.Linear(4, 2),
                data,
                recipes.single(budget=epochs),
                seed=seed,
                validation=None,
                compute=choral.Compute(data_parallel=True),
                progress=False,
            )
            sys.stdout.write("trained\n")
        except ChoralError as error:
            sys.stdout.write(f"{error}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
