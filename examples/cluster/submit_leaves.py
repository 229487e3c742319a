"""Train a prepared run with submitit, which writes SLURM's scripts: python submit_leaves.py RUN PARTITION."""

import subprocess
import sys
from pathlib import Path

import choral


def train(run: str, path: str) -> None:
    """Train one leaf as the command would; it reads its data again from the words the run was prepared by."""
    subprocess.run([sys.executable, "-m", "choral", "run-leaf", run, path, "--wait", "14400", "--quiet"], check=True)


def main(run: str, partition: str) -> None:
    """Submit all leaves that are not done, and wait for them."""
    import submitit

    executor = submitit.AutoExecutor(folder=Path(run) / "submitit")
    executor.update_parameters(slurm_partition=partition, timeout_min=240, cpus_per_task=1, mem_gb=4)
    waiting = [row["path"] for row in choral.leaves(run) if row["state"] not in ("done", "diverged")]
    for job in executor.map_array(train, [run] * len(waiting), waiting):
        job.result()


if __name__ == "__main__":
    main(*sys.argv[1:])
