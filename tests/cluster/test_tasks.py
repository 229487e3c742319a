"""The process that starts tasks, with a Ray of one thread: leaves run after the ones they go on from, and errors are told."""

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


class Fake:
    """A Ray of one worker, a thread, which takes tasks in the order they were given."""

    exceptions = types.SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)
    cloudpickle = pickle

    def __init__(self):
        self.up, self.cancelled, self.begun, self.dies = False, [], [], 0
        self.worker, self.goes_on = ThreadPoolExecutor(1), threading.Event()
        self.goes_on.set()

    def is_initialized(self):
        return self.up

    def init(self, **options):
        self.up = True

    def shutdown(self):
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
        def options(max_retries, **how):
            def call(*args):
                return Ref(self.worker.submit(self.run, function, args, max_retries))

            return types.SimpleNamespace(remote=call)

        return types.SimpleNamespace(options=options)

    def run(self, function, args, retries):
        args = [arg.future.result() if isinstance(arg, Ref) else arg for arg in args]  # or what the task before raised
        for _ in range(retries + 1):
            self.begun.append(args[2])
            assert args[2] == "start" or self.goes_on.wait(60)
            try:
                found = function(*args)
            except choral.ChoralError as error:
                raise RayTaskError(error) from error
            if not self.dies:
                return found
            self.dies -= 1
        raise RayError("the node died")

    def wait(self, refs, **how):
        time.sleep(0.01)
        done = [ref for ref in refs if ref.future.done()]
        return done, [ref for ref in refs if ref not in done]

    def get(self, ref):
        return ref.future.result()

    def cancel(self, ref, force):
        self.cancelled.append(ref)


@pytest.fixture
def ray(monkeypatch):
    fake = Fake()
    monkeypatch.setitem(sys.modules, "ray", fake)
    yield fake
    fake.goes_on.set()
    fake.worker.shutdown()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    choral.fit(build, (X, Y), RECIPE, run_dir=folder, **OPTIONS)
    return members(folder)


def members(folder):
    return {p.name: p.read_bytes() for p in sorted((folder / "members").iterdir())}


def fit(folder, **cluster):
    compute = replace(OPTIONS["compute"], cluster=choral.Ray(**cluster))
    choral.fit(build, (X, Y), RECIPE, run_dir=folder, **OPTIONS | {"compute": compute})


@pytest.mark.parametrize("deaths", [0, 2])
def test_leaves_are_trained_in_order_and_again_after_deaths(deaths, ray, whole, tmp_path):
    ray.dies = deaths  # after the leaf was trained: what was lost is its answer
    fit(tmp_path)
    assert members(tmp_path) == whole
    assert ray.begun == ["start"] * (deaths + 1) + ["2/f0", "2/f1"]
    assert not ray.up


def test_a_leaf_that_dies_too_often_is_told_and_the_same_call_goes_on(ray, whole, tmp_path):
    ray.dies = 2
    with pytest.raises(choral.ChoralError, match=r"leaf 'start':.*died.* \(and 2 more of 3 leaves\)"):
        fit(tmp_path, retries=1)
    fit(tmp_path)
    assert ray.begun == ["start", "start", "2/f0", "2/f1"]
    assert members(tmp_path) == whole


def test_what_ray_prints_is_not_among_the_results(capsys):
    """It prints from a thread for which its shutdown waits: on an unread pipe neither would end."""
    from choral.cli import cluster_runs

    with cluster_runs.results_only("ray"):
        printing = threading.Thread(target=lambda: sys.stdout.write("(raylet) 20 lines of logs"))
        printing.start()
        printing.join()
    with cluster_runs.results_only(None):
        sys.stdout.write("{}")
    assert capsys.readouterr().out == "{}"


def test_tasks_are_cancelled_when_the_call_is_interrupted(ray, tmp_path):
    def stop(event):
        raise InterruptedError

    ray.goes_on.clear()
    with pytest.raises(InterruptedError):
        choral.fit(
            build,
            (X, Y),
            RECIPE,
            run_dir=tmp_path,
            callbacks=stop,
            compute=replace(OPTIONS["compute"], cluster=choral.Ray()),
        )
    assert 2 <= len(ray.cancelled) <= 3  # the first may have been done
    assert not ray.up


def test_what_a_leaf_raises_is_told_and_others_are_kept(ray, tmp_path):
    (tmp_path / "members").write_text("a file where a folder belongs")
    with pytest.raises(choral.ChoralError, match=r"leaf '2/f0': .* \(and 1 more of 3 leaves\)"):
        fit(tmp_path)
    assert not ray.up


@pytest.mark.parametrize("means", [{"cpus": 64}, {"gpus": 1}])
def test_leaves_that_fit_on_no_machine_are_said_at_once(means, ray, tmp_path):
    with pytest.raises(choral.ChoralError, match=r"a leaf wants .*the machines of Ray have 2 CPU and 0 GPU"):
        fit(tmp_path / "run", **means)
    ray.up = True  # a cluster may grow
    with pytest.warns(UserWarning, match="waiting for one that joins"):
        fit(tmp_path / "run", **means)


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
            time.sleep(60)
            os._exit(0)
    try:
        with claimed(tmp_path):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
