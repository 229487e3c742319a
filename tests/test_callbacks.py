"""Listeners: events of every kind have the declared form, and ready-made listeners pass them on."""

import contextlib
import csv
import io
import time
import types

import pytest
import torch
from rich.console import Console
from torch import nn

import choral
from choral import callbacks
from choral.base.errors import InputError
from choral.engine.events import EVENTS
from choral.engine.files import expect
from choral.engine.validation import Limit
from choral.recipes import make
from choral.recipes.training import Training

X = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


def build():
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))


def events_of(recipe, folder=None, stop_after=None, **options):
    heard = []

    def hear(event):
        heard.append(event)
        if stop_after is not None and len(heard) == stop_after:
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt, choral.ChoralError):
        choral.fit(
            build,
            (X, Y),
            recipe,
            run_dir=folder,
            callbacks=hear,
            **{"compute": choral.Compute(checkpoint_seconds=0)} | options,
        )
    return heard


def test_every_event_has_its_declared_form(tmp_path):
    training = Training(optimizer="sgd", lr=0.05, batch_size=16)
    wild = Training(optimizer="sgd", lr=1e30, batch_size=16)
    heard = events_of(make("prune_and_tune", budget=4, members=2, training=training), tmp_path / "a", stop_after=4)
    heard += events_of(make("prune_and_tune", budget=4, members=2, training=training), tmp_path / "a")
    next(iter((tmp_path / "a" / "members").iterdir())).unlink()
    heard += events_of(make("prune_and_tune", budget=4, members=2, training=training), tmp_path / "a")
    heard += events_of(
        make("deep_ensemble", budget=2, members=2, training=wild),
        compute=choral.Compute(executor="vectorized", checkpoint_seconds=0),
    )
    heard += events_of(make("ssbnn", budget=2))
    stop = choral.EarlyStopping(patience=1)
    heard += events_of(
        make("single", budget=60, training=Training(optimizer="sgd", lr=1.0, batch_size=16)),
        validation=0.3,
        early_stopping=stop,
    )
    assert {e["kind"] for e in heard} == set(EVENTS)  # all of them were heard
    for event in heard:
        known = EVENTS[event["kind"]]
        expect(event, known, event["kind"])
        assert event.keys() - {"kind"} <= {name.removesuffix("?") for name in known}


def test_several_listeners_hear_the_same(tmp_path):
    one, other = [], []
    choral.fit(build, (X, Y), make("single", budget=2), callbacks=[one.append, other.append])
    assert one == other
    assert [e["kind"] for e in one] == ["operator", "epoch", "epoch", "collected"]
    with pytest.raises(InputError, match="give a function of an event"):
        choral.fit(build, (X, Y), make("single", budget=1), callbacks="loud")


def test_events_that_are_kept_do_not_change_afterwards():
    heard = []
    choral.fit(build, (X, Y), make("single", budget=3), callbacks=heard.append)
    assert [e["counted"]["epochs"] for e in heard if e["kind"] == "epoch"] == [1, 2, 3]


def test_a_table_of_losses(tmp_path):
    heard = []
    recipe = make("deep_ensemble", budget=4, members=2)
    choral.fit(
        build,
        (X, Y),
        recipe,
        compute=choral.Compute(executor="vectorized", checkpoint_seconds=0),
        callbacks=[callbacks.csv(tmp_path / "l.csv"), heard.append],
    )
    with open(tmp_path / "l.csv") as file:
        rows = list(csv.DictReader(file))
    losses = [loss for e in heard if e["kind"] == "epoch" for loss in e["losses"]]
    assert [float(r["loss"]) for r in rows] == losses
    assert [r["epoch"] for r in rows] == ["1", "1", "2", "2"]
    assert len({r["place"] for r in rows}) == 2
    with pytest.raises(InputError, match="is not a folder"):
        callbacks.csv(tmp_path / "nowhere" / "l.csv")


class Tracker:
    def __init__(self):
        self.told = []

    def add_scalar(self, name, value, step):
        self.told.append((name, value, step))

    def log_metrics(self, values, step):
        self.told += [(n, v, step) for n, v in values.items()]

    def log(self, values):
        self.told += [(n, v, values["epoch"]) for n, v in values.items() if n != "epoch"]


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_trackers_get_the_losses_of_every_network(name):
    tracker, heard = Tracker(), []
    recipe = make("deep_ensemble", budget=4, members=2)
    choral.fit(build, (X, Y), recipe, validation=None, callbacks=[getattr(callbacks, name)(tracker), heard.append])
    wanted = [
        (f"loss/{p}", loss, e["epoch"])
        for e in heard
        if e["kind"] == "epoch"
        for p, loss in zip(e["places"], e["losses"])
    ]
    assert [t for t in tracker.told if t[0] != "rate"] == wanted
    assert {t[2] for t in tracker.told if t[0] == "rate"} == {1, 2}


def test_a_bar_is_drawn_when_asked_for_and_by_default_only_if_somebody_watches(capsys):
    choral.fit(build, (X, Y), make("single", budget=2))
    assert capsys.readouterr().err == ""
    choral.fit(build, (X, Y), make("single", budget=2), progress=True)
    assert "2/2 epochs" in capsys.readouterr().err


def test_a_search_has_one_line_that_ends_full_with_the_scores_above_it(monkeypatch):
    out = io.StringIO()
    made = Console(file=out, force_terminal=True, width=80)
    monkeypatch.setattr("rich.console.Console", lambda **_: made)
    with callbacks.bars(drawn=True, say=lambda line: None) as bar:
        line = bar.search(2)
        for name in ("deep_ensemble", "periodic"):
            hear = line.of(name, 2, 600)
            hear({"kind": "epoch", "epoch": 3, "counted": {"epochs": 6}})
            hear({"kind": "stopped", "place": "f0/1"})
            hear({"kind": "collected", "place": "f0/2"})
            hear({"kind": "epoch", "epoch": 6, "counted": {"epochs": 12}})
            (task,) = bar.shown.tasks
            assert task.completed == line.number + 0.5
            assert task.fields["about"] == "epoch 6, 1/2 members"
            assert task.description == f"{line.number + 1} of 2: {name}"
            line.tell(f"{name}: nll 0.5")
        line.of("deep_ensemble_2", 2, 600)  # there was time for one more
        line.tell("deep_ensemble_2: nll 0.4")
        line.end()
    (task,) = bar.shown.tasks
    assert task.completed == task.total == 3
    assert (task.description, task.fields["about"], task.fields["left"]) == ("3 candidates", "done", "")
    text = out.getvalue()
    assert text.index("deep_ensemble: nll 0.5") < text.index("periodic: nll 0.5")


def test_the_time_left_of_a_search_is_that_of_its_limit():
    with callbacks.bars(drawn=False, say=lambda line: None) as bar:
        bar.search(2, Limit.of(100.0, time.perf_counter() - 40.0)).of("deep_ensemble", 2, 600)
        assert bar.shown.tasks[0].fields["left"] in ("left 0:01:00", "left 0:00:59")


def test_a_notebook_counts_as_somebody(monkeypatch):
    assert not callbacks.somebody_watches()
    notebook = types.ModuleType("IPython")
    notebook.get_ipython = lambda: type("ZMQInteractiveShell", (), {})()
    monkeypatch.setitem(__import__("sys").modules, "IPython", notebook)
    assert callbacks.somebody_watches()


@pytest.mark.parametrize("content", [b"name,age\nme,3\n", b"\xff\xfe\x00"])
def test_a_table_of_another_s_is_not_added_to(tmp_path, content):
    path = tmp_path / "mine.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"mine\.csv.*give another path"):
        callbacks.csv(path)
    assert path.read_bytes() == content
