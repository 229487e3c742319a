"""A process killed without warning, again and again, still ends with the same bytes."""

import json
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


@pytest.mark.full
@pytest.mark.parametrize(
    ("method", "optimizer", "executor", "by"),
    [
        ("bagged", "nesterov", "sequential", ""),
        ("edst", "adamw", "sequential", ""),
        ("deep_ensemble", "adam", "vectorized", ""),
        ("deep_ensemble", "adam", "vectorized", "member"),
        ("prune_and_tune", "adam", "sequential", "ensemble"),
    ],
)
def test_members_after_kills_equal_those_of_an_unbroken_run(method, optimizer, executor, by, tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def start(folder):
        settings = [method, str(folder), "60" if by else "24", optimizer, executor, *([by] if by else [])]
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


@pytest.mark.parametrize(
    "setting",
    [
        pytest.param("sequential member", marks=pytest.mark.full),
        pytest.param("sequential ensemble", marks=pytest.mark.full),
        "vectorized member",
        pytest.param("vectorized ensemble", marks=pytest.mark.full),
    ],
)
def test_early_stopping_survives_kills_at_many_moments(setting, tmp_path):
    call = [sys.executable, str(SCRIPT.with_name("killed_often.py")), str(tmp_path), *setting.split()]
    done = subprocess.run(call, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["kills"] >= 5
    assert found["members"] == len(found["stopped_after"]) == 4
    assert (len(set(found["stopped_after"])) > 1) == setting.endswith("member")
    assert found["while_some_had_stopped"] == setting.endswith("member")
    assert found["same"]
