"""Tables as people have them: each does what a person expects, and says what it did."""

import gzip
import json
import re

import numpy as np
import pandas as pd
import pytest
from tests.cli.shell import choral, refused

ROWS = 120


def houses():
    """A table of every kind of column, with blanks, an id, a date and free text; the price depends on size and town."""
    rng = np.random.default_rng(0)
    size, town = rng.normal(100, 20, ROWS).round(1), rng.choice(["north", "south", "west"], ROWS)
    price = 1000 * size + 20000 * (town == "north") + rng.normal(0, 2000, ROWS)
    return pd.DataFrame(
        {
            "houseID": [f"H-{i:04d}" for i in range(ROWS)],
            "size": size,
            "town": town,
            "built": [f"19{50 + i % 50}-0{1 + i % 9}-1{i % 10}" for i in range(ROWS)],
            "garden": rng.choice(["yes", "no"], ROWS),
            "state": rng.choice(["low", "medium", "high"], ROWS),
            "notes": [f"house {i} has a nice view of hill {i}" for i in range(ROWS)],
            "price": price.round(0),
        }
    )


def fit(path, out, *more, target="price", epochs=20):
    """The row of a quick fit, and what was said."""
    done = choral(
        "fit", path, "--target", target, "--method", "single", "--budget", epochs, "--out", out, "--json", *more
    )
    return json.loads(done.stdout), done.stderr


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The clean table, the run fitted on it and its row."""
    folder = tmp_path_factory.mktemp("plain")
    houses().to_csv(folder / "houses.csv", index=False)
    row, _ = fit(folder / "houses.csv", folder / "run")
    return folder, row


def test_how_each_column_was_read_is_said(plain):
    folder, row = plain
    kinds = {c["column"]: c["read_as"] for c in row["columns"]}
    assert kinds == {
        "houseID": "left out",
        "size": "number",
        "town": "category",
        "built": "date",
        "garden": "flag",
        "state": "category",
        "notes": "left out",
    }
    text = choral(
        "fit", folder / "houses.csv", "--target", "price", "--method", "single", "--budget", 20, "--out", folder / "run"
    )
    assert "free text" in text.stdout
    assert re.search(r"shown\W+next\W+to\W+predictions", text.stdout)  # the table may wrap it
    assert "read as a regression target" in text.stderr


def semicolons(frame, path):
    frame.assign(size=[f"{v:.1f}".replace(".", ",") for v in frame["size"]]).to_csv(path, sep=";", index=False)


def latin(frame, path):
    named = frame.rename(columns={"garden": "jardín"})
    named.to_csv(path, index=False, encoding="latin-1")


def currency(frame, path):
    frame.assign(size=[f"${v:,.1f}" for v in frame["size"]], price=[f"{p:,.0f} EUR" for p in frame["price"]]).to_csv(
        path, index=False
    )


def zipped(frame, path):
    path.write_bytes(gzip.compress(frame.to_csv(index=False).encode()))


MESSY = {
    "semicolon.csv": (semicolons, "';'"),
    "tabs.csv": (lambda f, p: f.to_csv(p, sep="\t", index=False), "a tab"),
    "bars.csv": (lambda f, p: f.to_csv(p, sep="|", index=False), "'|'"),
    "tabs.tsv": (lambda f, p: f.to_csv(p, sep="\t", index=False), ""),
    "LOUD.CSV": (lambda f, p: f.to_csv(p, index=False), ""),
    "packed.csv.gz": (zipped, ""),
    "marked.csv": (lambda f, p: f.to_csv(p, index=False, encoding="utf-8-sig"), ""),
    "wide.csv": (lambda f, p: f.to_csv(p, index=False, encoding="utf-16"), ""),
    "latin.csv": (latin, "cp1252"),
    "currency.csv": (currency, ""),
    "typed.parquet": (lambda f, p: f.assign(built=pd.to_datetime(f["built"])).to_parquet(p), ""),
    "indexed.csv": (lambda f, p: f.to_csv(p), ""),
    "windows.csv": (lambda f, p: f.to_csv(p, index=False, lineterminator="\r\n"), ""),
    "quoted.csv": (lambda f, p: f.to_csv(p, index=False, quoting=1), ""),
    "spaced.csv": (lambda f, p: p.write_text(f.to_csv(index=False).replace(",", " , ")), ""),
    "trailing.csv": (lambda f, p: p.write_text(f.to_csv(index=False).replace("\n", ",\n") + "\n\n"), ""),
}


@pytest.mark.parametrize("name", MESSY)
def test_messy_copies_of_a_table_give_the_same_model(name, plain, tmp_path):
    write, expected = MESSY[name]
    frame = houses()
    write(frame, tmp_path / name)
    row, said = fit(tmp_path / name, tmp_path / "run")
    assert expected in said
    assert "Traceback" not in said
    assert row["rmse"] == pytest.approx(plain[1]["rmse"], rel=0.02)
    kinds = [c["read_as"] for c in row["columns"] if not c["column"].startswith("Unnamed")]
    assert kinds == [c["read_as"] for c in plain[1]["columns"]]


def test_blanks_words_for_them_and_stray_words_are_read_as_missing(plain, tmp_path):
    frame = houses().astype({"size": object})
    for row, word in ((3, ""), (5, "?"), (9, "NA"), (11, "n/a"), (17, "n/a?")):
        frame.loc[row, "size"] = word
    frame.loc[[4, 6], "town"] = ""
    frame.loc[[8], "built"] = ""
    frame.loc[[2, 7], "price"] = np.nan
    frame.to_csv(tmp_path / "holes.csv", index=False)
    row, said = fit(tmp_path / "holes.csv", tmp_path / "run")
    assert "2 of 120 row(s) have no value of the target" in said
    kinds = {c["column"]: c for c in row["columns"]}
    assert (kinds["size"]["read_as"], kinds["size"]["inputs"]) == ("number", 2)
    assert "are not numbers" in kinds["size"]["detail"]
    assert row["rmse"] < 2 * plain[1]["rmse"]


def test_predictions_of_rows_with_blanks_strange_words_and_other_columns(plain, tmp_path):
    folder, _ = plain
    frame = houses().drop(columns=["price", "notes"]).head(12).astype({"size": object})
    frame = frame[[*frame.columns[::-1]]].assign(more=range(12))
    frame.loc[1, "size"] = ""
    frame.loc[2, "town"] = "atlantis"
    frame.loc[3, "garden"] = ""
    frame.loc[4, "built"] = "long ago"
    frame.loc[5, "size"] = "large"
    frame.to_csv(tmp_path / "new.csv", index=False)
    done = choral("predict", folder / "run", tmp_path / "new.csv", "--out", tmp_path / "p.csv")
    for words in ("'size' has 1 cell", "'atlantis'", "'garden'", "'long ago'", "'large'"):
        assert words in done.stderr or words == "'size' has 1 cell", words
    found = pd.read_csv(tmp_path / "p.csv")
    assert list(found.columns[:4]) == ["row", "houseID", "mean", "std"]
    assert list(found["houseID"]) == list(frame["houseID"])
    assert np.isfinite(found["mean"]).all()
    whole = houses().head(12)
    whole.to_csv(tmp_path / "whole.csv", index=False)
    choral("predict", folder / "run", tmp_path / "whole.csv", "--out", tmp_path / "w.csv")
    other = pd.read_csv(tmp_path / "w.csv")
    assert other["mean"][6:].tolist() == pytest.approx(found["mean"][6:].tolist(), rel=1e-5)


def customers(rows=240):
    """Customers as a company keeps them: an id, flags as 0 and 1, services in words, a number column with a few blanks among texts."""
    rng = np.random.default_rng(1)
    months = rng.integers(0, 72, rows)
    monthly = rng.uniform(18, 118, rows).round(2)
    contract = rng.choice(["Month-to-month", "One year", "Two year"], rows)
    left = rng.random(rows) < np.where(contract == "Month-to-month", 0.6, 0.1)
    return pd.DataFrame(
        {
            "customerID": [f"{rng.integers(1000, 9999)}-{''.join(rng.choice(list('ABCDEFGH'), 5))}" for _ in months],
            "SeniorCitizen": rng.integers(0, 2, rows),
            "Partner": rng.choice(["Yes", "No"], rows),
            "tenure": months,
            "OnlineSecurity": rng.choice(["Yes", "No", "No internet service"], rows),
            "Contract": contract,
            "MonthlyCharges": monthly,
            "TotalCharges": [" " if not m else f"{m * c:.2f}" for m, c in zip(months, monthly)],
            "Churn": np.where(left, "Yes", "No"),
        }
    )


def test_customers_from_fit_to_a_file_with_blanks_beside_their_ids(tmp_path):
    frame = customers()
    assert (frame["TotalCharges"] == " ").any()
    frame.to_csv(tmp_path / "churn.csv", index=False)
    done = choral(
        "fit",
        tmp_path / "churn.csv",
        "--target",
        "Churn",
        "--members",
        2,
        "--budget",
        20,
        "--out",
        tmp_path / "run",
        "--json",
    )
    kinds = {c["column"]: c["read_as"] for c in json.loads(done.stdout)["columns"]}
    assert kinds["customerID"] == "left out"
    assert kinds["TotalCharges"] == kinds["tenure"] == kinds["MonthlyCharges"] == kinds["SeniorCitizen"] == "number"
    assert kinds["Partner"] == "flag"
    assert kinds["Contract"] == kinds["OnlineSecurity"] == "category"
    new = customers().head(6).drop(columns="Churn").astype(object)[::-1]
    for row, column in enumerate(["SeniorCitizen", "Partner", "tenure", "OnlineSecurity", "MonthlyCharges"]):
        new.iloc[row, new.columns.get_loc(column)] = ""
    new.insert(0, "region", "north")
    new.loc[0, "Contract"] = "Three year"
    new[sorted(new.columns)].to_csv(tmp_path / "new.csv", index=False, sep=";")
    said = choral("predict", tmp_path / "run", tmp_path / "new.csv", "--out", tmp_path / "p.csv")
    assert "Three year" in said.stderr
    assert "'tenure'" in said.stderr
    assert "cell(s) without a value" in said.stderr
    table = pd.read_csv(tmp_path / "p.csv")
    assert list(table.columns[:3]) == ["row", "customerID", "prediction"]
    assert list(table["customerID"]) == list(new["customerID"])
    assert set(table["prediction"]) <= {"Yes", "No"}
    assert (table["p_No"] + table["p_Yes"]).to_numpy() == pytest.approx(np.ones(6), abs=1e-5)


def test_a_table_with_everything_wrong_at_once(plain, tmp_path):
    frame = houses().astype(object)
    frame["size"] = [f"{v:,.1f} €".replace(".", ",") for v in frame["size"]]
    frame["built"] = [f"{d[8:]}.{d[5:7]}.{d[:4]}" for d in frame["built"]]
    frame.loc[[1, 30], "size"] = ["?", " "]
    frame.loc[[5], "town"] = "n/a"
    frame.loc[[7, 9], "price"] = ""
    frame["empty"], frame["same"] = "", "x"
    frame = frame[["same", "price", *sorted(set(frame.columns) - {"same", "price"}, reverse=True)]]
    frame.to_csv(tmp_path / "m\u00e4rz.csv", index=False, sep=";", encoding="cp1252", lineterminator="\r\n")
    row, said = fit(tmp_path / "m\u00e4rz.csv", tmp_path / "run")
    assert "2 of 120 row(s) have no value of the target" in said
    kinds = {c["column"]: c["read_as"] for c in row["columns"]}
    expected = {c["column"]: c["read_as"] for c in plain[1]["columns"]}
    assert kinds == expected | {"empty": "left out", "same": "left out"}
    assert row["rmse"] < 2 * plain[1]["rmse"]
    plain_rows = houses().head(20)[["town", "size", "garden", "state", "built", "notes"]]
    plain_rows.to_csv(tmp_path / "new.csv", index=False)
    done = choral("predict", tmp_path / "run", tmp_path / "new.csv", "--out", tmp_path / "p.csv")
    assert "built" in done.stderr  # dates were day first in training
    assert len(pd.read_csv(tmp_path / "p.csv")) == 20


def test_columns_beside_predictions(plain, tmp_path):
    folder, _ = plain
    frame = houses().head(5).assign(mean=7)
    frame.to_csv(tmp_path / "new.csv", index=False)
    predict = ["predict", folder / "run", tmp_path / "new.csv", "--json"]
    rows = json.loads(choral(*predict, "--id", "town").stdout)
    assert list(rows[0])[:3] == ["row", "houseID", "town"]
    done = choral(*predict, "--keep-columns")
    rows = json.loads(done.stdout)
    assert "'input_mean'" in done.stderr
    assert rows[0]["input_mean"] == 7
    assert rows[0]["mean"] > 1000
    assert {"size", "notes", "price", "std", "low_95", "high_95"} <= rows[0].keys()
    frame.assign(input_mean=8, row=10).to_csv(tmp_path / "new.csv", index=False)
    row = json.loads(choral(*predict, "--keep-columns").stdout)[0]
    assert [row[n] for n in ("input_mean", "input_input_mean", "input_row")] == [8, 7, 10]
    assert "Did you mean 'town'?" in refused(*predict, "--id", "towns")


def test_drop_id_and_order(tmp_path):
    houses().to_csv(tmp_path / "h.csv", index=False)
    more = ["--drop", "built", "--drop", "garden", "--id", "state", "--order", "town=south<west<north"]
    row, _ = fit(tmp_path / "h.csv", tmp_path / "run", *more)
    kinds = {c["column"]: c["read_as"] for c in row["columns"]}
    assert (kinds["built"], kinds["garden"], kinds["state"], kinds["town"]) == ("left out",) * 3 + ("ordered",)
    never = ["fit", tmp_path / "h.csv", "--target", "price", "--out", tmp_path / "never"]
    assert "COLUMN=first<second" in refused(*never, "--order", "town")
    assert "no column 'tow'" in refused(*never, "--order", "tow=a<b")
    assert "does not name" in refused(*never, "--order", "town=a<b")
    assert "is the target" in refused(*never, "--drop", "price")
    assert "Did you mean 'town'?" in refused(*never, "--group", "towns")
    assert "give one of them" in refused(*never, "--group", "town", "--time", "built")
    assert "neither a date nor a number" in refused(*never, "--time", "town")
    assert not (tmp_path / "never").exists()


def test_groups_and_times_are_held_out_honestly(tmp_path):
    frame = houses().assign(street=[f"s{i // 10}" for i in range(ROWS)])
    frame.to_csv(tmp_path / "h.csv", index=False)
    from choral.tables.problems import Columns, load_problem

    def problem(**how):
        return load_problem(str(tmp_path / "h.csv"), columns=Columns(target="price", **how))

    grouped, timed = problem(group="street"), problem(time="built")
    assert len(grouped.x_test) % 10 == 0
    assert {c.name for c in grouped.table.columns if not c.width} >= {"street"}
    assert 20 <= len(timed.x_test) <= 40
    when = next(i for i, n in enumerate(_features(timed.table)) if n == "built")
    assert timed.x_train[:, when].max() < timed.x_test[:, when].min()
    for whole, names in ((grouped, grouped.groups), (timed, timed.times)):
        kept, (x, y) = whole.validating(0.3)
        where = {row.tobytes(): name for row, name in zip(whole.x_train, names)}
        apart = ({where[row.tobytes()] for row in rows} for rows in (kept.x_train, x))
        assert not set.intersection(*apart)  # no street, and no day, is on both sides
        assert len(kept.x_train) + len(x) == len(whole.x_train)
        assert len(y) == len(x) >= 10
    assert timed.x_train[:, when].max() == timed.validating(0.3)[1][0][:, when].max()
    assert problem().validating(0.3)[1] == 0.3
    fit(tmp_path / "h.csv", tmp_path / "run", "--group", "street", "--validation", "0.3", epochs=3)


def _features(table):
    return [c.name for c in table.columns for _ in range(c.width)]


def test_evaluating_on_rows_that_were_trained_on_is_said(plain, tmp_path):
    folder, row = plain
    done = choral("evaluate", folder / "run", folder / "houses.csv", "--json")
    assert "90 of 120 rows" in done.stderr
    assert "--held-out" in done.stderr
    alone = json.loads(choral("evaluate", folder / "run", folder / "houses.csv", "--held-out", "--json").stdout)
    assert alone["rmse"] == pytest.approx(row["rmse"], rel=1e-5)
    fresh = houses().assign(size=lambda f: f["size"] + 0.01)
    fresh.to_csv(tmp_path / "fresh.csv", index=False)
    assert "trained on" not in choral("evaluate", folder / "run", tmp_path / "fresh.csv", "--json").stderr
    few = pd.concat([fresh, houses().head(4)])
    few.to_csv(tmp_path / "few.csv", index=False)
    assert "of 124 rows" in choral("evaluate", folder / "run", tmp_path / "few.csv", "--json").stderr
    houses().head(30).iloc[:1].to_csv(tmp_path / "one.csv", index=False)
    choral("evaluate", folder / "run", tmp_path / "one.csv", "--json")


def test_unbalanced_classes_are_not_praised(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=300), "t": np.where(np.arange(300) % 30 == 0, "rare", "usual")})
    frame.to_csv(tmp_path / "t.csv", index=False)
    row, said = fit(tmp_path / "t.csv", tmp_path / "run", target="t", epochs=2)
    assert row["accuracy"] == row["majority_accuracy"]
    assert "no better than always predicting 'usual'" in said
    assert row["balanced_accuracy"] == 0.5
    assert row["classes"]["recall"] == [0.0, 1.0]
    done = choral("evaluate", tmp_path / "run", tmp_path / "t.csv")
    assert "balanced_accuracy" in done.stdout
    assert "said rare" in done.stdout
    call = ["fit", tmp_path / "t.csv", "--target", "t", "--class-weight", "balanced", "--budget", 4, "--members", 2]
    weighed = choral(*call, "--out", tmp_path / "weighed", "--json")
    assert "rows are weighted by class: rare 18.75, usual 0.5137" in weighed.stderr
    for target, weights, words in (("t", "rear=2", "the classes are rare, usual"), ("a", "balanced", "is a number")):
        wrong = ["fit", tmp_path / "t.csv", "--target", target, "--class-weight", weights, "--out", tmp_path / "no"]
        assert words in choral(*wrong, expect=2).stderr


def test_labels_that_cannot_be_are_refused(plain, tmp_path):
    folder, _ = plain
    never = ["fit", folder / "houses.csv", "--out", tmp_path / "never", "--target"]
    assert "too many to be classes" in refused(*never, "price", "--task", "classification")
    assert "too many to be classes" in refused(*never, "houseID")
    assert "which is not a number" in refused(*never, "town", "--task", "regression")
    assert "'guess' is not one of" in refused(*never, "price", "--task", "guess")
    frame = houses()
    frame.loc[3, "price"] = 1e300
    frame.to_csv(tmp_path / "wild.csv", index=False)
    assert "line 5" in refused("fit", tmp_path / "wild.csv", "--target", "price", "--out", tmp_path / "never")
    frame = houses()
    frame.loc[3, "size"] = 1e300
    frame.to_csv(tmp_path / "wild.csv", index=False)
    assert "'size' holds 1e+300 in line 5" in refused(
        "fit", tmp_path / "wild.csv", "--target", "price", "--out", tmp_path / "never"
    )
    assert "'size' holds 1e+300 in line 5" in refused("predict", folder / "run", tmp_path / "wild.csv")
    row, _ = fit(folder / "houses.csv", tmp_path / "t", "--drop", "price", target="town", epochs=1)
    houses().assign(town="atlantis").to_csv(tmp_path / "other.csv", index=False)
    assert "a class the training data did not have" in refused("evaluate", tmp_path / "t", tmp_path / "other.csv")
    assert row["task"] == "classification"
    assert not (tmp_path / "never").exists()


def test_files_of_text_carry_predictions_as_exactly_as_the_others(tmp_path):
    rng = np.random.default_rng(0)
    size = rng.normal(size=60)
    frame = pd.DataFrame({"size": size, "sold": (1.7e9 + 1e5 * size + rng.normal(0, 100, 60)).round(0)})
    frame.to_csv(tmp_path / "t.csv", index=False)
    fit(tmp_path / "t.csv", tmp_path / "run", target="sold", epochs=3)
    for name in ("p.csv", "p.tsv", "p.parquet"):
        choral("predict", tmp_path / "run", tmp_path / "t.csv", "--out", tmp_path / name)
    found = {"p.csv": pd.read_csv(tmp_path / "p.csv", dtype=str), "p.tsv": pd.read_table(tmp_path / "p.tsv", dtype=str)}
    found = {name: text.map(float) for name, text in found.items()} | {
        "p.parquet": pd.read_parquet(tmp_path / "p.parquet")
    }
    for name in ("mean", "std", "low_95", "high_95"):
        assert found["p.csv"][name].tolist() == found["p.tsv"][name].tolist() == found["p.parquet"][name].tolist()
    assert len(set(found["p.csv"]["mean"])) > 50
    assert (found["p.csv"]["mean"] % 64 != 0).any()  # not cut to float32


def test_messages_name_what_the_user_knows(plain, tmp_path):
    folder, _ = plain
    table = folder / "houses.csv"
    never = ["fit", table, "--target", "price", "--out", tmp_path / "never", "--json"]
    said = choral(*never, "--cv", 500, "--budget", 3, expect=2).stderr
    assert "3 epochs in all are too few for 500 members" in said  # one for each fold
    said = choral(*never, "--cv", 500, expect=2).stderr
    assert "folds is 500 for 90 points" in said
    frame = houses()
    frame["size"] += 1.0
    pd.concat([frame, frame]).to_csv(tmp_path / "other.csv", index=False)
    said = choral(
        "fit", tmp_path / "other.csv", "--target", "price", "--out", tmp_path / "old", "--budget", 4, "--members", 2
    ).stderr
    assert "held-out rows are equal to a training row" in said
    frame.to_csv(tmp_path / "other.csv", index=False)
    said = choral(
        "fit",
        tmp_path / "other.csv",
        "--target",
        "price",
        "--out",
        tmp_path / "old",
        "--budget",
        4,
        "--members",
        2,
        expect=2,
    ).stderr
    assert "old holds another run: " in said
    assert "the training rows were changed" in said
    assert len(said.splitlines()[-1]) < 500
    assert "names a file; a report is a folder" in refused("report", folder / "run", "--out", tmp_path / "a.csv")
    assert not (tmp_path / "a.csv").exists()


def test_a_class_that_was_held_out_whole_is_named(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=80), "t": ["x", "y"] * 40})
    from choral.data.splitting import split

    frame.loc[int(split(80, 0.25, 0)[1][0]), "t"] = "zebra"
    frame.to_csv(tmp_path / "t.csv", index=False)
    _, said = fit(tmp_path / "t.csv", tmp_path / "run", target="t", epochs=2)
    assert "the class 'zebra', which no training row had" in said


def test_the_unit_of_a_target_is_said_when_it_is_fitted_and_when_it_is_predicted(tmp_path):
    frame = houses().assign(price=pd.to_timedelta(houses()["price"].round(-3), unit="s"))
    frame.to_parquet(tmp_path / "t.parquet")
    asked = ("--target", "price", "--method", "single", "--budget", 2, "--out", tmp_path / "run")
    said = choral("fit", tmp_path / "t.parquet", *asked).stderr
    assert "'price' is read as a regression target (it contains" in said
    assert "different numbers, in seconds)." in said
    assert "task regression: LearnedGaussian, targets standardized" in said
    assert "), 'price' in seconds." in said
    done = choral("predict", tmp_path / "run", tmp_path / "t.parquet", "--out", tmp_path / "p.csv")
    assert "'price' is predicted as in the training data: in seconds." in done.stderr
