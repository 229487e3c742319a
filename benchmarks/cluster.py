"""Two Ray machines in one: are members the bytes of one process, how much faster are two workers, and what does it cost when things die?

    python benchmarks/cluster.py speed            four methods, one worker and two: seconds, ratio, equal bytes
    python benchmarks/cluster.py kills [EACH]     workers killed, machines lost (EACH times, 20) and drivers killed (a quarter of it)

Both add to benchmarks/results/cluster.json, with the load of the machine meanwhile.

Runs in a network namespace of its own (root, or unprivileged namespaces). One thread for each leaf. The start of Ray and of its workers is
told apart. Two workers need two idle processors: on a busy machine raise the priority of the session first.
"""

import contextlib
import functools
import heapq
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1]))
ALONE = "CHORAL_ALONE"

METHODS: dict[str, dict[str, Any]] = {
    "deep_ensemble": {"members": 16},
    "sequential_anchored": {"members": 16, "chains": 4},
    "prune_and_tune": {"members": 6},
    "sebays_freeze": {"members": 6, "branches": 3},
}
EPOCHS = {"deep_ensemble": 1600, "sequential_anchored": 1600, "prune_and_tune": 800, "sebays_freeze": 192}


def recipe_of(method: str, epochs: int) -> Any:
    from choral.plan import Adam
    from choral.recipes import make
    from choral.recipes.training import Training

    return make(method, budget=epochs, training=Training(lr=0.003, optimizer=Adam(), batch_size=64), **METHODS[method])


def problem() -> tuple[Any, Any, Any]:
    """Return a network and made-up points."""
    import torch

    from choral import models

    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(2000, 32, generator=draw), torch.randint(5, (2000,), generator=draw)
    return functools.partial(models.mlp, 32, 5, hidden=(96, 96)), x, y


def fit(method: str, epochs: int, folder: Path, *, address: str = "", seconds: float = 1.0) -> dict[str, Any]:
    """Train a method, by one process or on the cluster at an address; return its seconds and the epochs that were heard."""
    import choral

    build, x, y = problem()
    heard: list[dict[str, Any]] = []
    cluster = choral.Ray(address=address) if address else None
    started = time.perf_counter()
    ensemble = choral.fit(
        build,
        (x, y),
        recipe_of(method, epochs),
        run_dir=folder,
        compute=choral.Compute(cluster=cluster, threads=1, executor="sequential", checkpoint_seconds=seconds),
        callbacks=heard.append,
        progress=False,
    )
    taken = time.perf_counter() - started
    told = [event["seconds"] * len(event["places"]) for event in heard if event["kind"] == "epoch"]
    return {"seconds": taken, "epochs": len(told), "trained": sum(told), "counted": ensemble.info["counted"]}


def members(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted((folder / "members").iterdir())}


def makespan(leaves: Sequence[Any], workers: int, seconds: Callable[[Any], float]) -> float:
    """Return when the last leaf is done: a free worker takes the first leaf that is ready.

    >>> from choral.recipes import deep_ensemble
    >>> from choral.engine.run import cut
    >>> makespan(cut(deep_ensemble(epochs=15, members=5).plan, 1), 2, lambda leaf: 10.0)
    30.0
    """
    behind: dict[str | None, list[int]] = {}
    for number, leaf in enumerate(leaves):
        behind.setdefault(leaf.after, []).append(number)
    ready, running, now = list(behind.get(None, ())), list[tuple[float, int]](), 0.0
    heapq.heapify(ready)
    while ready or running:
        while ready and len(running) < workers:
            number = heapq.heappop(ready)
            heapq.heappush(running, (now + seconds(leaves[number]), number))
        now, number = heapq.heappop(running)
        for other in behind.get(leaves[number].path, ()):
            heapq.heappush(ready, other)
    return now


def bound(method: str, epochs: int, workers: int) -> float:
    """Return how much faster so many workers can be: a parent is trained before its children."""
    from choral.engine.run import cut

    leaves = cut(recipe_of(method, epochs).plan, 1)
    return makespan(leaves, 1, lambda leaf: leaf.epochs) / makespan(leaves, workers, lambda leaf: leaf.epochs)


def speed() -> None:
    import ray
    from tests.cluster.ray_run import two_nodes

    root = Path(tempfile.mkdtemp(prefix="choral-cluster-"))
    started, load = time.perf_counter(), [os.getloadavg()[0]]
    cluster = two_nodes()
    ray.init(address=cluster.address, log_to_driver=False)
    ray.get([ray.remote(num_cpus=1)(warmed).remote() for _ in range(2)])
    fit("deep_ensemble", 320, root / "warm", address=cluster.address)
    start = time.perf_counter() - started
    print(f"Ray, two machines and their workers: started in {start:.1f} s")
    rows: dict[str, dict[str, Any]] = {}
    for method in METHODS:
        begun = used()
        two = fit(method, EPOCHS[method], root / f"{method}-2", address=cluster.address)["seconds"]
        shares = [seconds - begun.get(pid, 0.0) for pid, seconds in used().items()]
        with held(root / "held"):
            begun = used()
            one = fit(method, EPOCHS[method], root / f"{method}-1", address=cluster.address)["seconds"]
            alone = [seconds - begun.get(pid, 0.0) for pid, seconds in used().items()]
        process = fit(method, EPOCHS[method], root / method)["seconds"]
        rows[method] = {"two": two, "one": one, "process": process}
        rows[method] |= {"processor_two": sorted(shares)[-2:], "processor_one": max(alone)}
        load.append(os.getloadavg()[0])
        three = [members(root / f"{method}{tail}") for tail in ("", "-1", "-2")]
        same = three[0] == three[1] == three[2]
        row = rows[method]
        most = bound(method, EPOCHS[method], 2)
        row |= {"ratio": row["one"] / row["two"], "at_most": most, "members": len(three[0]), "identical": same}
        row |= {"processor_ratio": row["processor_one"] / max(row["processor_two"])}
        keep("speed", {"start_seconds": start, "load": load, "epochs": EPOCHS, "methods": rows})
        print(
            f"{method:20s} one process {row['process']:6.1f} s, one worker {row['one']:6.1f} s, two {row['two']:6.1f} s: {row['one'] / row['two']:.2f}x "
            f"(at most {most:.2f}x; {row['processor_ratio']:.2f}x by processor time of the busier worker), {len(three[0])} members, "
            f"{'equal bytes' if same else 'DIFFERENT BYTES'}"
        )
    ray.shutdown()
    cluster.shutdown()


def used() -> dict[int, float]:
    """Return the processor time of every worker so far, which a busy machine hardly changes."""
    import psutil

    found: dict[int, float] = {}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # gone meanwhile
            if (process.cmdline() or [""])[0].startswith("ray::"):
                found[process.pid] = sum(process.cpu_times()[:2])
    return found


def warmed() -> None:
    """Let a worker import what leaves need, and hold its processor until the other has one too."""
    import choral.cluster.leaf  # noqa: F401

    time.sleep(2.0)


@contextlib.contextmanager
def held(mark: Path) -> Iterator[None]:
    """Keep one of the two workers from training, with nothing to do, for a block of code."""
    import ray

    def wait(path: str) -> None:
        while Path(path).exists():
            time.sleep(0.05)

    mark.touch()
    ref = ray.remote(num_cpus=1)(wait).remote(str(mark))
    while ray.available_resources().get("CPU", 0) > 1:
        time.sleep(0.05)
    try:
        yield
    finally:
        mark.unlink()
        ray.get(ref)


def keep(what: str, found: dict[str, Any]) -> None:
    """Write what was measured beside what is there."""
    from machine import RESULTS, write

    path = RESULTS / "cluster.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    write("cluster", {name: value for name, value in before.items() if name != "machine"} | {what: found})


def drive(method: str, epochs: str, folder: str, address: str) -> None:
    print(json.dumps(fit(method, int(epochs), Path(folder), address=address)))


def driver(method: str, epochs: int, folder: Path, address: str) -> subprocess.Popen[bytes]:
    """Start a process that trains; it writes to a file, since Ray prints more about dead machines than an unread pipe holds."""
    words = [sys.executable, "-W", "ignore", str(HERE), "drive", method, str(epochs), str(folder), address]
    with _told(folder).open("w") as file:
        return subprocess.Popen(words, stdout=file, stderr=subprocess.DEVNULL)


def _told(folder: Path) -> Path:
    """Return the file of what the driver of a run printed."""
    return folder.with_suffix(".out")


def kills(each: int = 20) -> None:
    """Kill at random moments; every run must end with the bytes of one process."""
    from tests.cluster.ray_run import two_nodes

    chance, root = random.Random(7), Path(tempfile.mkdtemp(prefix="choral-cluster-"))
    cluster, rows = two_nodes(), list[dict[str, Any]]()
    for method in METHODS:
        fit(method, EPOCHS[method], root / method)
    for kind, count in (("worker", each), ("machine", each), ("driver", max(1, each // 4))):
        done, number, good, lost = 0, 0, True, list[float]()
        while done < count:
            method = list(METHODS)[number % len(METHODS)]
            folder = root / f"{kind}-{number}"
            hits, told = _killed(
                cluster, kind, method, EPOCHS[method], folder, chance, min(count - done, max(1, count // 4))
            )
            good &= members(folder) == members(root / method)
            whole = told["counted"]
            lost.append((told["epochs"] - whole["epochs"]) * whole["train_seconds"] / whole["epochs"] if hits else 0.0)
            done, number = done + hits, number + 1
        each_lost = sum(lost) / max(1, done)
        row = {"killed": kind, "times": done, "runs": number, "identical": good, "load": os.getloadavg()[0]}
        rows.append(row | ({} if kind == "driver" else {"seconds_again": each_lost}))
        keep("kills", {"checkpoint_seconds": 1.0, "rows": rows})
        said = (
            "" if kind == "driver" else f", {each_lost:.2f} s of training done again for each (checkpoints every 1 s)"
        )
        print(
            f"{kind:8s} killed {done} times in {number} runs: {'equal bytes' if good else 'DIFFERENT BYTES'}{said}",
            flush=True,
        )
    cluster.shutdown()


def _killed(
    cluster: Any, kind: str, method: str, epochs: int, folder: Path, chance: random.Random, most: int
) -> tuple[int, dict[str, Any]]:
    """Train a method while something is killed up to `most` times; return how often, and what the last driver told."""
    from tests.cluster.ray_run import ROOM, worker_ids

    hits, process = 0, driver(method, epochs, folder, cluster.address)
    while process.poll() is None:
        if hits >= most or not worker_ids():
            time.sleep(0.05)
            continue
        time.sleep(chance.uniform(0.0, 3.0))
        found = worker_ids()
        if process.poll() is not None or not found:
            continue
        hits += 1
        if kind == "worker":
            os.kill(chance.choice(found), signal.SIGKILL)
        elif kind == "driver":
            process.kill()
            process.wait()
            process = driver(method, epochs, folder, cluster.address)
        else:
            cluster.remove_node(chance.choice(sorted(cluster.worker_nodes, key=id)), allow_graceful=False)
            cluster.add_node(num_cpus=1, object_store_memory=ROOM)
    if process.returncode:  # the machine that was lost was the driver's own: the same command goes on
        driver(method, epochs, folder, cluster.address).wait()
    return hits, json.loads(_told(folder).read_text().strip().splitlines()[-1])


def main(what: str = "speed", *rest: str) -> None:
    if what == "drive":
        drive(*rest)
        return
    if ALONE not in os.environ:
        user = ["--map-root-user"] if os.geteuid() else []
        words = ["unshare", "--net", *user, "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
        os.execvpe(words[0], [*words, sys.executable, *sys.argv], os.environ | {ALONE: "1"})
    {"speed": speed, "kills": kills}[what](*map(int, rest))


if __name__ == "__main__":
    main(*sys.argv[1:])
