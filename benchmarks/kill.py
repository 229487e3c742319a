"""Kill runs without warning at random moments and compare their members with an unbroken run's, byte for byte.

Every method, with every optimizer, under both executors, on a ConvNet of three input channels with stride and BatchNorm.

python benchmarks/kill.py [--kills 1] [--method edst ...]
"""

import argparse
import importlib.util
import multiprocessing
import random
import tempfile
import time
import warnings
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any

import torch._dynamo  # noqa: F401  # loaded here once, not by every child

from choral.recipes import METHODS
from machine import write

EPOCHS = "12"
EXECUTORS = ("sequential", "vectorized")
SCRIPT = Path(__file__).parent.parent / "tests" / "engine" / "killed_run.py"


def script() -> ModuleType:
    """Return the script of the run that is killed."""
    spec = importlib.util.spec_from_file_location("killed_run", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def members(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every member file."""
    return {p.name: p.read_bytes() for p in sorted((folder / "members").iterdir())}


def started(run: ModuleType, folder: Path, method: str, optimizer: str, executor: str) -> BaseProcess:
    """Start a run; forked from a process that has torch loaded and has computed nothing, it starts at once."""
    arguments = (method, str(folder), EPOCHS, optimizer, executor)
    child = multiprocessing.get_context("fork").Process(target=run.main, args=arguments)
    child.start()
    return child


def killed(
    run: ModuleType, folder: Path, settings: tuple[str, str, str], kills: int, chance: random.Random
) -> dict[str, Any]:
    """Return what became of one combination that was killed as often."""
    began = time.perf_counter()
    whole = started(run, folder / "whole", *settings)
    whole.join()
    seconds, done, tries = time.perf_counter() - began, 0, 0
    length = (folder / "whole" / "log.jsonl").stat().st_size
    broken = folder / "killed-0"
    while done < kills:
        tries += 1
        child = started(run, broken, *settings)
        if tries % 4 == 0:  # at any moment, also before anything was written
            child.join(chance.uniform(0, seconds))
        else:  # after so much of the log, and a little later
            _wait(child, broken / "log.jsonl", length * (done + chance.random()) / kills)
            child.join(chance.uniform(0, 0.5) * seconds / 12)
        if child.is_alive():
            child.kill()
            done += 1
        elif done == 0:  # it was faster than its death: another try from the start
            broken = folder / f"killed-{tries}"
        else:
            break
        child.join()
    last = started(run, broken, *settings)
    last.join()
    same = whole.exitcode == last.exitcode == 0 and members(broken) == members(folder / "whole")
    method, optimizer, executor = settings
    return {"method": method, "optimizer": optimizer, "executor": executor, "kills": done, "identical": same}


def _wait(child: BaseProcess, log: Path, size: float) -> None:
    while child.is_alive() and not (log.exists() and log.stat().st_size >= size):
        time.sleep(0.002)


def main() -> None:
    """Run the check for all combinations."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1, help="of each combination")
    parser.add_argument("--method", nargs="*", default=list(METHODS))
    given = parser.parse_args()
    warnings.filterwarnings("ignore", "This process .* is multi-threaded")
    run, chance, rows = script(), random.Random(1), []
    for method in given.method:
        for optimizer in run.TRAININGS:
            for executor in EXECUTORS:
                with tempfile.TemporaryDirectory() as name:
                    rows.append(killed(run, Path(name), (method, optimizer, executor), given.kills, chance))
                print(rows[-1], flush=True)
    total, same = sum(row["kills"] for row in rows), sum(row["identical"] for row in rows)
    print(f"{total} kills, {same} of {len(rows)} runs identical")
    write("kill", {"kills": total, "identical": same, "runs": len(rows), "rows": rows})


if __name__ == "__main__":
    main()
