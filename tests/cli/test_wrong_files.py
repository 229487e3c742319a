"""Files that are not what a command needs: one sentence, exit 2, and nothing lost."""

import datetime
import json
import os
import zipfile

import numpy as np
import pandas as pd
import pytest
from tests.cli.shell import choral, refused, run

import choral as library
from choral.recipes import make

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(40, 3)).astype(np.float32), RNG.integers(0, 2, 40)
GOOD = {"x_train": X[:30], "y_train": Y[:30], "x_test": X[30:], "y_test": Y[30:]}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with an ensemble of arrays, one of a table, and the table."""
    folder = tmp_path_factory.mktemp("border")
    np.savez(folder / "good.npz", **GOOD)
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "t": np.where(Y > 0, "yes", "no")})
    frame.to_csv(folder / "t.csv", index=False)
    short = ["--method", "single", "--budget", 2, "--json"]
    choral("fit", folder / "good.npz", *short, "--out", folder / "arrays")
    choral("fit", folder / "t.csv", "--target", "t", *short, "--out", folder / "table")
    return folder


NPZ = {
    "no test rows": ({"x_test": X[:0], "y_test": Y[:0]}, "x_test, y_test: x has 0 rows"),
    "no training rows": ({"x_train": X[:0], "y_train": Y[:0]}, "x_train, y_train: x has 0 rows"),
    "other widths": ({"x_test": X[30:, :2]}, "x_train has rows of shape (3,) and x_test of (2,)"),
    "one axis": ({"x_train": X[:30, 0], "x_test": X[30:, 0]}, "the inputs have shape (30,)"),
    "a scalar": ({"x_train": np.float32(3)}, "x_train, y_train: x is a single number"),
    "a scalar target": ({"y_train": np.int64(3)}, "y has shape ()"),
    "other counts": ({"y_train": Y[:29]}, "x has 30 rows and y has shape (29,)"),
    "other test counts": ({"y_test": Y[:3]}, "x has 10 rows and y has shape (3,)"),
    "negative labels": ({"y_train": Y[:30] - 1}, "-1"),
    "words": ({"x_train": np.full((30, 3), "a")}, "x_train, y_train: x holds values of type <U1"),
    "complex numbers": ({"x_train": X[:30] + 0j}, "complex"),
    "beyond float32": ({"x_train": X[:30].astype(np.float64) * 1e300}, "beyond the reach of the network's float32"),
    "beyond float32 in tests": ({"x_test": X[30:].astype(np.float64) * 1e300}, "x_test"),
    "not numbers": (
        {"x_test": np.full((10, 3), np.nan)},
        "x_test, y_test: x holds NaN or infinite values in 10 row(s)",
    ),
    "targets not numbers": ({"y_train": np.full(30, np.nan), "y_test": np.ones(10)}, "y_train"),
    "mixed targets": ({"y_test": Y[30:].astype(np.float64)}, "y_train holds"),
}


@pytest.mark.parametrize("case", NPZ)
def test_arrays_that_cannot_be_learned_from(case, tmp_path):
    change, expected = NPZ[case]
    np.savez(tmp_path / "d.npz", **(GOOD | change))
    assert expected in refused("fit", tmp_path / "d.npz", "--out", tmp_path / "never")
    assert not (tmp_path / "never").exists()


def test_a_flag_for_targets_and_one_column_of_targets_are_read(tmp_path):
    np.savez(tmp_path / "d.npz", **GOOD | {"y_train": Y[:30] > 0, "y_test": Y[30:] > 0})
    row = json.loads(
        choral("fit", tmp_path / "d.npz", "--budget", 1, "--method", "single", "--json", "--out", tmp_path / "r").stdout
    )
    assert row["task"] == "classification"


def broken_files(folder):
    pickled = folder / "pickled.npz"
    np.savez(pickled, x=np.array([{"a": 1}, None], dtype=object))
    np.save(folder / "array.npy", X)
    os.replace(folder / "array.npy", folder / "array.npz")
    (folder / "empty.npz").write_bytes(b"")
    (folder / "zip.npz").write_bytes(b"PK\x03\x04 and no more")
    with zipfile.ZipFile(folder / "text.npz", "w") as held:
        held.writestr("x.npy", "not an array")
    (folder / "folder.npz").mkdir()
    (folder / "empty.csv").write_bytes(b"")
    (folder / "header.csv").write_text("a,b,t\n")
    (folder / "one.csv").write_text("a,b,t\n1,2,3\n")
    (folder / "two.csv").write_text("a,b,t\n1,2,3\n4,5,6\n")
    (folder / "zeros.csv").write_bytes(b"\x00" * 100)
    (folder / "ragged.csv").write_text("a,b,t\n1,2,3\n4,5,6,7,8\n")
    (folder / "quote.csv").write_text('a,b,t\n1,2,"3\n4,5,6\n')
    (folder / "no.parquet").write_bytes(b"PAR1 nothing PAR1")
    (folder / "folder.csv").mkdir()
    return folder


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    return broken_files(tmp_path_factory.mktemp("broken"))


BROKEN = {
    "pickled.npz": "never unpickles",
    "array.npz": "numpy.savez",
    "empty.npz": "empty",
    "zip.npz": "cannot be read as an .npz",
    "text.npz": "cannot be read as an .npz",
    "folder.npz": "folder.npz",
    "empty.csv": "empty",
    "header.csv": "no rows",
    "one.csv": "row",
    "two.csv": "row",
    "zeros.csv": "zeros.csv",
    "ragged.csv": "ragged.csv",
    "quote.csv": "quote.csv",
    "no.parquet": "no.parquet",
    "folder.csv": "folder",
    "absent.csv": "does not exist",
    "absent.npz": "No such file",
    "file.doc": ".csv",
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("command", ["fit", "compare", "predict", "evaluate"])
def test_broken_files_are_one_sentence(command, name, broken, place, tmp_path):
    file = broken / name
    target = [] if file.suffix == ".npz" else ["--target", "t"]
    words = {
        "fit": ["fit", file, *target, "--out", tmp_path / "never"],
        "compare": ["compare", file, *target, "--out", tmp_path / "never"],
        "predict": ["predict", place / ("arrays" if file.suffix == ".npz" else "table"), file],
        "evaluate": ["evaluate", place / ("arrays" if file.suffix == ".npz" else "table"), file],
    }[command]
    if name in ("one.csv", "two.csv", "ragged.csv", "quote.csv") and command in ("predict", "evaluate"):
        done = run(*words)
        assert done.code in (0, 2)
        assert "Traceback" not in done.stderr
        return
    text = refused(*words)
    assert BROKEN[name] in text, text
    assert "allow_pickle" not in text
    assert not (tmp_path / "never").exists()


def test_rows_of_another_shape_are_one_sentence(place, tmp_path):
    np.savez(tmp_path / "narrow.npz", x=X[:, :2])
    np.savez(tmp_path / "scalar.npz", x=np.float32(1))
    np.savez(tmp_path / "none.npz", x=X[:0])
    np.savez(tmp_path / "words.npz", x=np.full((3, 3), "a"))
    np.savez(tmp_path / "nan.npz", x=X * np.nan)
    for name in ("narrow", "scalar", "none", "words", "nan"):
        text = refused("predict", place / "arrays", tmp_path / f"{name}.npz")
        assert f"{name}.npz" in text, text
    np.savez(tmp_path / "narrow.npz", **GOOD | {"x_train": X[:30, :2], "x_test": X[30:, :2]})
    assert "(1, 2)" in refused("evaluate", place / "arrays", tmp_path / "narrow.npz")
    assert "digits" in refused("evaluate", place / "arrays", "digits")
    assert "diabetes" in refused("evaluate", place / "arrays", "diabetes")
    assert "wine" in refused("evaluate", place / "arrays", place / "good.npz", "--ood", "wine")


def test_text_where_training_had_numbers_and_markup_in_a_path(place, tmp_path):
    folder = tmp_path / "[/b]"
    folder.mkdir(parents=True)
    (folder / "t.csv").write_text("a,b,t\nword,2,yes\nwords,2,no\n")
    done = choral("evaluate", place / "table", folder / "t.csv")
    assert "'word'" in done.stderr
    (folder / "t.csv").write_text("a,b,t\n1,2,yes\n3,2,no\n")
    assert "[/b]/t.csv: 2 rows" in choral("evaluate", place / "table", folder / "t.csv").stdout


@pytest.mark.parametrize("text", ["{}", "[1]", "", "{", "null", '{"identity": []}'])
def test_a_damaged_plan_is_one_sentence(text, place, tmp_path):
    run_dir = tmp_path / "run"
    choral("fit", place / "good.npz", "--method", "single", "--budget", 1, "--out", run_dir, "--json")
    (run_dir / "plan.json").write_text(text)
    for words in (["predict", run_dir, place / "good.npz"], ["evaluate", run_dir, place / "good.npz"]):
        assert "plan.json" in choral(*words, expect=2).stderr.splitlines()[-1]
    done = choral("fit", place / "good.npz", "--method", "single", "--budget", 1, "--out", run_dir, expect=2)
    assert "plan.json" in done.stderr.splitlines()[-1]


def test_places_that_cannot_be_written(place, tmp_path):
    fit = ["fit", place / "good.npz", "--method", "single", "--budget", 1, "--out"]
    assert "t.csv" in refused(*fit, place / "t.csv" / "run")
    assert "t.csv" in refused(*fit, place / "t.csv")
    predict = ["predict", place / "arrays", place / "good.npz", "--out"]
    choral(*predict, tmp_path / "new" / "p.csv")
    assert len(pd.read_csv(tmp_path / "new" / "p.csv")) == 10
    (tmp_path / "p.csv").mkdir()
    assert "a folder" in refused(*predict, tmp_path / "p.csv")
    assert "/dev/full" in refused(*predict, "/dev/full/p.csv")
    assert "t.csv" in refused("report", place / "arrays", "--out", place / "t.csv")


def test_a_run_on_a_read_only_disk_is_one_sentence(place, tmp_path, monkeypatch):
    run_dir = tmp_path / "run"
    fit = ["fit", place / "good.npz", "--method", "single", "--budget", 1, "--out", run_dir]
    choral(*fit, "--json")

    def refuse(*arguments, **options):
        raise OSError(30, "Read-only file system", str(arguments[0]))

    monkeypatch.setattr(os, "open", refuse)
    text = refused(*fit)
    assert "Read-only file system" in text or "cannot be written" in text


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".json"])
def test_a_full_disk_keeps_the_old_predictions(ending, place, tmp_path, monkeypatch):
    out = tmp_path / f"p{ending}"
    predict = ["predict", place / "arrays", place / "good.npz", "--out", out]
    choral(*predict)
    before = out.read_bytes()
    kept = os.fsync

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "No space left on device" in refused(*predict)
    monkeypatch.setattr(os, "fsync", kept)
    assert out.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == [out.name]


def test_predictions_end_in_what_they_say(place, tmp_path):
    predict = ["predict", place / "arrays", place / "good.npz", "--out"]
    choral(*predict, tmp_path / "p.csv")
    choral(*predict, tmp_path / "p.parquet")
    choral(*predict, tmp_path / "p.tsv")
    choral(*predict, tmp_path / "p.json")
    choral(*predict, tmp_path / "p.csv.gz")
    frames = [
        pd.read_csv(tmp_path / "p.csv"),
        pd.read_parquet(tmp_path / "p.parquet"),
        pd.read_csv(tmp_path / "p.tsv", sep="\t"),
        pd.DataFrame(json.loads((tmp_path / "p.json").read_text())),
        pd.read_csv(tmp_path / "p.csv.gz"),
    ]
    assert all(list(f.columns) == list(frames[0].columns) for f in frames)
    assert all(np.allclose(f["confidence"], frames[0]["confidence"], rtol=1e-4) for f in frames)
    for name in ("p.doc", "p", "p.npz", "p.csv.bz2"):
        assert ".csv" in refused(*predict, tmp_path / name)
        assert not (tmp_path / name).exists()
    try:
        import openpyxl  # noqa: F401  # whether it is there is the question
    except ImportError:
        assert "openpyxl" in refused(*predict, tmp_path / "p.xlsx")
        assert not (tmp_path / "p.xlsx").exists()


def test_json_and_out_together_both_work(place, tmp_path):
    done = choral("predict", place / "arrays", place / "good.npz", "--out", tmp_path / "p.csv", "--json")
    rows = json.loads(done.stdout)
    assert len(pd.read_csv(tmp_path / "p.csv")) == len(rows) == 10


def test_an_input_is_never_overwritten(place, tmp_path):
    table = tmp_path / "new.csv"
    table.write_text("a,b\n1,2\n")
    (tmp_path / "link.csv").symlink_to(table)
    os.link(table, tmp_path / "hard.csv")
    for out in (table, tmp_path / "." / "new.csv", tmp_path / "link.csv", tmp_path / "hard.csv"):
        assert "the input" in refused("predict", place / "table", table, "--out", out)
    assert table.read_text() == "a,b\n1,2\n"
    saved = place / "arrays" / "ensemble.choral"
    copy = tmp_path / "e.csv"
    copy.write_bytes(saved.read_bytes())
    assert "the ensemble" in refused("predict", copy, place / "good.npz", "--out", copy)
    assert copy.read_bytes() == saved.read_bytes()


def test_dates_of_parquet_are_read(tmp_path):
    days = [datetime.date(2026, 1, 1) + datetime.timedelta(days=i) for i in range(40)]
    frame = pd.DataFrame({"day": days, "at": pd.to_datetime(days), "t": np.arange(40.0) + RNG.normal(size=40)})
    frame.to_parquet(tmp_path / "d.parquet")
    fit = ["fit", tmp_path / "d.parquet", "--target", "t", "--method", "single", "--budget", 2, "--out", tmp_path / "r"]
    kinds = {c["column"]: c["read_as"] for c in json.loads(choral(*fit, "--json").stdout)["columns"]}
    assert kinds["day"].startswith("date")
    assert kinds["at"].startswith("date")


def test_a_changed_table_is_refused(place, tmp_path):
    run_dir = tmp_path / "run"
    choral("fit", place / "t.csv", "--target", "t", "--method", "single", "--budget", 1, "--out", run_dir, "--json")
    text = (run_dir / "plan.json").read_text()
    assert '"mean": ' in text
    (run_dir / "plan.json").write_text(text.replace('"mean": ', '"mean": 1'))
    assert "plan.json" in refused("predict", run_dir, place / "t.csv")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_flipped_byte_is_refused(share, place, tmp_path):
    for saved in (place / "arrays" / "ensemble.choral",):
        data = bytearray(saved.read_bytes())
        data[int(share * len(data))] ^= 1
        (tmp_path / "e.choral").write_bytes(data)
        assert "e.choral" in refused("predict", tmp_path / "e.choral", place / "good.npz")


def test_a_table_with_an_ensemble_of_arrays_and_the_other_way(place):
    assert "fitted on arrays" in refused("predict", place / "arrays", place / "t.csv")
    assert "fitted on arrays" in refused("evaluate", place / "arrays", place / "t.csv")
    assert "fitted on a table" in refused("predict", place / "table", place / "good.npz")
    assert "fitted on a table" in refused("evaluate", place / "table", place / "good.npz")


def test_a_network_of_the_user_s_own_is_one_sentence(tmp_path, place):
    from torch import nn

    library.fit(lambda: nn.Linear(3, 2), (X, Y), make("single", budget=1), run_dir=tmp_path / "own")
    assert "build" in refused("predict", tmp_path / "own", place / "good.npz")


def test_predictions_never_go_over_a_file_of_the_run(tmp_path):
    rows = [f"{i},{2.5 * i % 7}" for i in range(30)]
    table = tmp_path / "t.csv"
    table.write_text("\n".join(["a,y", *rows]))
    run_dir = tmp_path / "run"
    choral("fit", table, "--target", "y", "--method", "single", "--budget", 2, "--out", run_dir)
    held = {p: p.read_bytes() for p in run_dir.rglob("*") if p.is_file()}
    (tmp_path / "link.json").symlink_to(run_dir / "plan.json")
    for saved in (run_dir, run_dir / "ensemble.choral"):
        for out in ("plan.json", "report.json", "members/a.csv", "../run/results.json", "../link.json"):
            assert "belongs to the run" in refused("predict", saved, table, "--out", run_dir / out)
    assert {p: p.read_bytes() for p in run_dir.rglob("*") if p.is_file()} == held
    choral("predict", run_dir, table, "--out", run_dir / "predictions.csv")


@pytest.mark.parametrize("name", ["likelihood.json", "evaluation.json", "results.json", "log.jsonl", "ensemble.choral"])
@pytest.mark.parametrize("text", ["mine", '{"mine": 1}'])
def test_a_file_of_the_users_stays_where_a_new_run_would_write(name, text, tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("\n".join(["a,y", *(f"{i},{2.5 * i % 7}" for i in range(30))]))
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / name).write_text(text)
    words = ("fit", table, "--target", "y", "--method", "single", "--budget", 2, "--out", run_dir)
    told = choral(*words, expect=2).stderr
    assert f"{name} but no plan.json that choral wrote" in told
    assert (run_dir / name).read_text() == text
    assert not (run_dir / "plan.json").exists()
