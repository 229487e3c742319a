"""choral evaluate and choral report."""

import json
import sys

import numpy as np
import pytest
from tests.cli.test_app import choral, sentence


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fit") / "run"
    choral("fit", "digits", "--method", "snapshot", "--budget", 5, "--members", 5, "--out", folder, "--json")
    return folder


def test_evaluate_measures_strangers_and_corruptions(run, tmp_path):
    draw = np.random.default_rng(0)
    x = draw.random((50, 64)).astype(np.float32)
    np.savez(tmp_path / "noise.npz", x_train=x, y_train=np.zeros(50, int), x_test=x, y_test=np.zeros(50, int))
    call = ["evaluate", run / "ensemble.choral", "digits", "--ood", tmp_path / "noise.npz", "--corruptions", "fog,snow"]
    found = json.loads(choral(*call, "--json").stdout)
    scores = found["evaluation"]["ood"]["scores"]
    assert set(scores) == {"max_probability", "entropy", "mutual_information", "variation_ratio", "max_logit"}
    assert found["ood_auroc"] == scores["entropy"]["auroc"] > 0.6
    assert set(found["evaluation"]["corruptions"]["table"]) == {"fog", "snow"}
    assert found["accuracy"] > found["c_accuracy"]
    text = choral(*call).stdout
    assert "fpr95_out" in text
    assert "snow" in text


def test_evaluate_gives_the_row_fit_gave_on_the_same_test_rows(tmp_path):
    fitted = json.loads(choral("fit", "wine", "--budget", 4, "--out", tmp_path / "run", "--json").stdout)
    again = json.loads(choral("evaluate", tmp_path / "run", "wine", "--json").stdout)
    for name in ("accuracy", "nll", "ece", "parameters", "train_flops"):
        assert again[name] == fitted[name]


def test_report_of_a_run_and_of_a_comparison(run, tmp_path):
    said = json.loads(choral("report", run, "--out", tmp_path / "shown", "--json").stdout)
    text = (tmp_path / "shown" / "report.html").read_text()
    assert said["report"] == str(tmp_path / "shown" / "report.html")
    assert '<section id="corruption">' in text
    done = choral("compare", "wine", "--methods", "single,bagged", "--budget", 4, "--out", tmp_path / "c", "-q")
    assert f"the report is {tmp_path / 'c' / 'report.html'}" in " ".join(done.stdout.split())
    assert "bagged" in (tmp_path / "c" / "report.html").read_text()


def test_keep_adds_to_the_folder_what_report_shows(run, tmp_path):
    (run / "evaluation.json").unlink()
    assert "Nothing has been evaluated" in _page(run, tmp_path / "before")
    choral("evaluate", run, "digits", "--keep")
    assert "Nothing has been evaluated" not in _page(run, tmp_path / "after")


def _page(run, out):
    choral("report", run, "--out", out)
    return (out / "report.html").read_text()


def test_without_matplotlib_a_comparison_still_ends_well(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = choral("compare", "wine", "--methods", "single", "--budget", 2, "--out", tmp_path / "c", "-q")
    assert "no report was written: this needs matplotlib" in done.stderr
    assert not (tmp_path / "c" / "report.html").exists()


def test_mistakes_are_answered_with_one_sentence(run, tmp_path):
    assert "the networks cannot read x" in sentence(choral("evaluate", run, "wine", expect=2))
    assert "corruption 'fogg' is not known" in sentence(
        choral("evaluate", run, "digits", "--corruptions", "fogg", expect=2)
    )
    saved = run / "ensemble.choral"
    assert "--keep writes into a run folder" in sentence(choral("evaluate", saved, "digits", "--keep", expect=2))
    assert "holds no run" in sentence(choral("report", tmp_path, expect=2))


def test_importance_is_shown_kept_and_drawn(tmp_path):
    draw = np.random.default_rng(0)
    kind = draw.choice(["a", "b", "c"], 160)
    bought = {f"C{i:03d}": "yes" if (k == "b") != (draw.random() < 0.1) else "no" for i, k in enumerate(kind)}
    lines = [f"{c},{k},{draw.normal():.3f},{bought[c]}" for c, k in zip(bought, kind)]
    (tmp_path / "t.csv").write_text("customer_id,kind,noise,bought\n" + "\n".join(lines) + "\n")
    choral("fit", tmp_path / "t.csv", "--target", "bought", "--budget", 30, "--out", tmp_path / "run", "--json")
    (by_fit,) = json.loads((tmp_path / "run" / "evaluation.json").read_text())["evaluation"].values()
    call = ["evaluate", tmp_path / "run", tmp_path / "t.csv", "--held-out", "--importance"]
    found = json.loads(choral(*call, "--json", "--keep").stdout)["evaluation"]
    assert [r["column"] for r in found["importance"]["columns"]] == ["kind", "noise"]
    assert found["importance"]["dependence"][0]["values"] == ["a", "b", "c"]
    assert len(found["classes"]["average_precision"]) == 2
    assert len(found["worst"]) > 2
    assert found["worst"] == by_fit["worst"]
    assert all(bought[row["row"]] == row["target"] for row in found["worst"])
    text = choral(*call).stdout
    assert "nll worse by" in text
    assert "average_precision" in text
    page = _page(tmp_path / "run", tmp_path / "page")
    assert "test rows of t.csv" in page
    assert '<section id="importance">' in page
    assert '<section id="classes">' in page


def test_importance_of_images_is_refused(tmp_path):
    x, other = np.random.default_rng(0).random((2, 40, 1, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "images.npz", x_train=x, y_train=np.arange(40) % 2, x_test=other, y_test=np.arange(40) % 2)
    choral("fit", tmp_path / "images.npz", "--method", "single", "--budget", 1, "--out", tmp_path / "run", "--json")
    np.savez(tmp_path / "new.npz", x=other, y=np.arange(40) % 2)
    refused = choral("evaluate", tmp_path / "run", tmp_path / "new.npz", "--importance", expect=2)
    assert "x has shape (40, 1, 8, 8), whose columns have no meaning" in sentence(refused)
