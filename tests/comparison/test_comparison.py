"""Tables of comparisons: over seeds, as frames, CSV and LaTeX."""

import csv
import io
import math
import statistics

import pytest

import choral
from choral import models
from choral.base.errors import InputError
from choral.comparison.compare import compare
from choral.data.problems import Problem
from choral.engine.files import read_json
from choral.plan import Adam
from choral.recipes.training import Training
from choral.tables.problems import load_problem

QUICK = Training(lr=0.005, optimizer=Adam(), batch_size=64)


def part():
    whole = load_problem("wine")
    return Problem("wine", whole.x_train, whole.y_train, whole.x_test, whole.y_test)


def build():
    return models.mlp(13, 3, hidden=(4,))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("seeds")


@pytest.fixture(scope="module")
def found(folder):
    return compare(
        build,
        part(),
        ["deep_ensemble", "single"],
        budget=4,
        members=2,
        training=QUICK,
        seed=(0, 1, 4),
        run_dir=folder,
    )


def test_rows_are_means_with_deviations_and_paired_differences(found):
    alone = [compare(build, part(), ["deep_ensemble", "single"], budget=4, members=2, training=QUICK, seed=s) for s in (0, 1, 4)]  # fmt: skip
    nll = {m: [r["nll"] for c in alone for r in c.rows if r["method"] == m] for m in ("deep_ensemble", "single")}
    row = next(r for r in found.rows if r["method"] == "deep_ensemble")
    assert row["nll"] == pytest.approx(sum(nll["deep_ensemble"]) / 3)
    assert found.deviations["deep_ensemble"]["nll"] == pytest.approx(statistics.stdev(nll["deep_ensemble"]))
    pairs = [a - b for a, b in zip(nll["deep_ensemble"], nll["single"])]
    difference = found.differences["deep_ensemble"]["nll"]
    assert difference["mean"] == pytest.approx(sum(pairs) / 3)
    assert difference["error"] == pytest.approx(statistics.stdev(pairs) / math.sqrt(3))
    assert found.differences["single"]["nll"] == {"mean": 0.0, "error": 0.0}
    assert found.settings["baseline"] == "single"
    assert found.settings["seeds"] == [0, 1, 4]


def test_every_seed_has_its_folder_and_the_whole_is_kept(found, folder):
    assert {p.name for p in folder.iterdir()} == {"comparison.json", "seed-0", "seed-1", "seed-4"}
    held = read_json(folder / "comparison.json") or {}
    assert held["rows"] == found.rows
    assert held["by_seed"]["1"] == found.details["by_seed"]["1"]
    from choral.report.content import collect

    assert collect(folder).methods


def test_as_text_frame_csv_and_latex(found, tmp_path):
    assert " ± " in str(found)
    frame = found.to_frame()
    assert list(frame["method"]) == ["deep_ensemble", "single"]
    assert frame["nll_std"][0] == found.deviations["deep_ensemble"]["nll"]
    text = found.to_csv(tmp_path / "new" / "t.csv")
    assert (tmp_path / "new" / "t.csv").read_text() == text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert float(rows[1]["accuracy"]) == found.rows[1]["accuracy"]
    latex = found.to_latex(measures=["accuracy", "nll"])
    assert r"deep\_ensemble & " in latex
    assert r"$\pm$" in latex
    assert latex.count(r"\textbf") >= 2
    assert latex.startswith(r"\begin{tabular}{lrr}")
    with pytest.raises(InputError, match="no 'nlll'"):
        found.to_latex(measures=["nlll"])


def test_one_seed_has_no_deviations():
    one = choral.compare(build, part(), "single", budget=2, training=QUICK)
    assert one.deviations == one.differences == {}
    assert "±" not in str(one)
    assert "std" not in one.to_csv()


@pytest.mark.parametrize("seeds", [(0,), "012", (0, 0), (0, 1.5), 3.5])
def test_odd_seeds_are_refused(seeds):
    with pytest.raises(InputError, match="seed is"):
        compare(build, part(), "single", seed=seeds)
