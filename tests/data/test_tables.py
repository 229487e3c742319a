import json
import re

import numpy as np
import pandas as pd
import pytest
import torch

from choral.base.errors import InputError, RunError
from choral.data.calendar import DateColumn
from choral.data.cells import Cells
from choral.data.columns import LeftOutColumn, NumberColumn, Scale
from choral.data.problems import load_problem
from choral.data.sheets import read_table
from choral.data.splitting import split, split_by_time
from choral.data.tables import Table, learn_table, table_from, with_target
from choral.data.targets import guess_task, labels
from choral.data.words import CategoryColumn, FlagColumn, OrderedColumn
from choral.objectives.likelihoods.regression import TargetScale

FRAME = pd.DataFrame(
    {"a": [1.0, 2.0, 3.0, 4.0], "c": ["x", "y", "x", "z"], "flat": [5, 5, 5, 5], "t": [10.0, 20.0, 30.0, 40.5]}
)


def cells(values, name="c"):
    return Cells(pd.Series(values, name=name))


def learned(values, **options):
    """The column that some cells are read as."""
    frame = pd.DataFrame({"c": values, "t": np.arange(len(values)) + 0.5, "more": np.arange(len(values)) % 3})
    return learn_table(frame, "t", **options).columns[0]


def test_numbers_are_standardized_categories_one_hot_and_constants_left_out():
    table = learn_table(FRAME, "t")
    x = table.inputs(FRAME)
    assert x[:, 0].mean() == pytest.approx(0, abs=1e-6)
    assert x[:, 0].std() == pytest.approx(1, abs=1e-6)
    assert x[:, 1:4].tolist() == [[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1]]
    assert x.shape == (4, 4)
    assert table.describe()[2] == {
        "column": "flat",
        "read_as": "left out",
        "inputs": 0,
        "detail": "every cell is '5'",
    }
    assert table.targets(FRAME) == pytest.approx(FRAME["t"].to_numpy())


def test_the_task_is_guessed_from_the_target():
    assert guess_task(cells(["a", "b"]))[0] == "classification"
    assert guess_task(cells([0, 1, 1]))[0] == "classification"
    assert guess_task(cells(["0", "1", "1"]))[0] == "classification"
    assert guess_task(cells([True, False]))[0] == "classification"
    assert guess_task(cells(np.arange(100)))[0] == "regression"
    assert guess_task(cells([0.5, 1.0]))[0] == "regression"
    for zeros in ([0.0, 1.0, 1.0], ["0.0", "1.0", "1.0"], [1.0, 0.0]):  # as pandas writes 0 and 1 beside gaps
        assert guess_task(cells(zeros)) == ("classification", "it holds only 0 and 1")
    assert guess_task(cells(["0.5", "1.0"]))[0] == "regression"
    assert guess_task(cells(["$1,200", "$3,400"]))[0] == "regression"


def test_integer_classes_keep_their_order_whatever_type_they_have():
    frame = pd.DataFrame({"a": np.arange(12.0), "t": [10, 9, 2] * 4})
    table = learn_table(frame, "t")
    assert table.classes == ("2", "9", "10")
    for column in (frame["t"], frame["t"].astype(float), frame["t"].astype(str)):
        assert table.targets(frame.assign(t=column))[:3].tolist() == [2, 1, 0]
    assert labels(cells(["1.5", "2"])) == ["1.5", "2"]


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (FRAME.drop(columns=["a", "c", "flat"]), "no column to learn from besides the target"),
        (FRAME[["flat", "t"]], "'flat' is left out"),
        (FRAME.assign(a=[1, np.inf, 2, 3]), "'a' holds inf in row 1"),
        (FRAME.assign(a=[1, 1e300, 2, 3]), "holds 1e.300 in row 1; numbers must be finite and at most 1e.30"),
        (FRAME.assign(t="same"), "a single value"),
        (FRAME.assign(t=3.5), "the same value, 3.5, in every training row"),
        (FRAME.assign(t=[1.5, 2.5, 3.5, 1e300]), r"holds '1e\+300' \(row 3\)"),
    ],
)
def test_tables_that_cannot_be_learned_from(frame, message):
    with pytest.raises(InputError, match=message):
        learn_table(frame, "t")


def test_numbers_are_read_as_people_write_them():
    words = ["$54,321", "1,234", "?", "0.125", "(7)", "", "n/a", " 8 ", "$ 9.50", "1 000"] * 3
    column = learned(words)
    assert isinstance(column, NumberColumn)
    assert (column.missing, column.unread) == (True, 0)
    values = column.scale.undo(column.encode(cells(words[:10]), path="t")[:, 0])
    held = [54321, 1234, column.fill, 0.125, -7, column.fill, column.fill, 8, 9.5, 1000]
    assert values == pytest.approx(held)
    assert column.fill == 9.5
    marks = column.encode(cells(words[:10]), path="t")[:, 1]
    assert marks.tolist() == [0, 0, 1, 0, 0, 1, 1, 0, 0, 0]


def test_a_decimal_comma_is_seen_and_kept():
    column = learned(["1,5", "2,25", "1.234,5"])
    assert column.comma
    one = column.encode(cells(["1.234,5"]), path="t")
    assert column.scale.undo(one)[0, 0] == pytest.approx(1234.5)
    assert not learned(["1,500", "2,250", "3"]).comma


@pytest.mark.filterwarnings("ignore:.*which is not a number")
def test_a_stray_word_among_numbers_does_not_make_categories():
    words = [str(i) for i in range(99)] + ["n/a?"]
    column = learned(words)
    assert isinstance(column, NumberColumn)
    assert column.unread == 1
    assert "1 cell(s) are not numbers" in column.detail
    fine = learned([str(i) for i in range(99)])
    with pytest.warns(UserWarning, match="c") as said:
        x = fine.encode(cells(["3", "oops"]), path="t")
    assert "'oops' in row 1, which is not a number" in str(said[0].message)
    assert fine.scale.undo(x)[:, 0].tolist() == pytest.approx([3, fine.fill])


def test_flags_dates_and_ordered_words():
    flag = learned(["Yes", "no", "yes", ""])
    assert isinstance(flag, FlagColumn)
    assert flag.encode(cells(["no", "YES", "?"]), path="t").tolist() == [[-1, 0], [1, 0], [0, 1]]
    assert isinstance(learned([True, False, True]), FlagColumn)
    date = learned(["2026-01-05", "2026-01-12", "2026-07-06", None])
    assert isinstance(date, DateColumn)
    assert date.width == 6
    x = date.encode(cells(["2026-01-05", "2026-01-12", ""]), path="t")
    assert x[0, 3:5] == pytest.approx(x[1, 3:5])  # both are Mondays
    assert x[1, 0] - x[0, 0] == pytest.approx(7 / date.scale.std)
    assert x[2, 1:].tolist() == [0, 0, 0, 0, 1]
    assert learned(["13/02/2026", "01/03/2026", "02/03/2026"]).detail.startswith("day first")
    assert learned(["02/13/2026", "01/03/2026", "02/03/2026"]).detail.startswith("month first")
    size = learned(["small", "large", "medium", "small"])
    assert isinstance(size, OrderedColumn)
    assert size.encode(cells(["small", "medium", "large"]), path="t").tolist() == [[0, 0], [1, 0], [1, 1]]
    own = learned(["b", "c", "a"], orders={"c": ("c", "b", "a")})
    assert own.encode(cells(["c", "b", "a"]), path="t").tolist() == [[0, 0], [1, 0], [1, 1]]
    with pytest.raises(InputError, match="holds 'a', which the given order"):
        learned(["b", "c", "a"], orders={"c": ("c", "b")})
    typed = pd.Categorical(["lo", "hi", "mid"], categories=["lo", "mid", "hi"], ordered=True)
    assert learned(typed).values == ("lo", "mid", "hi")


def test_ids_and_free_text_are_left_out_and_named():
    codes = [f"{i:04d}-XY" for i in range(40)]
    column = learned(codes)
    assert isinstance(column, LeftOutColumn)
    assert column.beside
    assert "id" in column.reason
    text = [f"the lodger of number {i} came late again" for i in range(40)]
    assert "free text" in learned(text).reason
    frame = pd.DataFrame({"customerID": np.arange(40) * 7, "n": np.arange(40) * 7, "t": np.arange(40) + 0.5})
    table = learn_table(frame, "t")
    assert [c.read_as for c in table.columns] == ["left out", "number"]  # a number is an id by its name only
    assert table.beside == ("customerID",)
    assert table.inputs(frame.drop(columns="customerID")).shape == (40, 1)
    assert isinstance(learned([f"{i % 12:05d}" for i in range(40)]), CategoryColumn)  # 00012 is a code


def test_rare_and_unseen_categories_have_a_code_of_their_own():
    many = [f"v{i % 70}" for i in range(280)] + [f"once{i}" for i in range(20)]
    column = learned(many)
    assert (len(column.values), column.other) == (64, True)
    x = column.encode(cells(["v0", "never", "once3"]), path="t")
    assert x[1:, -1].tolist() == [1, 1]
    assert x.sum(1).tolist() == [1, 1, 1]
    few = learned(["a", "b", "a", None])
    with pytest.warns(UserWarning, match=r"holds 'q' in row 0, which was not in the training data \(known: a, b\)"):
        assert few.encode(cells(["q", None]), path="t").tolist() == [[0, 0, 0], [0, 0, 1]]


def test_a_blank_cell_refuses_no_file():
    table = learn_table(FRAME, "t")
    with pytest.warns(UserWarning, match="without a value"):
        x = table.inputs(FRAME.assign(a=[None, 2.0, 3.0, 4.0], c=["x", None, "x", "z"]))
    assert x[0, 0] == 0  # the median is the mean
    assert x[1, 1:].tolist() == [0, 0, 0]
    with pytest.raises(InputError, match="no column 'c'"):
        table.inputs(FRAME.drop(columns="c"))


def test_what_is_asked_of_columns_is_done_or_refused():
    table = learn_table(FRAME.assign(b=[1, 2, 3, 5]), "t", drop=["a"], ids=["c"])
    assert [c.detail for c in table.columns[:2]] == ["dropped, as asked", "an id, as asked; kept beside predictions"]
    assert (table.beside, table.width) == (("c",), 1)
    with pytest.raises(InputError, match="no column 'z'"):
        learn_table(FRAME, "t", drop=["z"])
    with pytest.raises(InputError, match="'t' is the target"):
        learn_table(FRAME, "t", drop=["t"])


def test_too_many_classes_are_refused():
    frame = pd.DataFrame({"a": np.arange(400.0), "price": np.arange(400) * 3, "name": [f"n{i}" for i in range(400)]})
    with pytest.raises(
        InputError, match="400 different values in 400 rows, too many to be classes; use --task regression"
    ):
        learn_table(frame, "price", task="classification")
    with pytest.raises(InputError, match="name a target whose values repeat"):
        learn_table(frame, "name")


def test_rows_without_a_target_are_left_out_and_said():
    with pytest.warns(UserWarning, match=r"2 of 4 row\(s\) have no value of the target 't'"):
        kept = with_target(FRAME.assign(t=["1", "?", "", "2"]), "t", "f.csv")
    assert kept.index.tolist() == [0, 3]
    assert len(with_target(FRAME.assign(t=["none", "mild", "none", "mild"]), "t", "f.csv")) == 4  # a class
    with pytest.raises(InputError, match="no row has a value"):
        with_target(FRAME.assign(t=""), "t", "f.csv")


def test_statistics_come_from_the_training_rows_only(tmp_path):
    FRAME.sample(100, replace=True, random_state=0).to_csv(tmp_path / "t.csv", index=False)
    problem = load_problem(str(tmp_path / "t.csv"), target="t", holdout=0.5)
    assert problem.x_train[:, 0].mean() == pytest.approx(0, abs=1e-6)
    assert abs(problem.x_test[:, 0].mean()) > 1e-3
    train, test = split(100, 0.5, 0)
    assert sorted([*train, *test]) == list(range(100))


@pytest.mark.parametrize("name", ["digits", "diabetes", "wine", "breast_cancer"])
def test_built_in_problems_load(name):
    problem = load_problem(name)
    assert problem.task == ("regression" if name == "diabetes" else "classification")
    assert len(problem.x_train) == len(problem.y_train) > len(problem.x_test) == len(problem.y_test)


def mixed():
    """A frame with every kind of column."""
    rows = 60
    return pd.DataFrame(
        {
            "n": [None if i % 9 == 0 else f"${i},000" for i in range(rows)],
            "flag": ["yes", "no"] * 30,
            "word": ["a", "b", "c"] * 20,
            "size": ["low", "medium", "high"] * 20,
            "day": [f"2026-01-{1 + i % 28:02d} 10:{i:02d}" for i in range(rows)],
            "customerID": [f"K{i:03d}" for i in range(rows)],
            "t": np.arange(rows) + 0.5,
        }
    )


def test_a_table_comes_back_from_plain_content_and_encodes_the_same():
    frame = mixed()
    table = learn_table(frame, "t")
    assert [c.read_as for c in table.columns] == ["number", "flag", "category", "ordered", "date", "left out"]
    table = table.with_seen(table.inputs(frame), table.targets(frame))
    again = table_from(json.loads(json.dumps(table.to_dict())), "table.json")
    assert again == table
    assert again.width == 2 + 1 + 3 + 2 + 7
    shuffled = frame[list(frame.columns)[::-1]].assign(other="x")
    assert np.array_equal(again.inputs(shuffled), table.inputs(frame))
    assert again.seen.find(table.inputs(frame), table.targets(frame)).all()
    assert table_from(None, "table.json") is None


HOSTILE = {
    "nan": (
        {
            "columns": [
                {"kind": "NumberColumn", "name": "a", "scale": {"kind": "Scale", "mean": float("nan"), "std": 1.0}}
            ]
        },
        "mean nan",
    ),
    "no deviation": (
        {"columns": [{"kind": "NumberColumn", "name": "a", "scale": {"kind": "Scale", "mean": 0.0, "std": 0.0}}]},
        "deviation 0.0",
    ),
    "no classes": ({"task": "classification"}, "has no classes"),
    "another task": ({"task": "clustering"}, "task is 'clustering'"),
    "equal classes": ({"task": "classification", "classes": ["a", "a"]}, "2 values, 1 of them different"),
    "a column twice": ({"columns": [NumberColumn(name="a", scale=Scale()).to_dict()] * 2}, "2 columns, 1 of them"),
    "no categories": ({"columns": [{"kind": "CategoryColumn", "name": "a", "values": []}]}, "has 0 values"),
    "no order": ({"columns": [{"kind": "OrderedColumn", "name": "a", "values": []}]}, "has 0 values"),
    "another form": (
        {"columns": [{"kind": "DateColumn", "name": "a", "scale": {"kind": "Scale"}, "form": "%Q"}]},
        "written as '%Q'",
    ),
    "a fill of nan": (
        {"columns": [{"kind": "NumberColumn", "name": "a", "scale": {"kind": "Scale"}, "fill": float("inf")}]},
        "filled with inf",
    ),
    "a long name": (
        {"columns": [{"kind": "NumberColumn", "name": "a" * 20_000, "scale": {"kind": "Scale"}}]},
        "20,000 characters",
    ),
    "a number as text": (
        {"columns": [{"kind": "NumberColumn", "name": "a", "scale": {"kind": "Scale", "mean": "0", "std": 1.0}}]},
        "mean is '0'",
    ),
    "an unknown field": ({"color": "red"}, "no argument 'color'"),
    "no rows": ({"seen": {"kind": "Seen", "rows": 0, "bits": "00"}}, "out of bounds"),
    "no letters": ({"seen": {"kind": "Seen", "rows": 3, "bits": "\u00e9\u00e9\u00e9"}}, "not written as they should"),
    "odd bits": ({"seen": {"kind": "Seen", "rows": 3, "bits": "0000"}}, "power of two"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_tables_are_refused_in_one_sentence(case):
    content, message = HOSTILE[case]
    with pytest.raises(RunError, match=message) as caught:
        table_from({"kind": "Table"} | content, "f.choral")
    assert "f.choral" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_table_of_an_older_choral_is_refused():
    with pytest.raises(RunError, match=r"t\.json holds a table in the form of an older choral.*fit it again"):
        table_from({"target_mean": 1.0, "target_std": 2.0}, "t.json")


def test_a_table_that_names_other_classes_than_the_network_gives_is_refused():
    table = Table(columns=(CategoryColumn(name="a", values=("x",)),), task="classification", classes=("n", "y"))
    assert table.names_of(2) == ("n", "y")
    assert Table().names_of(7) is None
    with pytest.raises(RunError, match="names 2 classes but the network gives 3"):
        table.names_of(3)


def test_classes_are_spelled_as_in_the_file():
    codes = ["001", "01", "002", "1"] * 10
    frame = pd.DataFrame({"a": np.arange(40.0), "y": codes})
    table = learn_table(frame, "y")
    assert table.classes == ("001", "01", "1", "002")
    assert [table.classes[i] for i in table.targets(frame)] == codes
    assert guess_task(cells([f"{i:03d}" for i in range(90)] * 2))[0] == "classification"
    assert labels(cells(["$5", "100%"])) == ["$5", "100%"]
    assert labels(cells(["1.0", "2", "-1"])) == ["1", "2", "-1"]


def test_columns_that_show_their_decimals_decide_for_the_file():
    thousands, three = ["950", "1.250", "12.345"] * 10, ["4,082", "3,141", "5,250"] * 10
    frame = pd.DataFrame({"k": thousands, "m": three, "z": ["4,082", "0,836", "7,000"] * 10, "t": np.arange(30.5, 60)})
    assert learn_table(frame[["z", "t"]], "t").columns[0].scale.mean == pytest.approx(
        3.972667
    )  # no thousands begin with 0
    with pytest.warns(UserWarning, match="decimal commas") as said:
        table = learn_table(frame.assign(p=["1,5", "2,25", "3"] * 10), "t")
    assert [c.fill for c in table.columns[:2]] == [1250.0, 4.082]
    assert "'k' holds '1.250', which is read as 1250, as other" in str(said[0].message)
    with pytest.warns(UserWarning, match="but other columns do not agree"):
        mixed = learn_table(frame.assign(p=["1,5", "2,25", "3"] * 10, q=["1.5", "2.25", "3"] * 10), "t")
    assert not mixed.columns[0].comma
    date = ["31.12.2020", "1.5.2021", "2.5.2021"] * 10
    with pytest.warns(UserWarning, match="decimal commas"):
        assert learn_table(frame.assign(d=date), "t").columns[0].comma


@pytest.mark.parametrize("place", [5, 30])
def test_a_footer_is_said_when_a_table_is_learned(place, tmp_path):
    rows = [f"{i}.5,{i % 7}.25" for i in range(40)]
    rows.insert(place, "Total,900")
    (tmp_path / "t.csv").write_text("\n".join(["a,y", *rows]))
    with pytest.warns(
        UserWarning, match=f"column 'a' holds 'Total' in line {place + 2}, which is not a number; 1 such"
    ):
        load_problem(str(tmp_path / "t.csv"), target="y")


def test_a_column_in_other_units_than_in_training_is_said():
    frame = pd.DataFrame({"pct": ["45%", "30%", "62%", "18%"] * 10, "t": np.arange(40.5)[:40] + 0.5})
    table = learn_table(frame, "t")
    table.inputs(frame)
    with pytest.warns(UserWarning, match="4 of 4 cells of 'pct' lie far outside what training had"):
        table.inputs(pd.DataFrame({"pct": ["45", "30", "62", "18"]}))


SLASHED = [f"{month:02d}/{day:02d}/2023" for month in range(1, 13) for day in (3, 8, 11, 25)]  # month first
TURNED = [f"{day:02d}/{month:02d}/2023" for month in range(1, 13) for day in (3, 8, 11, 25)]
OPEN = [f"{month:02d}/{day:02d}/2023" for month in range(1, 13) for day in (3, 8, 11)]


@pytest.mark.parametrize(
    ("training", "later", "order"), [(SLASHED, TURNED, "month"), (TURNED, SLASHED, "day"), (OPEN, TURNED, "month")]
)
@pytest.mark.filterwarnings("ignore:.*may have the day or the month first")
def test_dates_with_day_and_month_the_other_way_round_than_in_training_are_refused(training, later, order):
    frame = pd.DataFrame({"c": training, "t": np.arange(len(training)) + 0.5})
    table = learn_table(frame, "t")
    assert table.columns[0].read_as == "date"
    table.inputs(frame)
    with pytest.raises(
        InputError, match=rf"training wrote its dates with the {order} first, so every date would be read as another"
    ):
        table.inputs(pd.DataFrame({"c": later}))
    table.inputs(pd.DataFrame({"c": training[:1]}))


def test_dates_that_may_have_either_order_are_said_and_more_cells_decide():
    with pytest.warns(UserWarning, match=r"may have the day or the month first; they are read with the month first"):
        learned(OPEN)
    few = [f"{day:02d}/{1 + day % 9:02d}/2023" for day in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12) * 4] + ["13/01/2023"]
    assert learned(few).form == "%d/%m/%Y"  # one cell in fifty shows it
    assert learned(["03/03/2023", "04/04/2023"] * 12).read_as == "date"  # the same either way: nothing to say


FOOTERS = {
    "a sum": (["Total", "", "", "9000"], "'Total' and nothing in column 'size'"),
    "an average": (["Average:", "55.2", "", "300"], "'Average:' and nothing in column 'town'"),
    "a note": (["Source: registry of 2023", "", "", ""], "'Source: registry of 2023' and nothing in column 'size'"),
}


@pytest.mark.parametrize("name", FOOTERS)
def test_a_footer_below_a_table_is_said(name, tmp_path):
    row, said = FOOTERS[name]
    body = [[f"h{i % 7}", str(20 + i), "Ulm" if i % 3 else "Bonn", str(100 + 7 * i)] for i in range(40)]
    lines = [",".join(r) for r in [["kind", "size", "town", "price"], *body, row]]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    with pytest.warns(UserWarning, match=re.escape(said)):
        read_table(tmp_path / "a.csv")
    for fine in (lines[:-1], [*lines[:-1], "h3,,Ulm,120"], [*lines[:2], "Total,3,,120", *lines[2:-1], "Total,4,,110"]):
        (tmp_path / "b.csv").write_text("\n".join(fine))
        read_table(tmp_path / "b.csv")  # warnings are errors


WRITTEN = {
    "thousands as a letter": (["3.1k", "950", "2M", "1.25k"] * 6, [3100, 950, 2e6, 1250], "k = 1,000, M = 1,000,000"),
    "a unit": (["5 kg", "7.5kg", "12 kg", "0.5 kg"] * 6, [5, 7.5, 12, 0.5], "deviation 4.161 kg"),
    "a unit with commas": (["5,5 km/h", "7,25 km/h", "12 km/h"] * 6, [5.5, 7.25, 12], "km/h"),
    "swiss": (["1'234'567", "2'000", "3\u2019456\u2019789.5"] * 6, [1234567, 2000, 3456789.5], "mean"),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_numbers_with_units_and_letters_are_read_as_inputs_and_as_targets(name):
    words, values, detail = WRITTEN[name]
    column = learned(words)
    assert column.read_as == "number"
    assert detail in column.detail
    read = column.scale.undo(column.encode(cells(words), path="it")[: len(values), 0])
    assert read == pytest.approx(values)
    frame = pd.DataFrame({"a": np.arange(len(words)) % 5 + 0.5, "t": words})
    table = learn_table(frame, "t", task="regression")
    assert table.targets(frame)[: len(values)] == pytest.approx(values)
    assert table_from(json.loads(json.dumps(table.to_dict())), "it") == table


def test_another_unit_than_that_of_training_is_no_number():
    column = learned(["5 kg", "7.5 kg", "12 kg"] * 8)
    with pytest.warns(UserWarning, match=r"holds '500 g' in row 1, which is not a number|without a value") as said:
        column.encode(cells(["5 kg", "500 g"]), path="it")
    assert "not a number" in str(said[0].message)
    frame = pd.DataFrame({"a": np.arange(24.0) % 5, "t": ["5 kg", "7.5 kg", "12 kg"] * 8})
    table = learn_table(frame, "t", task="regression")
    with pytest.raises(InputError, match=r"the target 't' holds '500 g' \(row 1\), which is not a number in kg"):
        table.targets(pd.DataFrame({"t": ["5 kg", "500 g"]}))


def test_numbers_in_different_units_are_words_and_said_and_no_targets():
    mixed = ["5 kg", "500 g", "7 kg", "250 g"] * 6
    with pytest.warns(UserWarning, match="'5 kg' and '500 g', numbers in different units, so it is read as words"):
        assert learned(mixed).read_as == "category"
    with pytest.raises(InputError, match="the target 't' holds '5 kg' and '500 g', numbers in different units"):
        learn_table(pd.DataFrame({"a": np.arange(24.0), "t": mixed}), "t")
    assert learned(["12A", "12B", "7C", "9A"] * 6).read_as == "category"  # codes: nothing to say
    assert learn_table(pd.DataFrame({"a": np.arange(24.0), "t": mixed}), "t", task="classification").classes


MOMENTS = {
    "with a T": "%Y-%m-%dT%H:%M:%S",
    "without seconds": "%Y-%m-%dT%H:%M",
    "with parts of seconds": "%Y-%m-%dT%H:%M:%S.000",
    "in UTC": "%Y-%m-%dT%H:%M:%SZ",
    "in a zone": "%Y-%m-%dT%H:%M:%S+00:00",
    "in UTC by name": "%Y-%m-%d %H:%M:%S UTC",
    "short years": "%d/%m/%y %H:%M",
    "short years, month first": "%m/%d/%y %H:%M",
    "half days": "%m/%d/%Y %I:%M %p",
    "half days with seconds": "%m/%d/%Y %I:%M:%S %p",
    "names of months": "%d %b %Y %H:%M",
}
WHEN = pd.date_range("2024-01-05 00:37", periods=60, freq="2897min")


@pytest.mark.parametrize("name", MOMENTS)
@pytest.mark.parametrize("repeated", [1, 4])
def test_moments_are_read_as_dates_whatever_their_writing(name, repeated):
    words = WHEN.strftime(MOMENTS[name]).tolist() * repeated
    column = learned(words)
    assert isinstance(column, DateColumn)
    assert column.times
    found = column.scale.undo(column.encode(cells(words), path="it")[:60, 0])
    assert found == pytest.approx((WHEN - pd.Timestamp(0)) / pd.Timedelta("1D"), abs=1e-6)
    test = split_by_time(cells(words), 0.25)[1]
    assert sorted(test.tolist()) == [i + 60 * r for r in range(repeated) for i in range(45, 60)]
    assert table_from({"kind": "Table", "columns": [column.to_dict()]}, "it").columns[0] == column


def test_zones_count_back_to_utc_and_months_are_dates():
    one, other = cells(["2024-03-01T02:00:00+02:00"]), cells(["2024-02-29 19:00:00-0500"])
    assert one.days("ISO8601") == other.days("ISO8601") == cells(["2024-03-01"]).days("ISO8601")
    for form, more in (
        ("%Y-%m", ""),
        ("%b %Y", ""),
        ("%B %Y", ""),
        ("%m/%Y", ""),
        ("%d-%b-%Y", ""),
        ("%m/28/%y", "1969"),
    ):
        column = learned(pd.date_range("2015-01-01", periods=40, freq="MS").strftime(form).tolist() * 2)
        assert isinstance(column, DateColumn), form
        assert column.scale.mean == pytest.approx(16436 + 593, abs=28)
        assert more in column.detail
    assert isinstance(learned(["20230302", "20230303", "20231224"] * 10), NumberColumn)
    assert isinstance(learned(["1.2.13", "1.2.14", "2.0.1"] * 10), CategoryColumn)  # versions


def test_dates_written_in_different_ways_are_words_and_said():
    mixed = [f"2023-03-{d:02d}" if d % 2 else f"{d:02d}/03/2023" for d in range(1, 29)] * 2
    with pytest.warns(
        UserWarning, match="'2023-03-01' and '02/03/2023', dates written in different ways, so it is read as w"
    ):
        assert learned(mixed).read_as == "category"
    with pytest.raises(InputError, match="dates written in different ways, so rows cannot be put in time; write all"):
        split_by_time(cells(mixed), 0.25)
    with pytest.warns(UserWarning, match="'c' holds 'soon' in row 0, which is not a date as the others are; 1 such"):
        assert learned(["soon", *WHEN.strftime("%Y-%m-%d")]).missing


def test_times_of_the_day_and_durations():
    words = [f"{i % 24:02d}:{i:02d}" for i in range(60)]
    column = learned(words)
    assert (column.read_as, column.width) == ("time", 3)
    x = column.encode(cells(["00:00", "23:59", "12:00"]), path="it")
    assert x[0, 1:] == pytest.approx(x[1, 1:], abs=0.01)  # midnight is near midnight
    assert column.scale.undo(x[:, 0]) == pytest.approx([0, 24 - 1 / 60, 12])
    assert learned([f"{w}:30" for w in words]).scale.mean == pytest.approx(column.scale.mean + 1 / 120)
    assert learned(["1:30 PM", "11:15 am", "12:00 AM"] * 9).scale.mean == pytest.approx((13.5 + 11.25) / 3)
    long = learned(["100:30:00", "20:15:00", "3 days 00:00:00"] * 9)
    assert (long.read_as, long.width) == ("duration", 1)
    assert long.scale.mean == pytest.approx((100.5 + 20.25 + 72) / 3)
    with pytest.warns(UserWarning, match="training wrote them|training did not have") as said:
        x = column.encode(cells(["01:00", "late"]), path="it")
    assert x[1].tolist() == [0, 0, 0]
    assert "'late' in row 1, which is not a time as training wrote them" in str(said[0].message)
    train, test = split_by_time(cells(words), 0.25)
    assert cells(words).hours[train].max() < cells(words).hours[test].min()


UNITS = {
    "shares": (["45%", "30", "62 %", "18"], "'45%' and '30'"),
    "signs": (["$76", "€80", "$12", "€15"], "'$76' and '€80'"),
    "names": (["12 USD", "14 EUR", "9 USD", "7 EUR"], "'12 USD' and '14 EUR'"),
    "shares and money": (["$5", "12%", "$9", "14%"], "'$5' and '12%'"),
}


@pytest.mark.parametrize("name", UNITS)
def test_shares_and_currencies_are_units(name):
    words, said = UNITS[name]
    with pytest.warns(UserWarning, match=re.escape(f"{said}, numbers in different units, so it is read as words")):
        assert learned(words * 6).read_as == "category"
    once = [re.sub(r"\d+", str(100 + i), words[i % 4]) for i in range(24)]
    with pytest.warns(UserWarning, match="numbers in different units, so it is left out; write them"):
        assert "numbers in different units" in learned(once).detail
    with pytest.raises(InputError, match=re.escape(f"{said}, numbers in different units; write them all in one")):
        learn_table(pd.DataFrame({"a": np.arange(24.0), "t": words * 6}), "t")


FEW = [str(n) for n in range(30, 54)]
NEARLY = {
    "a number among shares": ([f"{n}%" for n in FEW] + ["7"], "'7' in row 24, which is not a number in %", 0.415),
    "a share among numbers": ([*FEW, "7%"], "'7%' in row 24, which is not a number;", 41.5),
    "euros among dollars": ([f"${n}" for n in FEW] + ["€7"], "'€7' in row 24, which is not a number in $", 41.5),
}


@pytest.mark.parametrize("name", NEARLY)
def test_nearly_all_cells_decide_on_the_unit_and_others_are_said(name):
    words, said, mean = NEARLY[name]
    with pytest.warns(UserWarning, match=re.escape(said)):
        column = learned(words)
    assert column.unread == 1
    assert column.scale.mean == pytest.approx(mean)


def test_amounts_in_another_currency_than_in_training_are_said_and_those_in_the_same_are_not():
    column = learned(["$45", "30", "62.50 USD"] * 8)
    assert column.unit == "$"
    assert column.detail.endswith("$")
    for fine in (["$5", "7 USD"], ["5", "7"]):
        assert column.scale.undo(column.encode(cells(fine), path="it")[:, 0]) == pytest.approx([5, 7])
    with pytest.warns(UserWarning, match=r"training did not have|not a number") as said:
        column.encode(cells(["€5", "7 €"]), path="it")
    assert "holds '€5' in rows 0, 1, which is not a number in $; 2 such cell(s)" in str(said[0].message)
    plain = learned(["45", "30", "62.50"] * 8)
    assert plain.scale.undo(plain.encode(cells(["€5", "7 €"]), path="it")[:, 0]) == pytest.approx([5, 7])
    frame = pd.DataFrame({"a": np.arange(24.0) % 5, "t": ["$45", "$30", "$62.50"] * 8})
    with pytest.raises(InputError, match=r"the target 't' holds '€5' \(row 0\), which is not a number in \$"):
        learn_table(frame, "t", task="regression").targets(pd.DataFrame({"t": ["€5", "$7"]}))


def test_large_numbers_that_lie_close_together_are_scaled():
    values = 2_024_000_000_000_001 + 3 * np.random.default_rng(0).permutation(300)
    for given in (values, values.astype(str), values.astype(float)):
        column = learned(given)
        assert column.scale.std == pytest.approx(3 * 86.6, rel=1e-3)
        assert column.scale.mean == 2_024_000_000_000_449.5
        assert np.abs(column.encode(cells(given), path="it")).max() < 2
    assert Scale.of(np.full(7, 0.1)).std == Scale.of(np.array([0.3, 0.1 + 0.2])).std == 1.0
    scale = TargetScale.of(torch.tensor(values).unsqueeze(1))
    assert scale.std[0] == pytest.approx(3 * 86.6, rel=1e-3)
    assert scale.mean[0] == 2_024_000_000_000_449.5


def test_whole_numbers_given_to_rows_one_after_the_other_are_ids():
    rng = np.random.default_rng(0)
    for start in (100_000, 20_240_000, 2_024_000_000_000_001, 10**18 + 1):
        for numbers in (start + np.arange(300), start + rng.choice(400, 300, replace=False)):
            found = learn_table(
                pd.DataFrame({"n": numbers.astype(str), "a": rng.normal(size=300), "t": numbers % 7 + 0.5}), "t"
            )
            assert (
                found.columns[0].detail
                == "an id: whole numbers one after the other, each once; kept beside predictions"
            )
    frame = pd.DataFrame({"a": rng.normal(size=300), "t": np.arange(300) + 0.5})
    wide = rng.choice(10**9, 300, replace=False)
    for name in ("order_no", "uid", "account", "Serial", "transaction_id", "InvoiceNumber", "customer nr."):
        assert learn_table(frame.assign(**{name: wide}), "t").columns[-1].read_as == "left out", name
    measured = {
        "population": wide,
        "n": np.arange(300),
        "timestamp": 1_700_000_000 + np.arange(300),
        "price": 100_000 + 5 * np.arange(300),
        "energy": 100_000 + np.arange(300) + 0.5,
        "serial": np.arange(300) + 0.5,
        "amount": [20230113 + 100 * (i // 25) + i % 25 for i in range(300)],
        "month": [200001 + 100 * (i // 12) + i % 12 for i in range(300)],
    }
    for name, values in measured.items():
        assert learn_table(frame.assign(**{name: values}), "t").columns[-1].read_as == "number", name


def test_a_column_of_the_type_category_is_one_whatever_its_values_are(tmp_path):
    floor = pd.Categorical([1, 2, 3, None] * 10)
    frame = pd.DataFrame({"floor": floor, "flat": np.arange(40) % 7, "t": np.arange(40) + 0.5})
    frame.to_parquet(tmp_path / "t.parquet")
    for given in (frame, read_table(tmp_path / "t.parquet")):
        table = learn_table(given, "t")
        assert table.columns[0].values == ("1", "2", "3")
        assert table.inputs(pd.DataFrame({"floor": ["2", ""], "flat": [1, 2]}))[:, :4].tolist() == [
            [0, 1, 0, 0],
            [0, 0, 0, 1],
        ]
        assert table.inputs(pd.DataFrame({"floor": [2.0, None], "flat": [1, 2]}))[:, :4].tolist() == [
            [0, 1, 0, 0],
            [0, 0, 0, 1],
        ]
    steps = pd.Categorical([10, 20, 5] * 10, categories=[20, 10, 5], ordered=True)
    assert learned(steps).values == ("20", "10", "5")
    assert learned(pd.Categorical([f"K{i}" for i in range(40)])).read_as == "left out"
    assert guess_task(cells(pd.Categorical(np.arange(60) % 30)))[0] == "classification"


def test_whole_numbers_that_look_like_counts_are_said_to_have_an_alternative():
    frame = pd.DataFrame({"a": np.arange(140.0), "t": np.arange(140) % 14})
    table = learn_table(frame, "t")
    assert table.task == "classification"
    assert "if they are counts or a rating, use --likelihood poisson or --task regression" in table.reason
    with pytest.raises(
        InputError, match=r"holds '14', a class .* fit again with --task regression, or with --likelihood p"
    ):
        table.targets(frame.assign(t=14))
    for few in (np.arange(140) % 5, np.arange(140) % 14 * 3, np.arange(140) % 14 + 7):
        assert "poisson" not in learn_table(frame.assign(t=few), "t").reason


def test_three_decimals_where_training_marked_thousands_are_doubted():
    column = learned(["$6,310.30", "$950.25", "$12,000.00", "5"] * 6)
    with pytest.warns(
        UserWarning, match=r"holds '6\.310', which is read as 6\.31, with decimals as in training; all such"
    ):
        column.encode(cells(["950", "6.310", "7.250"]), path="it")
    german = learned(["6.310,30", "950,25", "12.000,00", "5"] * 6)
    with pytest.warns(UserWarning, match="holds '6,310', which is read as 6.31, "):
        german.encode(cells(["950", "6,310"]), path="it")
    for fine in (["6.310", "7.25"], ["6,310", "7,250"], ["950"], [6.310, 7.250]):
        column.encode(cells(fine), path="it")  # warnings are errors
    learned(["6.315", "7.250", "1,250.125"] * 6).encode(cells(["6.310", "7.250"]), path="it")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([f"2023-{1 + i % 12:02d}-{1 + i // 12:02d}" for i in range(60)], "holds dates ('2023-01-01'); give a number"),
        (pd.date_range("2023-01-01", periods=60), "holds dates ('2023-01-01 00:00:00'); give a number"),
        (
            [f"00:{i:02d}:09" for i in range(60)],
            "holds times or durations ('00:00:09'); give a number, such as minutes",
        ),
    ],
)
def test_targets_that_are_dates_or_times_are_told_as_such(words, said):
    frame = pd.DataFrame({"a": np.arange(60.0), "when": words})
    for task in (None, "regression"):
        with pytest.raises(InputError, match=re.escape(f"the target 'when' {said}")):
            learn_table(frame, "when", task=task)


def test_held_out_rows_that_repeat_training_rows_are_counted():
    frame = pd.DataFrame({"a": np.arange(40.0), "t": np.arange(40) + 0.5})
    assert load_problem(frame, target="t").repeated == 0
    twice = load_problem(pd.concat([frame, frame]), target="t")
    assert 0 < twice.repeated < len(twice.x_test) == 20
