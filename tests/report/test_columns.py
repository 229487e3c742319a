"""Classes and columns on the page: numbers as they were found, any name, and nothing of a part that is damaged."""

import json
import shutil

import pytest
from tests.report.test_hostile import NAMES, Page, keep, rendered


def found(name="size", cls="rare"):
    curve = {"column": name, "values": ["1", "2"], "at": [1.0, 2.0], "outputs": ["common", cls]}
    curve |= {"mean": [[0.7, 0.3], [0.6, 0.4]], "members": [[[0.7, 0.3], [0.6, 0.4]]] * 2}
    words = curve | {"column": "town", "values": [name, "b"], "at": None}
    row = {"worse": {"accuracy": 0.01, "nll": 0.1234}, "error": {"accuracy": 0.0, "nll": 0.002}}
    row |= {"members": {"accuracy": [0.0, 0.02], "nll": [0.0917, 0.1873]}}
    classes = {"names": ["common", cls], "counts": [90, 10], "recall": [0.9777, 0.4321], "precision": [0.9, None]}
    classes |= {"average_precision": [0.98, 0.6123], "confusion": [[88, 2], [6, 4]]}
    importance = {"measure": "nll", "columns": [{"column": name} | row], "dependence": [curve, words]}
    worst = [{"row": 17, "target": cls, "predicted": "common", "confidence": 0.8765}]
    return {"classes": classes, "importance": importance, "worst": worst}


@pytest.fixture
def folder(comparison, tmp_path):
    shutil.copytree(comparison / "snapshot", tmp_path / "run")
    return tmp_path / "run"


def put(folder, **parts):
    keep(folder / "evaluation.json", lambda held: [e.update(parts) for e in held["evaluation"].values()] and held)
    return folder


def test_every_number_is_on_the_page(folder):
    text = rendered(put(folder, **found()))
    page = Page(text)
    for value in (0.1234, 0.0917, 0.1873, 0.01, 0.9777, 0.4321, 0.98, 0.6123, 0.8765):
        assert repr(value) in page.values["data-value"]
    assert text.count("probability of rare") == 2
    assert {"dependence-0", "dependence-1", "confusion"} <= page.values["id"]
    assert {"88", "2", "6", "4"} <= set(page.texts)  # the confusion matrix


@pytest.mark.full
def test_columns_and_classes_may_have_any_name(folder):
    plain = Page(rendered(put(folder, **found())))
    for kind in ("end", "steering", "backslash", "long"):
        page = Page(rendered(put(folder, **found(NAMES[kind], NAMES[kind]))))
        assert page.kinds <= plain.kinds
        assert {v for v in page.values["id"] if "-p" not in v} <= plain.values["id"]


@pytest.mark.parametrize(
    ("part", "break_it"),
    [
        pytest.param("importance", lambda held: held.update(measure="rmse"), marks=pytest.mark.full),
        pytest.param("importance", lambda held: held["dependence"][0]["mean"].clear(), marks=pytest.mark.full),
        ("classes", lambda held: held["recall"].pop()),
    ],
)
def test_a_damaged_part_is_left_out_and_named(folder, part, break_it):
    parts = json.loads(json.dumps(found()))
    break_it(parts[part])
    text = rendered(put(folder, **parts))
    assert f'<section id="{part}">' not in text
    assert f"are incomplete or damaged: {part}." in text
