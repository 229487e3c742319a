"""Exported graphs: what they give is what the ensemble predicts, without choral; or a sentence, and no file."""

import inspect
import json
import subprocess
import sys
import zipfile

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from tests.menagerie import MENAGERIE
from torch import nn

import choral
from choral.base.errors import InputError
from choral.calibration import fit_conformal_sets
from choral.data.inputs import Normalize
from choral.deploy.export import outputs_of
from choral.recipes import METHODS, make
from choral.recipes.training import Training

G = torch.Generator().manual_seed(0)
X = torch.randn(64, 3, 8, 8, generator=G)
Y = torch.arange(64) % 3
QUICK = Training(lr=0.05, optimizer="sgd", batch_size=32)


class Attending(nn.Module):
    """A small transformer encoder over the rows of a picture."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 3)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x):
        return self.last(self.body(self.first(x.mean(1))).mean(1))


class Residual(nn.Module):
    """Two residual blocks with BatchNorm."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()) for _ in range(2)
        )
        self.drop, self.last = nn.Dropout(0.1), nn.Linear(8, 3)

    def forward(self, x):
        h = self.first(x)
        for block in self.blocks:
            h = h + block(h)
        return self.last(self.drop(h.mean((2, 3))))


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))


def convnet():
    body = (nn.Conv2d(3, 6, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 8, 3), nn.ReLU(), nn.Flatten())
    return nn.Sequential(*body, nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3))


NETWORKS = {"mlp": mlp, "lenet": convnet, "resnet": Residual, "transformer": Attending}


def few(method):
    """Return a short recipe of a method, with two members or three draws where it has a choice."""
    choice = METHODS[method].options.get("members")
    several = choice is not None and choice.default not in (1, None, inspect.Parameter.empty)
    drawn = {"draws": 3} if make(method).structure.draws > 1 else {}
    return make(method, budget=12, training=QUICK, members=2 if several else None, **drawn)


def run(path, rows):
    """Return what a file gives for some rows, by name."""
    if path.suffix == ".pt2":
        return torch.export.load(path).module()(rows)
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    given = rows if isinstance(rows, dict) else {"x": rows}
    found = session.run(None, {name: value.numpy() for name, value in given.items()})
    return {o.name: torch.from_numpy(value) for o, value in zip(session.get_outputs(), found)}


def about_of(path):
    """Return what a file says about itself."""
    if path.suffix == ".onnx":
        import onnxruntime

        return json.loads(onnxruntime.InferenceSession(path).get_modelmeta().custom_metadata_map["choral.json"])
    with zipfile.ZipFile(path) as held:
        (name,) = (n for n in held.namelist() if n.endswith("choral.json"))
        return json.loads(held.read(name))


def agrees(ensemble, path, x, rows, *, members=False, close=1e-5):
    """Compare a file with the prediction of x; at random shares sets are compared with those without."""
    found = run(path, rows)
    expected = outputs_of(ensemble._predictive(x), ensemble._interface.target, members=members)
    assert list(found) == list(expected)
    for name, right in expected.items():
        torch.testing.assert_close(found[name], right.to(found[name].dtype), rtol=close, atol=close, msg=name)
    return found


def needs(suffix):
    if suffix == ".onnx":
        for name in ("onnx", "onnxscript", "onnxruntime"):
            pytest.importorskip(name, reason=f"{name} is in the extra 'onnx'")


@pytest.mark.parametrize("case", ["packed resnet", "mc_dropout lenet", "batch_ensemble transformer"])
def test_kinds_of_networks_and_methods_as_onnx(case, tmp_path):
    compared(*case.split(), ".onnx", tmp_path)


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
@pytest.mark.parametrize("network", list(NETWORKS))
@pytest.mark.parametrize("method", list(METHODS))
def test_a_graph_predicts_what_the_ensemble_does_for_any_number_of_rows(method, network, suffix, tmp_path):
    compared(method, network, suffix, tmp_path)


def compared(method, network, suffix, tmp_path):
    """Export an ensemble with a temperature and conformal sets, and compare the file with it for several numbers of rows."""
    needs(suffix)
    path = tmp_path / f"model{suffix}"
    try:
        ensemble = choral.fit(NETWORKS[network], (X, Y), few(method))
    except choral.ChoralError as error:
        pytest.skip(f"{method} refuses this network: {error}")
    ensemble = ensemble.calibrated(X, Y, temperature="ensemble", level=0.8)
    ensemble.export(path, X[:6], with_members=True)
    for rows in (X[:1], X[:5], X):
        agrees(ensemble, path, rows, rows, members=True)


def lines(rows):
    x = torch.randn(rows, 3, generator=torch.Generator().manual_seed(1)) * 7 + 3
    return x, 200_000 * x[:, 0] + 1000 * x[:, 1] ** 2


def regression(method="deep_ensemble", outputs=2, **options):
    build = lambda: nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, outputs))  # noqa: E731  # a factory
    scale = Normalize(mean=(3.0, 3.0, 3.0), std=(7.0, 7.0, 7.0))
    return choral.fit(build, lines(60), few(method), transforms=(scale,), **options)


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
@pytest.mark.parametrize("rule", ["scaled", "residual", "quantile"])
def test_conformal_intervals_are_those_of_predict(rule, suffix, tmp_path):
    needs(suffix)
    path, (x, y) = tmp_path / f"model{suffix}", lines(60)
    ensemble = regression().calibrated(x, y, level=0.8, conformal=rule, stacking=True)
    ensemble.export(path)
    found, (lower, upper) = run(path, x[:9]), ensemble.predict(x[:9]).conformal_interval()
    assert found["lower"].shape == (9,)
    torch.testing.assert_close(found["lower"], lower.float(), rtol=1e-4, atol=1.0)
    torch.testing.assert_close(found["upper"], upper.float(), rtol=1e-4, atol=1.0)
    torch.testing.assert_close(found["std"] ** 2, found["aleatoric"] + found["epistemic"], rtol=1e-4, atol=1e-2)


def test_sets_without_a_random_share_are_equal_and_others_hold_those_of_predict(tmp_path):
    path, ensemble = tmp_path / "model.pt2", choral.fit(mlp, (X, Y), few("deep_ensemble"))
    plain = fit_conformal_sets(ensemble.predict(X).probs, Y, level=0.8, randomized=False)
    fixed = ensemble.with_posthoc(plain)
    fixed.export(path)
    other = torch.randn(200, 3, 8, 8, generator=torch.Generator().manual_seed(2))
    assert torch.equal(run(path, other)["set"], fixed.predict(other).sets())
    shared = ensemble.calibrated(X, Y, level=0.8)
    shared.export(path)
    found, sets = run(path, other)["set"], shared.predict(other).sets()
    assert not (sets & ~found).any()
    assert (found.sum(1) - sets.sum(1)).max() <= 1
    assert not torch.equal(found, sets)


def test_it_runs_without_choral_and_says_what_it_is(tmp_path):
    ensemble = choral.fit(convnet, (X, Y), few("packed")).calibrated(X, Y, level=0.9)
    path = tmp_path / "program.pt2"
    ensemble.export(path)
    torch.save(X, tmp_path / "x.pt")
    code = (
        "import sys, torch; sys.modules['choral'] = None; x = torch.load('x.pt'); "
        "torch.save(torch.export.load('program.pt2').module()(x)['probs'], 'y.pt')"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=tmp_path, check=True)
    torch.testing.assert_close(torch.load(tmp_path / "y.pt"), ensemble.predict(X).probs, rtol=1e-4, atol=1e-6)
    about = about_of(path)
    assert about["task"] == "classification"
    assert about["method"] == "packed"
    assert about["level"] == 0.9
    assert about["digest"] == ensemble._digest
    assert about["inputs"] == [{"name": "x", "shape": [3, 8, 8], "type": "float32"}]


def test_an_onnx_file_says_what_it_is(tmp_path):
    needs(".onnx")
    import onnxruntime

    ensemble = choral.fit(mlp, (X, Y), few("single"))
    ensemble.export(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    assert about_of(tmp_path / "model.onnx")["digest"] == ensemble._digest
    assert [i.name for i in session.get_inputs()] == ["x"]
    assert isinstance(session.get_inputs()[0].shape[0], str)


LIKELIHOODS = {"gaussian": 1, "student_t": 2, "quantiles": 5, "poisson": 1, "bernoulli": 3}


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
@pytest.mark.parametrize("likelihood", list(LIKELIHOODS))
def test_every_task_has_its_outputs(likelihood, suffix, tmp_path):
    needs(suffix)
    x, path = X[:, :, 0, 0], tmp_path / f"model{suffix}"
    y = {"poisson": (Y + 1).float(), "bernoulli": (x > 0).long()}.get(likelihood, 200_000 * x[:, 0])
    build = lambda: nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, LIKELIHOODS[likelihood]))  # noqa: E731  # a factory
    ensemble = choral.fit(build, (x, y), few("deep_ensemble"), likelihood=likelihood)
    ensemble.export(path, x)
    agrees(ensemble, path, x[:5], x[:5], close=1e-4)


KINDS = ["two inputs", "embedded columns", "dense pixels", "lstm", "tied weights", "bytes"]


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_awkward_networks_too(kind, tmp_path):
    trial = MENAGERIE[kind]
    x, y = trial.data()
    ensemble = choral.fit(trial.build, (x, y), few("deep_ensemble"), **trial.options)
    ensemble.export(tmp_path / "program.pt2", x)
    agrees(ensemble, tmp_path / "program.pt2", x, x, close=1e-4)


def test_networks_trained_elsewhere(tmp_path):
    given = choral.ensemble_of([convnet(), convnet()], data=(X, Y))
    given.export(tmp_path / "given.pt2", X)
    agrees(given, tmp_path / "given.pt2", X, X)


def test_codes_out_of_range_are_refused_by_the_graph_as_by_predict(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    codes = torch.randint(7, (64, 5), generator=torch.Generator().manual_seed(0))
    build = lambda: nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(20, 3))  # noqa: E731  # a factory
    ensemble = choral.fit(build, (codes, Y), make("single", budget=1, training=QUICK))
    ensemble.export(tmp_path / "codes.onnx")
    agrees(ensemble, tmp_path / "codes.onnx", codes, codes)
    for wrong in (-1, 7):  # ONNX counts -1 from the end
        other = codes.clone()
        other[0, 0] = wrong
        with pytest.raises(InputError, match="out of range"):
            ensemble.predict(other)
        with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument, match="out of data bounds"):
            run(tmp_path / "codes.onnx", other)


def test_a_graph_of_networks_fitted_on_bytes_reads_bytes(tmp_path):
    pictures = torch.randint(256, (64, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    ensemble = choral.fit(convnet, (pictures, Y), make("single", budget=1, training=QUICK))
    ensemble.export(tmp_path / "bytes.pt2")
    agrees(ensemble, tmp_path / "bytes.pt2", pictures, pictures)


class Masked(nn.Module):
    """Divides by the number of codes that are no padding."""

    def __init__(self):
        super().__init__()
        self.codes, self.last = nn.Embedding(7, 4), nn.Linear(4, 3)

    def forward(self, x):
        known = (x > 0).float()
        return self.last((self.codes(x) * known[..., None]).sum(1) / known.sum(1, keepdim=True))


def test_rows_are_asked_for_where_made_up_ones_have_no_prediction(tmp_path):
    codes = torch.randint(1, 7, (64, 5), generator=torch.Generator().manual_seed(0))
    ensemble = choral.fit(Masked, (codes, Y), make("single", budget=1, training=QUICK))
    with pytest.raises(InputError, match=r"made-up rows cannot be predicted.*give some, export\(path, x\)"):
        ensemble.export(tmp_path / "masked.pt2")
    ensemble.export(tmp_path / "masked.pt2", codes)


def houses(rows=60):
    """Return a table with every kind of column and cells without a value in each."""
    draw = np.random.default_rng(0)
    when = pd.Timestamp("2020-01-01") + pd.to_timedelta(draw.integers(0, 10**8, rows), unit="s")
    frame = pd.DataFrame(
        {
            "size": 1e6 + draw.normal(0, 3, rows),  # float32 has no digits left for what differs
            "rent": [f"${value:,.2f}" for value in draw.uniform(500, 5000, rows)],
            "sold": when,
            "built": when.strftime("%Y-%m-%d"),
            "town": draw.choice(["Ulm", "Bonn", "Kiel"], rows),
            "street": [*draw.choice([f"street {i}" for i in range(5)], rows - 5), *"abcde"],
            "garden": draw.choice(["yes", "no"], rows),
            "state": draw.choice(["poor", "fair", "good"], rows),
        }
    ).astype(object)
    for number, name in enumerate(frame.columns):
        frame.loc[number::9, name] = None
    return frame.assign(price=1000 * draw.normal(200, 30, rows))


@pytest.mark.filterwarnings("ignore:.*was not in the training data")
@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_a_graph_encodes_the_columns_of_a_table(suffix, tmp_path):
    needs(suffix)
    frame, path = houses(), tmp_path / f"houses{suffix}"
    columns = choral.Columns(orders={"state": ("poor", "fair", "good")})
    fitted = choral.fit_table(frame, "price", members=2, epochs=4, columns=columns).calibrated(frame, level=0.8)
    fitted.export(path)
    later = frame.drop(columns="price")
    later.loc[0] = [2e6, "$1.00", pd.Timestamp("2031-05-06 07:08"), "2031-05-06", "Rome", "b", "no", "fair"]
    later.loc[1] = None
    read = fitted.table.read(later)
    days = (pd.Timestamp("2031-05-06 07:08") - pd.Timestamp("1970-01-01")) / pd.Timedelta(days=1)
    assert read[0].tolist() == [2e6, 1.0, days, int(days), -1, -1, 0, 1]
    assert np.isnan(read[1]).all()
    assert fitted.table.used[5].other
    found = agrees(fitted, path, later, torch.from_numpy(read))
    torch.testing.assert_close(found["lower"], fitted.predict(later).conformal_interval()[0].float())
    numbers = {c["name"]: c for c in about_of(path)["columns"]}
    assert numbers["sold"]["read_as"] == "date"
    assert numbers["town"]["values"] == ["Bonn", "Kiel", "Ulm"]
    with pytest.raises(InputError, match="x has no column 'rent'"):
        fitted.export(path, later.drop(columns="rent"))


class Forgetful(nn.Module):
    """Dropout that is never turned off, or a pass that is written for so many rows."""

    def __init__(self, forward):
        super().__init__()
        self.last, self.how = nn.Linear(8, 3), forward

    def forward(self, x):
        return self.last(self.how(x.mean(1)[:, 0]))


@pytest.mark.parametrize(
    "forward", [lambda h: F.dropout(h, 0.5), lambda h: h.reshape(len(h), 8)], ids=["dropout", "fixed rows"]
)
def test_what_has_no_graph_is_refused_and_nothing_is_written(forward, tmp_path):
    ensemble = choral.fit(lambda: Forgetful(forward), (X, Y), make("single", budget=3, training=QUICK))
    with pytest.raises(InputError, match=r"torch.export cannot follow this network.*len\(x\)"):
        ensemble.export(tmp_path / "program.pt2", X)
    assert not list(tmp_path.iterdir())


def test_a_graph_that_predicts_something_else_is_refused(tmp_path, monkeypatch):
    ensemble = choral.fit(mlp, (X, Y), make("single", budget=1, training=QUICK))
    twin = ensemble.with_posthoc(choral.calibration.Temperature(temperatures=(3.0,)))
    monkeypatch.setattr(ensemble, "_corrected", twin._corrected)
    monkeypatch.setattr(ensemble, "_predictive", lambda x: ensemble._uncorrected(ensemble.outputs(x)))
    with pytest.raises(InputError, match="the graph's probs differs by"):
        ensemble.export(tmp_path / "program.pt2", X)
    assert not list(tmp_path.iterdir())


def test_wrong_arguments_are_said(tmp_path):
    ensemble = choral.fit(mlp, (X, Y), make("single", budget=1, training=QUICK))
    with pytest.raises(InputError, match=r"ending in \.pt2 or \.onnx"):
        ensemble.export(tmp_path / "program.pb", X)
    with pytest.raises(InputError, match="3, 9, 9"):
        ensemble.export(tmp_path / "program.pt2", torch.zeros(4, 3, 9, 9))
