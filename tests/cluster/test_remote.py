"""Runs in a store that is not a disk: the same bytes, and nothing half written is ever read, however badly the store behaves."""

import errno
import json
import os
import threading
import time

import fsspec
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem
from torch import nn

import choral
from choral.cluster.storage import RemoteStorage
from choral.plan import Adam
from choral.recipes import make
from choral.recipes.training import Training

G = torch.Generator().manual_seed(0)
X, Y = torch.randn(32, 3, generator=G), torch.randint(2, (32,), generator=G)
QUICK = Training(lr=0.01, optimizer=Adam(), batch_size=16)
OPTIONS = {"compute": choral.Compute(threads=1, executor="sequential", checkpoint_seconds=0.0)}


def build():
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def recipe(method="prune_and_tune"):
    return make(method, budget=9, members=2, training=QUICK)


class Bad(MemoryFileSystem):
    """A store that does not always do as it is told; what it does is set by each test."""

    protocol = "bad"
    store: dict = {}  # noqa: RUF012  # one for all, as its parent has
    pseudo_dirs = [""]  # noqa: RUF012
    cachable = False
    before = staticmethod(lambda call, path: None)

    @classmethod
    def _strip_protocol(cls, path):
        return MemoryFileSystem._strip_protocol(path.removeprefix("bad:"))

    def cat_file(self, path, **kwargs):
        type(self).before("get", path)
        return super().cat_file(path, **kwargs)

    def pipe_file(self, path, value, **kwargs):
        kept = type(self).before("put", path)
        super().pipe_file(path, value if kept is None else value[:kept], **kwargs)
        if kept is not None:
            raise OSError("the connection was lost")

    def rm_file(self, path):
        type(self).before("remove", path)
        super().rm_file(path)


fsspec.register_implementation("bad", Bad, clobber=True)


@pytest.fixture(autouse=True)
def empty():
    for system in (MemoryFileSystem, Bad):
        system.store.clear()
        system.pseudo_dirs[:] = [""]
    Bad.before = staticmethod(lambda call, path: None)


@pytest.fixture
def whole(tmp_path):
    choral.fit(build, (X, Y), recipe(), run_dir=tmp_path / "whole", **OPTIONS)
    return {p.name: p.read_bytes() for p in sorted((tmp_path / "whole" / "members").iterdir())}


def members(url):
    objects = RemoteStorage(url)
    return {name.removeprefix("members/"): objects.get(name) for name in objects.names("members")}


def test_a_run_in_a_store_has_the_members_of_one_on_a_disk(whole, tmp_path):
    ensemble = choral.fit(build, (X, Y), recipe(), run_dir="memory://runs/one", **OPTIONS)
    assert members("memory://runs/one") == whole
    loaded = choral.load("memory://runs/one", build)
    assert torch.equal(loaded.predict(X).probs, ensemble.predict(X).probs)
    assert loaded.info["counted"] == ensemble.info["counted"]
    heard = []
    choral.fit(build, (X, Y), recipe(), run_dir="memory://runs/one", callbacks=heard.append, **OPTIONS)
    assert not heard  # it is there
    choral.fit(
        build, (X, Y), recipe(), run_dir="memory://runs/one", callbacks=heard.append, on_existing="overwrite", **OPTIONS
    )
    assert len([e for e in heard if e["kind"] == "epoch"]) == 9
    assert members("memory://runs/one") == whole
    with pytest.raises(choral.ChoralError, match=r"memory://runs/one.*0, now 1"):
        choral.fit(build, (X, Y), recipe(), run_dir="memory://runs/one", **(OPTIONS | {"seed": 1}))


def test_leaves_of_a_store_are_listed_and_trained_by_themselves(whole):
    url = choral.Store("memory://runs/two", timeout_seconds=60)
    choral.prepare(build, (X, Y), recipe(), run_dir=url, **OPTIONS)
    for path in ("start", "2/f1", "2/f0"):
        assert path in [row["path"] for row in choral.leaves(url) if row["state"] == "ready"]
        choral.run_leaf(url, path, build, (X, Y), recipe(), **OPTIONS)
    assert members(url) == whole
    RemoteStorage(url).remove("members/00001.safetensors")
    with pytest.warns(UserWarning, match="1 of 2 networks are missing"):
        choral.load(url, build, partial=True)


def test_a_store_that_fails_every_tenth_call_is_tried_again(whole):
    calls = [0]

    def before(call, path):
        calls[0] += 1
        if calls[0] % 10 == 0:
            raise OSError("503 slow down")
        return 7 if call == "put" and calls[0] % 10 == 5 else None  # a part arrives

    Bad.before = staticmethod(before)
    choral.fit(build, (X, Y), recipe(), run_dir="bad://run", **OPTIONS)
    assert calls[0] > 50
    Bad.before = staticmethod(lambda call, path: None)
    assert members("bad://run") == whole


def test_a_store_that_loses_every_call_from_a_moment_on_costs_no_more_than_that(whole):
    """The same command, each time with a store that breaks later, until it is through: never a wrong byte."""
    store = choral.Store("bad://run", tries=1)
    failures: list[str] = []
    for room in range(0, 400, 13):
        calls = [0]

        def before(call, path, calls=calls, room=room):
            calls[0] += 1
            if calls[0] > room:
                if call == "put" and calls[0] == room + 1:
                    return 11
                raise OSError("gone")
            return None

        Bad.before = staticmethod(before)
        try:
            choral.fit(build, (X, Y), recipe(), run_dir=store, **OPTIONS)
            break
        except choral.ChoralError as error:
            failures.append(str(error))
    assert len(failures) > 3
    assert all("bad://run" in said for said in failures)
    Bad.before = staticmethod(lambda call, path: None)
    assert members("bad://run") == whole
    log = [json.loads(line) for line in RemoteStorage("bad://run").get("log.jsonl").splitlines()]
    counted = [event["counted"]["epochs"] for event in log if event["kind"] == "epoch"]
    assert counted == sorted(set(counted))  # a write of the log that the store cut short may cost its first lines
    assert counted[-1] == 9


def test_a_store_that_hangs_is_waited_for_only_so_long():
    choral.prepare(build, (X, Y), recipe(), run_dir="bad://run", **OPTIONS)
    let_go = threading.Event()
    Bad.before = staticmethod(lambda call, path: let_go.wait(300) if call == "put" else None)
    store = choral.Store("bad://run", timeout_seconds=1.5, tries=2)
    started = time.monotonic()
    with pytest.raises(
        choral.ChoralError, match=r"leaf 'start': bad://run: .*cannot be written \(no answer within 1.5 s\), 2 times"
    ):
        choral.run_leaf(store, "start", build, (X, Y), recipe(), **OPTIONS)
    assert time.monotonic() - started < 250
    let_go.set()
    Bad.before = staticmethod(lambda call, path: None)
    choral.run_leaf("bad://run", "start", build, (X, Y), recipe(), **OPTIONS)


def test_a_full_disk_names_its_leaf_keeps_the_rest_and_the_same_call_goes_on(whole, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    choral.prepare(build, (X, Y), recipe(), run_dir=folder, **OPTIONS)
    opened = os.open

    def full(path, flags, *args, **kwargs):
        if "2.f0" in str(path) and flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return opened(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(choral.ChoralError, match=r"leaf '2/f0': .*No space left"):
        choral.fit(build, (X, Y), recipe(), run_dir=folder, **OPTIONS)
    states = {row["path"]: row["state"] for row in choral.leaves(folder)}
    assert states == {"start": "done", "2/f0": "ready", "2/f1": "done"}
    monkeypatch.undo()
    heard = []
    choral.fit(build, (X, Y), recipe(), run_dir=folder, callbacks=heard.append, **OPTIONS)
    assert {e["places"][0] for e in heard if e["kind"] == "epoch"} == {"2/f0/1"}
    assert {p.name: p.read_bytes() for p in sorted((folder / "members").iterdir())} == whole


def test_urls_that_lead_nowhere_are_refused():
    with pytest.raises(choral.ChoralError, match="run_dir nosuch://x cannot be used"):
        choral.fit(build, (X, Y), recipe(), run_dir="nosuch://x")
    with pytest.raises(choral.ChoralError, match="memory://nothing holds no run"):
        choral.load("memory://nothing", build)
    with pytest.raises(choral.ChoralError, match="time_limit is 3"):
        choral.fit(build, (X, Y), recipe(), run_dir="memory://x", compute=choral.Compute(time_limit=3))
    with pytest.raises(choral.ChoralError, match="give one with ://"):
        choral.Store("runs")


def test_names_in_a_manifest_that_lead_elsewhere_are_not_followed(tmp_path):
    from choral.engine.files import read_json, write_json

    choral.fit(build, (X, Y), recipe(), run_dir="memory://run", **OPTIONS)
    objects = RemoteStorage("memory://run")
    local = tmp_path / "manifest.json"
    local.write_bytes(objects.get("leaves/2.f0/manifest.json"))
    held = read_json(local)
    (digest,) = held["members"].values()
    write_json(local, held | {"members": {"../escaped.safetensors": digest}})
    objects.put("leaves/2.f0/manifest.json", local.read_bytes())
    with pytest.raises(choral.ChoralError, match="1 of 2 networks are missing"):
        choral.load("memory://run", build)
