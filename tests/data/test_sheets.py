"""Files of tables: what stands above the header and below it that is no row."""

import re

import pytest

from choral.base.errors import InputError
from choral.data.sheets import read_table
from choral.data.tables import learn_table

PLAIN = "x,y\n1,2\n3,4\n"
NOTED = {
    "sep": ("sep=;\n" + PLAIN.replace(",", ";"), "is read with ';' between its cells, as its first line says"),
    "sep of another mark": ("SEP=:\r\n" + PLAIN.replace(",", ":"), "is read with ':' between its cells, as its first"),
    "quoted sep": ('"sep=;"\n' + PLAIN.replace(",", ";"), "as its first line says"),
    "comments": (
        "# exported 2024-01-01, by hand\n#\n\n# by logger\n" + PLAIN,
        r"3 line\(s\) before the header begin with #",
    ),
}


@pytest.mark.parametrize("name", NOTED)
def test_notes_before_the_header_are_passed_over_and_said(name, tmp_path):
    text, said = NOTED[name]
    (tmp_path / "t.csv").write_text(text)
    with pytest.warns(UserWarning, match=said):
        found = read_table(tmp_path / "t.csv")
    assert found.to_dict("list") == {"x": ["1", "3"], "y": ["2", "4"]}


def test_a_header_that_begins_with_a_hash_is_one(tmp_path):
    (tmp_path / "t.csv").write_text("#x,y\n1,2\n3,4\n")
    assert list(read_table(tmp_path / "t.csv").columns) == ["#x", "y"]
    (tmp_path / "t.csv").write_text("# of a logger\n#x,y\n1,2\n3,4\n")
    with pytest.warns(UserWarning, match=r"1 line\(s\) before"):
        assert list(read_table(tmp_path / "t.csv").columns) == ["#x", "y"]
    (tmp_path / "t.csv").write_text("x,y\n#1,2\n3,4\n")
    assert read_table(tmp_path / "t.csv")["x"].tolist() == ["#1", "3"]


ROWS = "".join(f"{'abcd'[i % 4]},{i % 7 + 0.5},{3 * i},{i + 0.25}\n" for i in range(40))
NAMES = "kind,len,mass,price\n"
TITLED = {
    "a title": ("Sales report 2023\n", "line 1 ('Sales report 2023') stands above the header and is passed over"),
    "and a blank line": ("Sales report 2023\n\n", "line 1 ('Sales report 2023') stands above the header"),
    "with marks behind it": ("Sales report 2023,,,\n", "line 1 ('Sales report 2023') stands above the header"),
    "with a comma": ("Report of March, 2023\n", "line 1 ('Report of March, 2023') stands above the header"),
    "several": ("Sales\nby Anna,2023\n", "lines 1 to 2 ('Sales', ...) stand above the header and are passed over"),
    "below notes": ("# a note\nSales\n", "line 2 ('Sales') stands above the header and is passed over"),
}


@pytest.mark.filterwarnings("ignore:.*is read with|.*begin with #")
@pytest.mark.parametrize("mark", [",", ";", "\t"])
@pytest.mark.parametrize("name", TITLED)
def test_titles_above_the_header_are_passed_over_and_said(name, mark, tmp_path):
    title, said = TITLED[name]
    (tmp_path / "t.csv").write_text((title + NAMES + ROWS).replace(",", mark))
    with pytest.warns(UserWarning, match=re.escape(said.replace("March,", f"March{mark.strip()}"))):
        found = read_table(tmp_path / "t.csv")
    assert list(found.columns) == NAMES.strip().split(",")
    assert len(found) == 40


UNTITLED = {
    "one column": ("x\n1\n2\n3\n", ["x"]),
    "words in one column": ("x\nhello\nyou\nthere\n", ["x"]),
    "rows that have names": (",town\na,Ulm\nb,Bonn\n", ["Unnamed: 0", "town"]),
    "two columns, one without a name": ("x,\n1,2\n3,4\n", None),
    "a header that is too short": ("x,y,z\n1,2,3,4\n1,2,3,4\n", None),
    "no header": ("Sales\n1,2,3\n4,5,6\n", None),
}


@pytest.mark.parametrize("name", UNTITLED)
def test_a_first_line_that_is_no_title_is_the_header(name, tmp_path):
    text, columns = UNTITLED[name]
    (tmp_path / "t.csv").write_text(text)
    if columns is None:
        with pytest.raises(InputError, match=r"line 2 has . cells, but the header \(line 1\) names . column"):
            read_table(tmp_path / "t.csv")
    else:
        assert list(read_table(tmp_path / "t.csv").columns) == columns


UNITS = {
    "in brackets": (",[m],[kg],[EUR]", "'[m]', '[kg]', '[EUR]'"),
    "in parentheses": ("-,(m),(10^3 kg),()", "'(m)', '(10^3 kg)', '()'"),
    "alone": (",m,kg,EUR", "'m', 'kg', 'EUR'"),
    "of some columns": (",,%,", "'%'"),
    "types": ("text,float,int,float", "'text', 'float', 'int', ..."),
}


@pytest.mark.parametrize("name", UNITS)
def test_a_line_of_units_below_the_header_is_passed_over_and_said(name, tmp_path):
    line, said = UNITS[name]
    (tmp_path / "t.csv").write_text(NAMES + line + "\n" + ROWS)
    said = f"line 2 ({said}) holds units or types and is passed over"
    with pytest.warns(UserWarning, match=re.escape(said)):
        found = read_table(tmp_path / "t.csv")
    assert found["mass"].tolist()[:2] == ["0", "3"]
    (tmp_path / "t.csv").write_text(f"Sales\n{NAMES}{line}\n{ROWS}e,many,1,2\n")
    with pytest.warns(UserWarning, match="passed over|not a number") as heard:
        learn_table(read_table(tmp_path / "t.csv"), "price")
    assert "column 'len' holds 'many' in line 44," in str(heard[-1].message)


@pytest.mark.parametrize("line", ["a,,,", "a,1.5,kg,3", "a,unknown,,", "a,(3),,", "b,?,?,?"])
def test_a_row_below_the_header_that_holds_values_is_one(line, tmp_path):
    (tmp_path / "t.csv").write_text(f"{NAMES}{line}\n{ROWS}")
    assert len(read_table(tmp_path / "t.csv")) == 41


def test_a_header_that_comes_again_is_passed_over_and_said(tmp_path):
    (tmp_path / "t.csv").write_text(NAMES + ROWS + NAMES + ROWS)
    with pytest.warns(UserWarning, match=r"1 row\(s\) repeat the header \(line 42\) and are passed over"):
        assert len(read_table(tmp_path / "t.csv")) == 80


def book(path, rows, sheets=()):
    """A workbook of one sheet or more."""
    made = pytest.importorskip("openpyxl").Workbook()
    for row in rows:
        made.active.append(row)
    for name in sheets:
        made.create_sheet(name)
    made.save(path)
    return path


TYPED = [["abcd"[i % 4], i % 7 + 0.5, 3 * i, i + 0.25] for i in range(40)]
HEADER = NAMES.strip().split(",")
BOOKS = {
    "a title": ([["Sales"], HEADER, *TYPED], "line 1 ('Sales') stands above the header and is passed over"),
    "and a blank line": ([["Sales"], [], HEADER, *TYPED], "line 1 ('Sales') stands above the header"),
    "two headers": ([["size", None, "cost"], HEADER, *TYPED], "line 1 ('size, cost') stands above the header"),
    "units": ([HEADER, [None, "[m]", "[kg]", "[EUR]"], *TYPED], "line 2 ('[m]', '[kg]', '[EUR]') holds units"),
}


@pytest.mark.parametrize("name", BOOKS)
def test_titles_and_units_in_workbooks_are_passed_over_and_said(name, tmp_path):
    rows, said = BOOKS[name]
    path = book(tmp_path / "t.xlsx", rows)
    with pytest.warns(UserWarning, match=re.escape(said)):
        found = read_table(path)
    assert list(found.columns) == HEADER
    assert [kind.kind for kind in found.dtypes][1:] == ["f", "i", "f"]
    assert found.to_numpy().tolist() == TYPED


def test_workbooks_are_read_as_files_of_text_are(tmp_path):
    with pytest.raises(InputError, match="more than one column named 'len'"):
        read_table(book(tmp_path / "t.xlsx", [["kind", "len", "len", "price"], *TYPED]))
    with pytest.warns(UserWarning, match=r"has 3 sheets; the first, 'Sheet', is read"):
        read_table(book(tmp_path / "t.xlsx", [HEADER, *TYPED], sheets=["b", "c"]))
    gaps = [HEADER, *TYPED[:20], [None] * 4, *TYPED[20:], [None] * 4]
    assert len(read_table(book(tmp_path / "t.xlsx", gaps))) == 40
    words = [["kind", "price"], *[[("None", "NA", "x")[i % 3], i + 0.5] for i in range(30)]]
    assert read_table(book(tmp_path / "t.xlsx", words))["kind"].tolist()[:3] == ["None", "NA", "x"]
    wide = [HEADER, *TYPED * 2, ["a", 1, 2, 3, "more"]]
    assert list(read_table(book(tmp_path / "t.xlsx", wide)).columns) == [*HEADER, "Unnamed: 4"]
    assert list(read_table(book(tmp_path / "t.xlsx", [[], HEADER, *TYPED])).columns) == HEADER
    with pytest.raises(InputError, match="has no rows"):
        read_table(book(tmp_path / "t.xlsx", []))
    years = [["kind", 2019, 2020], *[["a", i, i + 0.5] for i in range(9)]]
    assert list(read_table(book(tmp_path / "t.xlsx", years)).columns) == ["kind", "2019", "2020"]


def test_merged_cells_below_the_header_are_said(tmp_path):
    made = pytest.importorskip("openpyxl").Workbook()
    for row in [["Sales"], HEADER, *TYPED]:
        made.active.append(row)
    made.active.merge_cells("A1:D1")
    made.save(tmp_path / "t.xlsx")
    with pytest.warns(UserWarning, match="above the header") as said:
        read_table(tmp_path / "t.xlsx")
    assert len(said) == 1
    made.active.merge_cells("A3:A6")
    made.save(tmp_path / "t.xlsx")
    with pytest.warns(UserWarning, match="above the header|merged cells") as said:
        found = read_table(tmp_path / "t.xlsx")
    assert found["kind"].isna().tolist()[:5] == [False, True, True, True, False]
    assert "has 1 range(s) of merged cells below the header (A3:A6), of which the first cell" in str(said[1].message)
