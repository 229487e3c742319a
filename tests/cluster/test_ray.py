"""Runs on Ray, on machines that die: the members of one process. All of it in a network of its own, where there is only this machine."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import choral
from choral.recipes import make

SCRIPT = Path(__file__).parent / "ray_run.py"
SOURCE = str(Path(choral.__file__).parents[1])
ALONE = ["unshare", "--net", *(["--map-root-user"] if os.geteuid() else []), "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]  # fmt: skip


def _obstacle():
    try:
        import ray  # noqa: F401
    except ImportError:
        return "ray is not installed"
    if not shutil.which("unshare") or not shutil.which("ip"):
        return "unshare and ip, which make a network of its own, are not installed"
    done = subprocess.run([*ALONE, "true"], capture_output=True, text=True, check=False)
    return f"a network of its own cannot be made: {done.stderr.strip()}" if done.returncode else ""


@pytest.fixture(scope="module")
def alone():
    """The beginning of a command that runs in a network of its own; a process of one thread."""
    why = _obstacle()
    if why:
        pytest.skip(why)
    return ALONE


def environment(**more):
    settings = {"OMP_NUM_THREADS": "1", "PYTHONPATH": SOURCE, "RAY_memory_monitor_refresh_ms": "0"}
    return {**os.environ, **settings, "PYTHONWARNINGS": "ignore", **more}


def members(folder):
    return {p.name: p.read_bytes() for p in sorted((folder / "members").iterdir())}


@pytest.mark.slow
@pytest.mark.full  # Ray starts and loses a machine by clocks of its own
def test_two_machines_give_the_members_of_one_process_though_one_dies(alone, tmp_path):
    done = subprocess.run(
        [*alone, sys.executable, str(SCRIPT), str(tmp_path)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.strip().splitlines()[-1])
    assert told["same"]
    assert (told["events"], told["last"]) == (24, 24)  # every epoch of every leaf was heard once, and counted together
    assert told["same after deaths"]
    assert told["deaths"] == 2
    assert told["compared"]
    (said,) = told["errors"]
    assert said.startswith("leaf 'f0': ")
    assert "cannot be written (File exists)" in said
    assert "and 1 more of 2 leaves" in said


@pytest.mark.slow
@pytest.mark.full  # a minute and a half
def test_a_command_that_is_killed_and_one_that_is_interrupted_go_on(alone, tmp_path):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(300, 3))
    lines = [f"{a:.4f},{b:.4f},{c:.4f},{a + b * c:.4f}" for a, b, c in x]
    (tmp_path / "points.csv").write_text("\n".join(["a,b,c,y", *lines]) + "\n")
    words = ["fit", "points.csv", "--target", "y", "--members", "3", "--batch-size", "16", "--budget", "1800"]
    words += ["--executor", "sequential", "--validation", "0", "--quiet"]
    log = tmp_path / "ray" / "log.jsonl"

    def start(*more):
        command = [*alone, sys.executable, "-m", "choral", *words, *more]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        heeding = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a shell ignores it for what runs behind it
        return subprocess.Popen(command, cwd=tmp_path, env=environment(), preexec_fn=heeding, **pipes)

    def training(process):
        """Wait until this process, and no worker that outlives one before it, has heard of an epoch."""
        while process.poll() is None and not (log.exists() and '"epoch"' in log.read_text()):
            time.sleep(0.05)
        assert process.poll() is None, process.communicate()[1]
        return process

    whole = start("--out", "whole")
    killed = training(start("--out", "ray", "--cluster", "ray"))
    killed.kill()
    killed.communicate(timeout=60)
    log.unlink()
    stopped = training(start("--out", "ray", "--cluster", "ray"))
    stopped.send_signal(signal.SIGINT)
    said = stopped.communicate(timeout=120)[1]
    assert stopped.returncode == 130, said
    assert "interrupted; run the same command again" in said
    last = start("--out", "ray", "--cluster", "ray")
    said = last.communicate(timeout=300)[1]
    assert last.returncode == 0, said
    whole.communicate(timeout=300)
    assert members(tmp_path / "ray") == members(tmp_path / "whole")


def test_what_a_cluster_cannot_do_is_said_before_one_is_started(tmp_path, monkeypatch):
    x, y = np.zeros((8, 3), dtype="float32"), np.zeros(8, dtype="int64")

    def fit(**options):
        recipe = make("single", budget=1)
        choral.fit(
            lambda: None,
            (x, y),
            recipe,
            **({"compute": choral.Compute(cluster=choral.Ray()), "run_dir": tmp_path} | options),
        )

    for name, value, words in [
        ("run_dir", None, "a cluster needs run_dir"),
        ("compute", choral.Compute(cluster="ray"), r"cluster is 'ray'; give choral.Ray\(\)"),
        (
            "compute",
            choral.Compute(cluster=choral.Ray(), time_limit=3.0),
            "time_limit is 3.0, which a run on a cluster does not support",
        ),
        ("on_existing", "extend", "on_existing is 'extend', which a run on a cluster does not support"),
    ]:
        with pytest.raises(choral.ChoralError, match=words):
            fit(**{name: value})
    with pytest.raises(choral.ChoralError, match="retries is -1"):
        choral.Ray(retries=-1)
    with pytest.raises(choral.ChoralError, match="cpus is 0"):
        choral.Ray(cpus=0)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(choral.ChoralError, match=r"needs ray; install it: pip install 'choral\[ray\]'"):
        fit()
    assert not list(tmp_path.iterdir())
