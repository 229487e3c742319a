"""The process that starts tasks, with a Ray that loses answers, hangs or dies: manifests count, and every wait has an end."""

import os
import pickle
import signal
import sys
import threading
import time
import types
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import choral
from choral.cluster import ray as ray_module
from choral.engine.folder import claimed
from choral.plan import Adam
from choral.recipes import make
from choral.recipes.training import Training

G = torch.Generator().manual_seed(0)
X, Y = torch.randn(32, 3, generator=G), torch.randint(2, (32,), generator=G)
OPTIONS = {"compute": choral.Compute(threads=1, executor="sequential", checkpoint_seconds=0.0)}


def build():
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


RECIPE = make("prune_and_tune", budget=9, members=2, training=Training(lr=0.01, optimizer=Adam(), batch_size=16))


class Ref:
    """What will be there; by itself it never is."""

    def __init__(self, future=None):
        self.future = future or Future()

    def hex(self):
        return str(id(self))


class RayError(Exception):
    pass


class RayTaskError(RayError):
    def __init__(self, cause):
        super().__init__(str(cause))
        self.cause = cause


class GetTimeoutError(RayError, TimeoutError):
    pass


class Fake:
    """A Ray of one worker, a thread; what goes wrong is set by each test."""

    exceptions = types.SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError, GetTimeoutError=GetTimeoutError)
    cloudpickle = pickle

    def __init__(self):
        self.up, self.cancelled, self.forever = False, [], threading.Event()
        self.worker = ThreadPoolExecutor(1)
        self.runs, self.wait_hangs, self.get_hangs, self.shutdown_hangs, self.answers = True, False, False, False, True
        self.dies, self.submit_hangs = False, False

    def is_initialized(self):
        return self.up

    def init(self, **options):
        self.up = True

    def shutdown(self):
        if self.shutdown_hangs:
            self.forever.wait()
        self.up = False

    def cluster_resources(self):
        return {"CPU": 2.0}

    def nodes(self):
        return [{"Alive": True, "Resources": {"CPU": 2.0}}, {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}}]

    def put(self, value):
        held = Ref()
        held.future.set_result(value)
        return held

    def remote(self, function):
        def call(*args):
            if self.submit_hangs and args[2] != "start":
                self.forever.wait()
                return Ref()
            return Ref(self.worker.submit(self.run, function, args)) if self.runs else Ref()

        return types.SimpleNamespace(options=lambda **how: types.SimpleNamespace(remote=call))

    def run(self, function, args):
        try:
            found = function(*args)
        except choral.ChoralError as error:
            raise RayTaskError(error) from error
        if self.dies:
            raise RayError("the node died")
        return found

    def wait(self, refs, **how):
        if self.wait_hangs:
            self.forever.wait()
        time.sleep(0.01)
        done = [ref for ref in refs if ref.future.done() and self.answers][:1]
        return done, [ref for ref in refs if ref not in done]

    def get(self, ref, timeout=None):
        if self.get_hangs and timeout is not None:
            self.forever.wait()
        return ref.future.result(timeout)

    def cancel(self, ref, force):
        self.cancelled.append(ref)


@pytest.fixture
def ray(monkeypatch):
    fake = Fake()
    monkeypatch.setitem(sys.modules, "ray", fake)
    for name, seconds in {"_PAUSE": 0.02, "_LOOK": 0.05, "_ANSWER": 0.6, "_SILENCE": 0.4}.items():
        monkeypatch.setattr(ray_module, name, seconds)
    monkeypatch.setattr(ray_module, "_LEAVING", 0.2)
    yield fake
    fake.forever.set()
    fake.worker.shutdown()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    choral.fit(build, (X, Y), RECIPE, run_dir=folder, **OPTIONS)
    return members(folder)


def members(folder):
    return {p.name: p.read_bytes() for p in sorted((folder / "members").iterdir())}


def fit(folder):
    started = time.monotonic()
    try:
        choral.fit(
            build,
            (X, Y),
            RECIPE,
            run_dir=folder,
            **OPTIONS | {"compute": replace(OPTIONS["compute"], cluster=choral.Ray())},
        )
    finally:
        assert time.monotonic() - started < 60


@pytest.mark.parametrize("trouble", ["", "wait_hangs", "get_hangs", "dies", "no answers"])
def test_leaves_with_a_manifest_are_trained_whatever_ray_says(trouble, ray, whole, tmp_path, recwarn):
    if trouble == "no answers":
        ray.answers = False
    elif trouble:
        setattr(ray, trouble, True)
    fit(tmp_path)
    assert members(tmp_path) == whole
    said = [str(w.message) for w in recwarn if "Ray does not let go" in str(w.message)]
    assert bool(said) == trouble.endswith("hangs")  # a call is under way: nothing is shut down below it
    assert ray.up == bool(said)


def test_a_shutdown_that_never_ends_is_not_waited_for(ray, whole, tmp_path):
    ray.shutdown_hangs = True
    with pytest.warns(UserWarning, match="Ray does not let go of this process"):
        fit(tmp_path)
    assert members(tmp_path) == whole


def test_what_ray_prints_is_not_among_the_results(capsys):
    """It prints from a thread for which its shutdown waits: on an unread pipe neither would end."""
    from choral.cli import cluster_runs

    with cluster_runs.results_only("ray"):
        threading.Thread(target=lambda: sys.stdout.write("(raylet) 20 lines of logs")).start()
        time.sleep(0.05)
    with cluster_runs.results_only(None):
        sys.stdout.write("{}")
    assert capsys.readouterr().out == "{}"


def test_ray_that_stops_answering_while_nothing_is_trained_is_said(ray, tmp_path):
    ray.runs, ray.wait_hangs = False, True
    with (
        pytest.warns(UserWarning, match="does not let go"),
        pytest.raises(choral.ChoralError, match=r"Ray has not answered for .* s.* \(under way: start\)"),
    ):
        fit(tmp_path)
    assert len(ray.cancelled) == 1


def test_ray_that_takes_no_more_tasks_is_said(ray, tmp_path):
    ray.submit_hangs = True
    with (
        pytest.warns(UserWarning, match="does not let go"),
        pytest.raises(choral.ChoralError, match=r"leaf '2/f0' could not be given to Ray \(no answer within 0.6 s\)"),
    ):
        fit(tmp_path)
    assert {row["path"]: row["state"] for row in choral.leaves(tmp_path)}["start"] == "done"


@pytest.mark.menagerie  # by the clock
def test_a_task_that_is_queued_for_long_is_waited_for(ray, whole, tmp_path, monkeypatch):
    """Ray answers that nothing is done, for longer than its silence would be suffered."""
    ray.runs = ray.answers = False
    folder = tmp_path / "run"

    def later():
        time.sleep(1.0)
        for path in ("start", "2/f0", "2/f1"):
            choral.run_leaf(folder, path, build, (X, Y), RECIPE, **OPTIONS)

    choral.prepare(build, (X, Y), RECIPE, run_dir=folder, **OPTIONS)
    other = threading.Thread(target=later)
    other.start()
    fit(folder)
    other.join()
    assert members(folder) == whole


def test_what_a_leaf_raises_is_told_and_others_are_kept(ray, tmp_path):
    (tmp_path / "members").write_text("a file where a folder belongs")
    with pytest.raises(choral.ChoralError, match=r"leaf '2/f0': .* \(and 1 more of 3 leaves\)"):
        fit(tmp_path)
    assert not ray.up


@pytest.mark.parametrize("means", [{"cpus": 64}, {"gpus": 1}])
def test_leaves_that_fit_on_no_machine_are_said_at_once(means, ray, tmp_path, monkeypatch):
    with pytest.raises(
        choral.ChoralError, match=r"a leaf wants .* the machines of Ray have 2 CPU and 0 GPU; give fewer"
    ):
        choral.fit(
            build,
            (X, Y),
            RECIPE,
            run_dir=tmp_path / "run",
            **OPTIONS | {"compute": replace(OPTIONS["compute"], cluster=choral.Ray(**means))},
        )
    ray.up = True  # a cluster may grow
    monkeypatch.setattr(ray_module, "_JOINING", 0.1)
    with pytest.warns(UserWarning, match="waiting"), pytest.raises(choral.ChoralError, match="give fewer"):
        choral.fit(
            build,
            (X, Y),
            RECIPE,
            run_dir=tmp_path / "run",
            **OPTIONS | {"compute": replace(OPTIONS["compute"], cluster=choral.Ray(**means))},
        )


def test_an_address_where_nobody_answers_is_said_at_once(ray, tmp_path):
    with pytest.raises(choral.ChoralError, match=r"Ray at 127.0.0.1:1 cannot be reached \(Connection refused\)"):
        choral.fit(
            build,
            (X, Y),
            RECIPE,
            run_dir=tmp_path / "run",
            **OPTIONS | {"compute": replace(OPTIONS["compute"], cluster=choral.Ray(address="127.0.0.1:1"))},
        )


def falling(step):
    return 0.01 / (1 + step)


OWN: list[Any] = [{"optimizer": torch.optim.NAdam, "lr": 0.002}, {"schedule": falling}]


@pytest.mark.parametrize("own", OWN)
def test_functions_of_the_user_are_called_in_leaves(own, ray, tmp_path):
    recipe = make("deep_ensemble", budget=4, members=2, training=Training(**own))
    choral.fit(build, (X, Y), recipe, run_dir=tmp_path / "whole", **OPTIONS)
    choral.fit(
        build,
        (X, Y),
        recipe,
        run_dir=tmp_path / "ray",
        **OPTIONS | {"compute": replace(OPTIONS["compute"], cluster=choral.Ray())},
    )
    assert members(tmp_path / "ray") == members(tmp_path / "whole")
    choral.prepare(build, (X, Y), recipe, run_dir=tmp_path / "leaves", **OPTIONS)
    for path in ("f0", "f1"):
        choral.run_leaf(tmp_path / "leaves", path, build, (X, Y), recipe, **OPTIONS)
    assert members(tmp_path / "leaves") == members(tmp_path / "whole")


def test_a_folder_is_let_go_though_a_forked_process_holds_its_file(tmp_path):
    with claimed(tmp_path):
        child = os.fork()
        if child == 0:
            time.sleep(20)
            os._exit(0)
    try:
        with claimed(tmp_path):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
