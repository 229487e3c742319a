"""Runs on a Ray cluster of two machines in one, for `test_ray.py` and `benchmarks/cluster.py`: FOLDER. Prints JSON."""

import contextlib
import functools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import choral
from choral import models
from choral.plan import Adam
from choral.recipes import make
from choral.recipes.training import Training

QUICK = Training(lr=0.01, optimizer=Adam(), batch_size=16)
OPTIONS: dict[str, Any] = {"compute": choral.Compute(threads=1, executor="sequential", checkpoint_seconds=0.0)}
ROOM = 80 << 20  # bytes of each machine's object store
BUILD = functools.partial(models.mlp, 3, 2, hidden=(16,))


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Return made-up points."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(160, 3, generator=generator), torch.randint(2, (160,), generator=generator)


def two_nodes() -> Any:
    """Return a cluster of a head that trains nothing and two machines of one processor each."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": ROOM}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(2):
        cluster.add_node(num_cpus=1, object_store_memory=ROOM)
    return cluster


def members(folder: Path) -> dict[str, bytes]:
    """Return the members' files."""
    return {p.name: p.read_bytes() for p in sorted((folder / "members").iterdir())}


def worker_ids() -> list[int]:
    """Return the processes of this one's clusters that train a leaf just now; others on the machine may have a Ray too."""
    import psutil

    found: dict[int, str] = {}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # gone meanwhile
            found[process.pid] = (process.cmdline() or [""])[0]
    others = ("IDLE", "Agent")  # workers without a task, and Ray's own
    return [pid for pid, name in found.items() if name.startswith("ray::") and not any(o in name for o in others)]


def kill_a_worker(seconds: float) -> int:
    """Kill a worker some seconds after one is at work; return how many were."""
    for _ in range(1500):
        if worker_ids():
            time.sleep(seconds)
            for one in worker_ids()[:1]:
                os.kill(one, signal.SIGKILL)
                return 1
        time.sleep(0.02)
    return 0


def lose_a_node(cluster: Any, seconds: float) -> int:
    """Lose a machine some seconds after a worker is at work, one that this process does not depend on."""
    import ray

    while not worker_ids():
        time.sleep(0.02)
    time.sleep(seconds)
    own = ray.get_runtime_context().get_node_id()
    node = next(node for node in cluster.worker_nodes if node.node_id != own)
    cluster.remove_node(node, allow_graceful=False)
    return 1


def meanwhile(*deeds: Callable[[], int]) -> Callable[[], list[int]]:
    """Begin some deeds; return what waits for them and gives what they returned."""
    done: list[int] = []
    threads = [threading.Thread(target=lambda deed=deed: done.append(deed()), daemon=True) for deed in deeds]
    for thread in threads:
        thread.start()

    def wait() -> list[int]:
        for thread in threads:
            thread.join()
        return done

    return wait


def main(folder: str) -> None:
    """Train some methods in one process and on the cluster, one of them while a worker and a machine die."""
    import ray

    root, told, (x, y) = Path(folder), dict[str, Any](), data()
    cluster = two_nodes()
    ray.init(address=cluster.address, log_to_driver=False)
    there = choral.Ray(address=cluster.address)
    try:
        recipe = make("sebays_freeze", budget=24, members=3, branches=3, training=QUICK)
        choral.fit(BUILD, (x, y), recipe, run_dir=root / "one", **OPTIONS)
        heard: list[dict[str, Any]] = []
        choral.fit(
            BUILD,
            (x, y),
            recipe,
            run_dir=root / "two",
            callbacks=heard.append,
            **OPTIONS | {"compute": replace(OPTIONS["compute"], cluster=there)},
        )
        epochs = [e["counted"]["epochs"] for e in heard if e["kind"] == "epoch"]
        told["same"] = members(root / "one") == members(root / "two")
        told["events"], told["last"] = len(epochs), max(epochs, default=0)

        recipe = make("prune_and_tune", budget=300, members=4, training=QUICK)
        choral.fit(BUILD, (x, y), recipe, run_dir=root / "whole", **OPTIONS)
        wait = meanwhile(lambda: kill_a_worker(0.3), lambda: lose_a_node(cluster, 0.8))
        choral.fit(
            BUILD,
            (x, y),
            recipe,
            run_dir=root / "killed",
            **OPTIONS | {"compute": replace(OPTIONS["compute"], cluster=there)},
        )
        told["deaths"] = sum(wait())
        told["same after deaths"] = members(root / "whole") == members(root / "killed")

        several: dict[str, Any] = {
            "budget": 12,
            "training": QUICK,
            "members": 2,
            "seed": (0, 1),
            "corruptions": (),
        } | OPTIONS
        methods, sets = ["single", "deep_ensemble"], (x[:120], y[:120], x[120:], y[120:])
        one = choral.compare(BUILD, sets, methods, run_dir=root / "c1", **several)
        two = choral.compare(
            BUILD,
            sets,
            methods,
            run_dir=root / "c2",
            **several | {"compute": replace(OPTIONS["compute"], cluster=there)},
        )
        told["compared"] = [row["nll"] for row in one.rows] == [row["nll"] for row in two.rows]
        told["errors"] = refusals(root, there, x, y)
    finally:
        ray.shutdown()
        cluster.shutdown()
    sys.stdout.write(json.dumps(told) + "\n")


def refusals(root: Path, there: choral.Ray, x: torch.Tensor, y: torch.Tensor) -> list[str]:
    """Return what is said of a leaf that fails by itself, and of what is left of it."""
    said = []
    recipe = make("deep_ensemble", budget=4, members=2, training=QUICK)
    (root / "full").mkdir()
    (root / "full" / "members").write_text("a file where a folder belongs")
    for folder in (root / "full",):
        try:
            choral.fit(
                BUILD,
                (x, y),
                recipe,
                run_dir=folder,
                **OPTIONS | {"compute": replace(OPTIONS["compute"], cluster=there)},
            )
        except choral.ChoralError as error:
            said.append(str(error))
    (root / "full" / "members").unlink()
    choral.fit(
        BUILD,
        (x, y),
        recipe,
        run_dir=root / "full",
        **OPTIONS | {"compute": replace(OPTIONS["compute"], cluster=there)},
    )
    return said


if __name__ == "__main__":
    main(*sys.argv[1:])
