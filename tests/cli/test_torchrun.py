"""choral fit started by torchrun: the processes share every batch, one of them speaks."""

import os
import subprocess
import sys

import pytest

RUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
HERE = ["--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1"]
FIT = ["-m", "choral", "fit", "wine", "--method", "packed", "--model", "mlp", "--budget", "3", "--validation", "0"]


@pytest.mark.slow
@pytest.mark.full
def test_torchrun_gives_the_result_of_one_process_once(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}

    def run(command):
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        return done.stdout

    two = run([*RUN, *HERE, *FIT, "--out", "two"])
    one = run([sys.executable, *FIT, "--out", "one"])
    assert two.count("saved two") == 1
    # every number but the seconds
    shown = [[line.split()[:12] for line in text.splitlines() if line.startswith("│ packed")] for text in (one, two)]
    assert shown[0] == shown[1] != []
    assert (tmp_path / "two" / "results.json").exists()
