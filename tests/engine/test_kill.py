"""A process killed without warning, again and again, still ends with the same bytes."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "killed_run.py"


def members(folder):
    return {p.name: p.read_bytes() for p in sorted((folder / "members").iterdir())}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "optimiser", "executor", "by"),
    [
        ("bagged", "nesterov", "sequential", ""),
        ("edst", "adamw", "sequential", ""),
        ("deep_ensemble", "adam", "vectorised", ""),
        ("deep_ensemble", "adam", "vectorised", "member"),
        ("prune_and_tune", "adam", "sequential", "ensemble"),
    ],
)
def test_members_after_kills_equal_those_of_an_unbroken_run(method, optimiser, executor, by, tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def start(folder):
        settings = [method, str(folder), "60" if by else "24", optimiser, executor, *([by] if by else [])]
        return subprocess.Popen([sys.executable, str(SCRIPT), *settings], env=environment)

    assert start(tmp_path / "whole").wait(timeout=300) == 0
    chance, kills, tries = random.Random(5), 0, 0
    while True:
        tries += 1
        assert tries < 60
        process = start(tmp_path / "killed")
        log = tmp_path / "killed" / "log.jsonl"
        size = log.stat().st_size if log.exists() else 0
        while process.poll() is None and not (log.exists() and log.stat().st_size > size):
            time.sleep(0.02)
        time.sleep(chance.uniform(0.0, 0.35))
        if kills < 2 and process.poll() is None:
            process.kill()
            kills += 1
        if process.wait(timeout=300) == 0:
            break
    assert kills
    assert members(tmp_path / "killed") == members(tmp_path / "whole")
