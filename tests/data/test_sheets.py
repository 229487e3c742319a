"""Files of tables: notes above the header."""

import pytest

from choral.data.sheets import read_table

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
