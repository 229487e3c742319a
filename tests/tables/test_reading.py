"""Small tables, and the reading that is promised for each: files, numbers, dates, words, targets."""

import gzip
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from choral.base.errors import InputError
from choral.base.values import of_kind
from choral.tables.columns import CategoryColumn, DateColumn, NumberColumn, OrderedColumn
from choral.tables.reading import read_table
from choral.tables.table import Table, learn_table, with_target

pytestmark = pytest.mark.filterwarnings("ignore:.*between its cells")
NAN = float("nan")
TWENTY = [str(i * i) for i in range(2, 22)]


def table_of(cells: list[str], path: Path, **options: object) -> tuple[Table, pd.DataFrame]:
    """Write cells as column c of a file, beside a number, and read it."""
    frame = pd.DataFrame({"c": cells, "n": np.arange(len(cells)) % 7, "y": np.arange(len(cells)) * 0.5})
    frame.to_csv(path / "t.csv", index=False)
    read = read_table(path / "t.csv")
    return learn_table(read, "y", task="regression", path="t.csv", **options), read  # type: ignore[arg-type]


def values_of(table: Table, frame: pd.DataFrame) -> list[float]:
    """Return the numbers of column c, NaN where it has none."""
    column, coded = table.columns[0], table.inputs(frame).astype(np.float64)
    assert isinstance(column, NumberColumn | DateColumn)
    found = column.scale.undo(coded[:, 0])
    if column.missing:
        found = np.where(coded[:, column.width - 1] > 0.5, np.nan, found)
    return [float(v) for v in found]


def day(text: str) -> float:
    return float(np.datetime64(text, "D").astype(int))


NUMBERS: dict[str, tuple[list[str], list[float], str]] = {
    "plain": (["1", "2.5", "-3", "1e3"], [1, 2.5, -3, 1000], ""),
    "dollars": (["$1,200", "$950.5", "-$3", "$ 7"], [1200, 950.5, -3, 7], "$"),
    "euros_behind": (["12 EUR", "7.5 EUR", "3 €", "1,000 EUR"], [12, 7.5, 3, 1000], "€"),
    "pounds": (["£1", "£2", "£3.5"], [1, 2, 3.5], "£"),
    "a_currency_beside_bare_amounts": (["$5", "7", "9"], [5, 7, 9], "$"),
    "thousands": (["1,234", "12,345,678", "5"], [1234, 12345678, 5], ""),
    "thousands_by_spaces": (["1 234", "12 345", "5"], [1234, 12345, 5], ""),
    "thousands_by_quotes": (["1'234", "12'345.5", "5"], [1234, 12345.5, 5], ""),
    "shares": (["12%", "7.5 %", "-3%"], [0.12, 0.075, -0.03], "%"),
    "weights": (["5 kg", "7.5kg", "80 kg"], [5, 7.5, 80], "kg"),
    "areas": (["87.2 m2", "64m2", "1,012 m2"], [87.2, 64, 1012], "m2"),
    "speeds": (["50 km/h", "70 km/h", "80 km/h"], [50, 70, 80], "km/h"),
    "a_minus_of_typesetters": (["\u22125", "3", "4"], [-5, 3, 4], ""),
    "spaces_around": ([" 5", "7 ", " 9 "], [5, 7, 9], ""),
    "blanks": (["5", "", "7", "?", "9", "NA", "n/a", "NaN", "null"], [5, NAN, 7, NAN, 9, NAN, NAN, NAN, NAN], ""),
    "words_for_none": (["5", "7", "unknown", "-", "None", "missing", "8"], [5, 7, NAN, NAN, NAN, NAN, 8], ""),
    "spreadsheet_errors": (["5", "#DIV/0!", "7", "#N/A"], [5, NAN, 7, NAN], ""),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers(name: str, tmp_path: Path) -> None:
    cells, expected, unit = NUMBERS[name]
    table, frame = table_of(cells, tmp_path)
    column = table.columns[0]
    assert isinstance(column, NumberColumn)
    assert column.unit == unit
    assert values_of(table, frame) == pytest.approx(expected, abs=1e-4 * max(abs(np.nan_to_num(expected))), nan_ok=True)
    assert column.missing == any(map(np.isnan, expected))


def test_a_number_never_begins_with_zero_thousands(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"'0,512' in lines 2, 3, 4, 5, ...,"):
        table, _ = table_of([f"0,{i}" for i in range(512, 540)], tmp_path)
    assert table.columns[0].read_as != "number"


DATES: dict[str, tuple[list[str], list[Any]]] = {
    "iso": (["2024-03-01", "2023-12-24", "2024-02-29"], ["2024-03-01", "2023-12-24", "2024-02-29"]),
    "iso_with_times": (["2024-03-01T12:00:00", "2024-03-02 12:00"], [19783.5, 19784.5]),
    "zones": (["2024-03-01T12:00:00Z", "2024-03-02T14:00:00+02:00"], [19783.5, 19784.5]),
    "month_first": (["3/25/2024", "12/1/2023", "1/13/2024"], ["2024-03-25", "2023-12-01", "2024-01-13"]),
    "day_first": (["25/3/2024", "1/12/2023", "13/1/2024"], ["2024-03-25", "2023-12-01", "2024-01-13"]),
    "points": (["25.03.2024", "01.12.2023"], ["2024-03-25", "2023-12-01"]),
    "names_of_months": (["25 Mar 2024", "1 Dec 2023"], ["2024-03-25", "2023-12-01"]),
    "american_words": (["March 25, 2024", "December 1, 2023"], ["2024-03-25", "2023-12-01"]),
    "two_formats": (["2024-03-25", "03/26/2024", "2023-12-01"], ["2024-03-25", "2024-03-26", "2023-12-01"]),
    "gaps": (["2024-03-25", "", "2024-03-27", "unknown"], ["2024-03-25", None, "2024-03-27", None]),
}


@pytest.mark.parametrize("name", DATES)
def test_dates(name: str, tmp_path: Path) -> None:
    cells, expected = DATES[name]
    table, frame = table_of(cells * 3, tmp_path)
    assert table.columns[0].read_as == "date"
    days = [NAN if d is None else d if isinstance(d, float) else day(d) for d in expected] * 3
    assert values_of(table, frame) == pytest.approx(days, abs=0.01, nan_ok=True)
    again = of_kind(Table, table.to_dict(), "a file")
    assert again is not None
    assert np.array_equal(again.inputs(frame), table.inputs(frame))


KINDS = {
    "flags": (["yes", "No", "YES", "no"] * 6, "flag", "yes or no"),
    "truths": (["True", "False", "True"] * 6, "flag", "true or false"),
    "letters": (["Y", "N", "Y", ""] * 6, "flag", "marked"),
    "words": (["Ulm", "Bonn", "Ulm", "Kiel"] * 6, "category", "3 value(s): Bonn, Kiel, Ulm"),
    "spellings": (["Good", " Good", "GOOD", "good ", "Good", "Poor"] * 4, "category", "2 value(s): Good, Poor"),
    "words_with_gaps": (["Ulm", "Bonn", "", "?"] * 6, "category", "one more"),
    "rare_words": (["Ulm", "Bonn"] * 30 + ["Kiel", "Hof"], "category", "rare ones count together"),
    "sizes_are_not_ordered_unless_said": (["small", "large", "medium"] * 6, "category", "3 value(s)"),
    "constant": (["US"] * 24, "left out", "every cell is 'US'"),
    "constant_number": (["7"] * 24, "left out", "every cell is '7'"),
    "empty": ([""] * 12 + ["?"] * 12, "left out", "every cell is without a value"),
    "ids": ([f"H-{i:04d}" for i in range(24)], "left out", "an id"),
    "free_text": ([f"a house with number {i} here" for i in range(24)], "left out", "free text"),
    "mixed_units": (["5 kg", "500 g"] * 12, "category", "2 value(s)"),
    "shares_beside_numbers": (["5%", "7"] * 12, "category", "2 value(s)"),
    "times_of_the_day": (["13:45", "8:30"] * 12, "category", "2 value(s)"),
    "numbers_of_models": (["A4", "A6", "Q5"] * 8, "category", "3 value(s)"),
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.filterwarnings("ignore:.*clean the column")
def test_kinds(name: str, tmp_path: Path) -> None:
    cells, kind, detail = KINDS[name]
    table, _ = table_of(cells, tmp_path)
    assert table.columns[0].read_as == kind
    assert detail in table.columns[0].detail


@pytest.mark.parametrize("name", ["customerID", "id", "user_id", "order_no", "Unnamed: 0", "account"])
def test_numbers_that_identify_rows_are_left_out(name: str) -> None:
    frame = pd.DataFrame({name: np.arange(7, 67) * 3, "n": np.arange(60) % 7, "y": np.arange(60) * 0.5})
    table = learn_table(frame, "y")
    assert table.beside == (name,)
    assert learn_table(frame.rename(columns={name: "width"}), "y").beside == ()
    assert learn_table(frame.assign(**{name: frame[name] % 9}), "y").beside == ()  # they repeat


def test_counters_of_six_digits_are_ids_whatever_their_name() -> None:
    frame = pd.DataFrame({"house": np.arange(100_017, 100_077), "n": np.arange(60) % 7, "y": np.arange(60) * 0.5})
    assert learn_table(frame, "y").left_out == ("house",)


UNREAD = {
    "half_numbers": ([*TWENTY, *["soon", "later", "n.d.y."] * 4], "'soon' in lines 22, 23, 24, 25, ..."),
    "units": ([f"{i} kg" for i in range(15)] + [f"{i} g" for i in range(15)], "'0 g' in lines 17, 18, 19, 20, ..."),
    "times_of_the_day": ([f"{i}:{i:02d}" for i in range(1, 24)], "'1:01' in lines 2, 3, 4, 5, ..."),
    "decimal_commas_between_commas": ([f"{i},5" for i in range(30)], "'0,5' in lines 2, 3, 4, 5, ..."),
    "quarters": ([f"{1980 + i}-Q{i % 4 + 1}" for i in range(30)], "'1980-Q1' in lines 2, 3, 4, 5, ..."),
    "bounds": ([f"{i}+" for i in range(30)], "'0+' in lines 2, 3, 4, 5, ..."),
    "half_dates": (
        [f"2024-03-{i:02d}" for i in range(1, 21)] + ["spring", "fall"] * 4,
        "'spring' in lines 22, 23, 24, 25, ...",
    ),
}


@pytest.mark.parametrize("name", UNREAD)
def test_a_column_that_cannot_be_read_is_named_with_what_to_do(name: str, tmp_path: Path) -> None:
    cells, words = UNREAD[name]
    with pytest.warns(UserWarning, match="clean the column") as heard:
        table, _ = table_of(cells, tmp_path)
    assert words in str(heard[0].message)
    assert table.columns[0].read_as in ("category", "left out")


ODD = {
    "a_word": ([*TWENTY, "n.d.y."], "holds 'n.d.y.' in line 22, which is not a number"),
    "two_signs": ([*TWENTY, "--5"], "holds '--5' in line 22, which is not a number"),
    "a_bound": ([*TWENTY, "400+"], "holds '400+' in line 22, which is not a number"),
    "brackets": ([*TWENTY, "(5)"], "holds '(5)' in line 22, which is not a number"),
    "another_currency": ([f"${c}" for c in TWENTY] + ["€5"], "holds '€5' in line 22, which is not a number in $"),
    "no_date": ([f"2024-03-{i:02d}" for i in range(1, 21)] + ["spring"], "holds 'spring' in line 22"),
    "no_day": ([f"2024-03-{i:02d}" for i in range(1, 21)] + ["2023-02-30"], "holds '2023-02-30' in line 22"),
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_cell_counts_as_missing_and_its_line_is_said(name: str, tmp_path: Path) -> None:
    cells, words = ODD[name]
    with pytest.warns(UserWarning, match=re.escape(words)):
        table, frame = table_of(cells, tmp_path)
    assert table.columns[0].missing
    assert np.isnan(values_of(table, frame)[-1])


def test_ordered_words_as_given_or_typed(tmp_path: Path) -> None:
    cells = ["low", "High", " middle", "low", ""]
    table, frame = table_of(cells, tmp_path, orders={"c": ("low", "middle", "high")})
    assert table.inputs(frame)[:, :3].tolist() == [[0, 0, 0], [1, 1, 0], [1, 0, 0], [0, 0, 0], [0.5, 0.5, 1]]
    typed = pd.Categorical(["b", "a", "b"], ["b", "a"], ordered=True)
    column = learn_table(pd.DataFrame({"c": typed, "y": [0.5, 1.5, 2.5]}), "y").columns[0]
    assert isinstance(column, OrderedColumn)
    assert column.values == ("b", "a")
    with pytest.raises(InputError, match="holds 'high', which the given order"):
        table_of(["low", "high"], tmp_path, orders={"c": ("low", "middle")})


def test_unseen_words_and_new_gaps_are_coded_as_none_and_said(tmp_path: Path) -> None:
    table, _ = table_of(["Ulm", "Bonn"] * 10, tmp_path)
    new = pd.DataFrame({"c": ["Bonn", "BONN ", "Kiel", None], "n": [3, 3, 3, None]})
    with pytest.warns(UserWarning, match="training") as heard:
        coded = table.inputs(new)
    said = [str(one.message) for one in heard]
    assert any("'Kiel' in row 2, which was not in the training data (known: Bonn, Ulm)" in s for s in said)
    assert any("columns 'c', 'n' have 2 cell(s) without a value (row 3)" in s for s in said)
    assert coded[:, :2].tolist() == [[1, 0], [1, 0], [0, 0], [0, 0]]
    assert coded[3, 2] == pytest.approx(0.0, abs=0.1)  # the median
    with pytest.warns(UserWarning, match=r"columns 'c', 'n' have 2 cell\(s\) without a value"):
        alone = table.inputs(pd.DataFrame({"c": [None], "n": [None]}))  # columns without a word
    assert alone.tolist() == coded[3:].tolist()


def test_rare_words_share_a_code_with_unseen_ones() -> None:
    frame = pd.DataFrame({"c": ["a"] * 40 + ["b"] * 40 + ["c", "d"], "y": np.arange(82) * 0.5})
    table = learn_table(frame, "y")
    assert isinstance(table.columns[0], CategoryColumn)
    assert table.inputs(pd.DataFrame({"c": ["b", "c", "z"]})).tolist() == [[0, 1, 0], [0, 0, 1], [0, 0, 1]]


def test_categories_that_are_numbers_are_known_with_and_without_gaps() -> None:
    frame = pd.DataFrame({"c": pd.Categorical([7, 8, 7, 9]), "y": [0.5, 1.5, 2.5, 3.5]})
    table = learn_table(frame, "y")
    later = pd.DataFrame({"c": [7.0, 9.0, 8.0]})
    assert table.inputs(later).tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0]]


def test_dates_in_the_other_order_than_in_training_are_refused(tmp_path: Path) -> None:
    table, _ = table_of(["25/3/2024", "1/12/2023", "13/1/2024"], tmp_path)
    with pytest.raises(InputError, match=r"holds '3/25/2024',.*%d/%m/%Y"):
        table.inputs(pd.DataFrame({"c": ["3/25/2024", "1/2/2024"], "n": [1, 2]}))


def test_dates_that_may_have_either_order_are_said(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"\('1/2/2024', ...\).*%m/%d/%Y"):
        table_of(["1/2/2024", "3/4/2024"], tmp_path)


def test_numbers_in_the_unit_of_training(tmp_path: Path) -> None:
    table, _ = table_of(["$1,000", "$2,000", "$3,000"], tmp_path)
    same = [pd.DataFrame({"c": cells, "n": [1, 2]}) for cells in ([1000, 2000], ["1,000", "USD 2000"])]
    assert values_of(table, same[0]) == pytest.approx([1000, 2000], rel=1e-4)
    assert np.array_equal(table.inputs(same[0]), table.inputs(same[1]))
    with pytest.warns(UserWarning, match=r"holds '€2,000' in row 1,.*\$"):
        table.inputs(pd.DataFrame({"c": ["$1,000", "€2,000"], "n": [1, 2]}))
    shares, _ = table_of(["10%", "20%", "40%"], tmp_path)
    assert values_of(shares, pd.DataFrame({"c": [0.1, 0.2], "n": [1, 2]})) == pytest.approx([0.1, 0.2], rel=1e-4)


def test_typed_columns_of_frames() -> None:
    frame = pd.DataFrame(
        {
            "span": pd.to_timedelta([1, 2, 4], unit="h"),
            "month": pd.period_range("2024-01", periods=3, freq="M"),
            "flag": [True, False, True],
            "whole": pd.array([1, None, 3], dtype="Int64"),
            "when": pd.to_datetime(["2024-03-01", "2024-03-02", None]),
            "lists": [[1], [2], [3]],
            "y": [0.5, 1.5, 2.5],
        }
    )
    from choral.tables.reading import as_frame

    with pytest.warns(UserWarning, match="column 'lists' has cells that hold lists"):
        table = learn_table(as_frame(frame), "y")
    kinds = {row["column"]: row["read_as"] for row in table.describe()}
    assert kinds == {
        "span": "number", "month": "date", "flag": "flag", "whole": "number", "when": "date", "lists": "left out",
    }  # fmt: skip
    assert isinstance(table.columns[0], NumberColumn)
    assert table.columns[0].scale.mean == 8400  # seconds


FILES = {
    "comma.csv": "c,n\n1.5,a\n2.5,b\n",
    "semicolon.csv": "c;n\n1.5;a\n2.5;b\n",
    "decimal_comma.csv": "c;n\n1,5;a\n2,5;b\n",
    "tab.csv": "c\tn\n1.5\ta\n2.5\tb\n",
    "tab.tsv": "c\tn\n1.5\ta\n2.5\tb\n",
    "bar.csv": "c|n\n1.5|a\n2.5|b\n",
    "quoted.csv": '"c","n"\n"1.5","a"\n"2.5","b"\n',
    "spaces.csv": "c , n\n1.5 , a\n2.5 , b\n",
    "blank_lines.csv": "\nc,n\n\n1.5,a\n\n2.5,b\n\n",
    "windows.csv": "c,n\r\n1.5,a\r\n2.5,b\r\n",
    "LOUD.CSV": "c,n\n1.5,a\n2.5,b",
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_files_of_text(name: str, encoding: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(FILES[name].encode(encoding))
    frame = read_table(tmp_path / name)
    assert list(frame.columns) == ["c", "n"]
    assert frame["c"].tolist() == [1.5, 2.5]
    assert frame["n"].str.strip().tolist() == ["a", "b"]
    if encoding == "utf-8":
        packed = tmp_path / f"{Path(name).stem}.{'tsv' if name.endswith('tsv') else 'csv'}.gz"
        packed.write_bytes(gzip.compress(FILES[name].encode()))
        assert read_table(packed).equals(frame)


def test_amounts_of_a_file_with_decimal_commas(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("c;n;y\n€ 1.250,5;0,5;1\n€ 1,599;1,5;2\n€ 20;2,5;3\n")
    frame = read_table(tmp_path / "t.csv")
    table = learn_table(frame, "y", task="regression")
    assert values_of(table, frame) == pytest.approx([1250.5, 1.599, 20], rel=1e-3)


def test_decimals_of_one_file_may_differ_by_column(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("c;n;y\n1,5 €;0.5;1.5\n2,25 €;1.5;2.5\n20 €;2.5;3.5\n")
    frame = read_table(tmp_path / "t.csv")
    table = learn_table(frame, "y", task="regression")
    assert values_of(table, frame) == pytest.approx([1.5, 2.25, 20], rel=1e-3)
    assert table.targets(frame).tolist() == [1.5, 2.5, 3.5]


def test_zeros_before_whole_numbers_are_kept(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("zip,n,y\n" + "".join(f"0{1000 + i % 3},{i},0{i % 2 + 1}\n" for i in range(30)))
    frame = read_table(tmp_path / "t.csv")
    table = learn_table(frame, "y")
    assert frame["zip"][1] == "01001"
    assert [c.read_as for c in table.columns] == ["category", "number"]
    assert table.classes == ("01", "02")


def test_other_alphabets_and_parquet(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("größe,ort\n1,Köln\n2,Bonn\n".encode("cp1252"))
    with pytest.warns(UserWarning, match="is read as cp1252"):
        assert read_table(tmp_path / "t.csv")["ort"].tolist() == ["Köln", "Bonn"]
    frame = pd.DataFrame({"a": [1.5, None], "b": ["x", "y"]})
    frame.to_parquet(tmp_path / "t.parquet")
    assert read_table(tmp_path / "t.parquet").equals(frame)


BROKEN = {
    "longer_line.csv": ("a,b\n1,2\n3,4,5\n", "line 3"),
    "longer_lines.csv": ("a,b\n1,2,3\n3,4,5\n", "cannot be read"),
    "empty.csv": ("", "cannot be read"),
    "header.csv": ("a,b\n", "no rows"),
    "quote.csv": ('a,b\n1,"2\n3,4\n', "cannot be read"),
    "bytes.parquet": ("nothing", "cannot be read as a .parquet table"),
    "table.doc": ("a,b\n", "is not a table choral reads"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_one_sentence(name: str, tmp_path: Path) -> None:
    text, words = BROKEN[name]
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=words) as error:
        read_table(tmp_path / name)
    assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="does not exist"):
        read_table(tmp_path / "nowhere.csv")


TASKS = {
    "words": (["b", "a", "b"], "classification", ("a", "b")),
    "spellings": (["Yes", "yes", "NO", "Yes", "no", "no"], "classification", ("Yes", "no")),
    "whole": (["3", "1", "2"], "classification", ("1", "2", "3")),
    "whole_with_gaps": (["3", "", "2"], "classification", ("2", "3")),
    "zeros_and_ones": (["0.0", "1.0", "1.0"], "classification", ("0", "1")),
    "truths": (["True", "False"], "classification", ("False", "True")),
    "a_class_none": (["none", "mild", "none"], "classification", ("mild", "none")),
    "reals": (["1.5", "2.5", "3.0"], "regression", ()),
    "many_whole": ([str(i) for i in range(30)], "regression", ()),
    "money": ([f"${i},000" for i in range(1, 40)], "regression", ()),
}


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.filterwarnings("ignore:.*no value of the target", "ignore:.*taken as one class")
def test_the_task_is_decided_by_the_target(name: str, tmp_path: Path) -> None:
    cells, task, classes = TASKS[name]
    pd.DataFrame({"n": np.arange(len(cells)) % 7, "y": cells}).to_csv(tmp_path / "t.csv", index=False)
    frame = with_target(read_table(tmp_path / "t.csv"), "y", "t.csv")
    table = learn_table(frame, "y")
    assert (table.task, table.classes) == (task, classes)
    targets = table.targets(frame)
    if classes:
        fold = [str(c).strip().lower().removesuffix(".0") for c in cells if c]
        assert [classes[i].lower() for i in targets] == fold


def test_the_unit_of_a_target_is_said() -> None:
    for cells, unit in ((["$5.5", "$6"], "in $"), (["5%", "6%"], "12% is 0.12"), (["5 kg", "6.5 kg"], "in kg")):
        table = learn_table(pd.DataFrame({"n": [1, 2], "y": cells}), "y")
        assert table.reason.endswith(unit)
        assert learn_table(pd.DataFrame({"n": [1, 2], "y": cells}), "y", task="regression").reason.endswith(unit)


def test_percents_without_their_sign_are_fractions_or_refused() -> None:
    share = [f"{i}%" for i in range(10, 30)]
    table = learn_table(pd.DataFrame({"share": share, "y": range(20)}), "y", task="regression")
    new = pd.DataFrame({"share": [0.1, 0.25]})
    np.testing.assert_array_equal(table.inputs(new), table.inputs(pd.DataFrame({"share": ["10%", "25%"]})))
    with pytest.raises(InputError, match=r"holds 22.8 without % in row 1, but training had percents of 0.195"):
        table.inputs(pd.DataFrame({"share": [0.2, 22.8]}))


def test_several_odd_cells_are_not_said_to_be_one() -> None:
    table = learn_table(pd.DataFrame({"area": np.arange(20.0) + 0.5, "y": range(20)}), "y", task="regression")
    with pytest.warns(UserWarning, match=r"'area' holds 'big' and others in rows 1, 2, which is not a number; 2 such"):
        table.inputs(pd.DataFrame({"area": ["5.5", "big", "about 80"]}))
    with pytest.warns(UserWarning, match=r"'area' holds 'big' in rows 1, 2, which"):
        table.inputs(pd.DataFrame({"area": ["5.5", "big", "big"]}))


REFUSED = {
    "a_word_among_numbers": ([*(f"${c}" for c in TWENTY), "TBD"], None, r"holds 'TBD' \(line 22\), which is not a number in \$"),
    "one_value": (["5.5"] * 9, "regression", "the same value, 5.5, in every"),
    "one_class": (["a"] * 9, None, "a single value, a; there is nothing to learn"),
    "too_many_classes": ([f"w{i}" for i in range(30)], None, "30 different values in 30 rows, too many"),
    "text": (["a", "b"] * 9, "regression", "which is not a number"),
    "dates": ([f"2024-03-{i:02d}" for i in range(1, 29)], None, "too many to be classes"),
    "too_large": (["1e40", "2.5", "3.5"] * 3, "regression", "at most 1e"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_targets_that_cannot_be_learned_are_explained(name: str, tmp_path: Path) -> None:
    cells, task, words = REFUSED[name]
    pd.DataFrame({"n": np.arange(len(cells)) % 7, "y": cells}).to_csv(tmp_path / "t.csv", index=False)
    frame = read_table(tmp_path / "t.csv")
    with pytest.raises(InputError, match=words):
        learn_table(with_target(frame, "y", "t.csv"), "y", task=task, path="t.csv")  # type: ignore[arg-type]


def test_rows_without_a_target_are_left_out_and_counted() -> None:
    frame = pd.DataFrame({"n": [1, 2, 3, 4], "y": ["5.5", "?", None, "6.5"]})
    with pytest.warns(UserWarning, match=r"2 of 4 row\(s\).*'y'"):
        kept = with_target(frame, "y", "the table")
    assert kept["n"].tolist() == [1, 4]
    with pytest.raises(InputError, match="no row has a value"):
        with_target(frame[1:3], "y", "the table")


def test_what_is_said_of_columns_is_done_or_refused() -> None:
    frame = pd.DataFrame({"a": [1, 2, 3], "b": [3, 4, 9], "y": [0.5, 1.5, 2.5]})
    table = learn_table(frame, "y", drop=["a"])
    assert [c.read_as for c in table.columns] == ["left out", "number"]
    assert table.left_out == ()
    assert learn_table(frame, "y", ids=["a"]).beside == ("a",)
    with pytest.raises(InputError, match="has no column 'q';"):
        learn_table(frame, "y", drop=["q"])
    with pytest.raises(InputError, match="'y' is the target"):
        learn_table(frame, "y", drop=["y"])
    with pytest.raises(InputError, match="no column to learn from"):
        learn_table(frame[["y"]], "y")


def test_statistics_are_those_of_the_training_rows() -> None:
    frame = pd.DataFrame({"n": [1.0, 3.0, 500.0], "y": ["a", "b", "c"]})
    table = learn_table(frame, "y", rows=np.array([0, 1]))
    assert table.inputs(frame)[:2, 0].tolist() == [-1, 1]
    assert table.classes == ("a", "b", "c")


HOSTILE: dict[str, dict[str, Any]] = {
    "another_kind": {"kind": "Scale", "mean": 0.0, "std": 1.0},
    "an_unknown_kind": {"kind": "os.system"},
    "no_kind": {"columns": []},
    "columns_twice": {"columns": [{"kind": "LeftOutColumn", "name": "a", "reason": "r"}] * 2},
    "a_scale_of_zero": {"columns": [{"kind": "NumberColumn", "name": "a", "scale": {"kind": "Scale", "std": 0.0}}]},
    "no_number": {"columns": [{"kind": "NumberColumn", "name": "a", "scale": {"kind": "Scale"}, "fill": NAN}]},
    "values_twice": {"columns": [{"kind": "CategoryColumn", "name": "a", "values": ["x", "x"]}]},
    "a_long_name": {"columns": [{"kind": "LeftOutColumn", "name": "a" * 20_000, "reason": "r"}]},
    "many_values": {"columns": [{"kind": "CategoryColumn", "name": "a", "values": [str(i) for i in range(100_001)]}]},
    "classes_twice": {"task": "classification", "classes": ["a", "a"]},
    "no_classes": {"task": "classification"},
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_content_is_refused(name: str) -> None:
    from choral.base.errors import RunError

    content = HOSTILE[name] if name == "no_kind" else {"kind": "Table"} | HOSTILE[name]
    with pytest.raises((InputError, RunError)):
        of_kind(Table, content, "a file")
    with pytest.raises((InputError, RunError)):
        of_kind(Table, {"kind": "Table", "unit": 3}, "a file")


@pytest.mark.parametrize(
    ("cells", "lines"),
    [
        (["3,141", "2,718", "9,999"], "lines 2, 3, 4"),  # nothing tells thousands from decimals
        (["3.142", "2.718", "51,257", "1.5"], "line 4"),
    ],
)
def test_a_comma_that_may_be_a_decimal_one_is_named(cells: list[str], lines: str, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=f"{lines}, which is read with its separator between thousands, but may be"):
        table_of(cells, tmp_path)


def test_a_target_with_such_commas_is_named_too(tmp_path: Path) -> None:
    pd.DataFrame({"c": [1.5, 2.25, 3], "y": ["3,141", "2,718", "9,999"]}).to_csv(tmp_path / "t.csv", index=False)
    with pytest.warns(UserWarning, match="column 'y' holds '3,141' in lines 2, 3, 4,"):
        learn_table(read_table(tmp_path / "t.csv"), "y", task="regression", path="t.csv")
