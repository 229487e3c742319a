"""A large table is predicted chunk by chunk, with what it gives as a whole."""

import contextlib

import pandas as pd
import pytest
from tests.cli.shell import choral, sentence

from choral import load
from choral.deploy import stream


@pytest.fixture
def houses(tmp_path):
    from choral.tables.fit import fit_table

    rows = range(60)
    frame = pd.DataFrame(
        {
            "size": [30.0 + i for i in rows],
            "rooms": [None if i % 7 == 0 else i % 4 for i in rows],
            "town": ["Ulm", "Bonn", "Kiel"] * 20,
            "price": [1000.0 * i for i in rows],
        }
    )
    fit_table(frame, "price", members=2, epochs=2).save(tmp_path / "houses.choral")
    frame.to_parquet(tmp_path / "new.parquet")
    return tmp_path


def test_chunks_give_what_the_whole_file_gives(houses, monkeypatch):
    whole, parts = houses / "whole.parquet", houses / "parts.parquet"
    call = ["predict", houses / "houses.choral", houses / "new.parquet", "--keep-columns", "--level", 0.9, "--out"]
    choral(*call, whole)
    monkeypatch.setattr(stream, "CHUNK", 16)
    monkeypatch.setattr(stream, "LARGE", 100)
    assert "60 predictions written" in choral(*call, parts).stderr
    found, expected = pd.read_parquet(parts), pd.read_parquet(whole)
    pd.testing.assert_frame_equal(found, expected, check_dtype=False, rtol=1e-5)
    inner = load(houses / "houses.choral").predict(pd.read_parquet(houses / "new.parquet")).to_frame(level=0.9)
    pd.testing.assert_frame_equal(
        found[["low_90", "high_90"]], inner[["low_90", "high_90"]], check_dtype=False, rtol=1e-5
    )
    assert sorted(p.name for p in houses.iterdir()) == [
        "houses.choral",
        "new.parquet",
        "parts.parquet",
        "whole.parquet",
    ]


@pytest.mark.parametrize("ends", [".csv", ".tsv.gz"])
def test_text_too_and_the_other_way_round(ends, houses, monkeypatch):
    frame = pd.read_parquet(houses / "new.parquet").drop(columns="price").assign(code="007")
    frame["town"] = frame["town"].replace("Kiel", "Köln")
    frame.to_csv(houses / f"new{ends}", index=False, sep="\t" if "tsv" in ends else ",", encoding="cp1252")
    call = ["predict", houses / "houses.choral", "--keep-columns"]
    choral(*call, houses / f"new{ends}", "--out", houses / f"whole{ends}")
    monkeypatch.setattr(stream, "CHUNK", 16)
    monkeypatch.setattr(stream, "LARGE", 100)
    seen, write = [], stream.write_bytes
    monkeypatch.setattr(stream, "write_bytes", lambda path, content: (seen.append(path.name), write(path, content)))
    choral(*call, houses / f"new{ends}", "--out", houses / f"parts{ends}")
    assert len(seen) == 5
    read = {"sep": "\t" if "tsv" in ends else ",", "dtype": {"code": str}}
    expected = pd.read_csv(houses / f"whole{ends}", **read)
    assert expected["code"].tolist() == ["007"] * 60
    pd.testing.assert_frame_equal(pd.read_csv(houses / f"parts{ends}", **read), expected, rtol=1e-5)
    choral(*call, houses / f"new{ends}", "--out", houses / "parts.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(houses / "parts.parquet"), expected, check_dtype=False, rtol=1e-5)


def test_a_mistake_leaves_no_file(houses, monkeypatch):
    monkeypatch.setattr(stream, "CHUNK", 16)
    monkeypatch.setattr(stream, "LARGE", 100)
    pd.read_parquet(houses / "new.parquet").drop(columns="size").to_parquet(houses / "less.parquet")
    done = choral("predict", houses / "houses.choral", houses / "less.parquet", "--out", houses / "p.parquet", expect=2)
    assert "has no column 'size'" in sentence(done)
    assert not [p for p in houses.iterdir() if "p.parquet" in p.name and p.name != "less.parquet"]


def test_a_killed_run_goes_on_and_another_one_starts_again(houses, monkeypatch):
    call = ["predict", houses / "houses.choral", houses / "new.parquet", "--out", houses / "p.parquet"]
    monkeypatch.setattr(stream, "CHUNK", 16)
    monkeypatch.setattr(stream, "LARGE", 100)
    made, write = [], stream.write_bytes

    def dying(path, content):
        if path.suffix == ".parquet":
            if len(made) == 2:
                raise KeyboardInterrupt
            made.append(path.name)
        write(path, content)

    monkeypatch.setattr(stream, "write_bytes", dying)
    with contextlib.suppress(BaseException):
        choral(*call)
    assert made == ["000000.parquet", "000001.parquet"]
    assert not (houses / "p.parquet").exists()
    seen = []
    monkeypatch.setattr(stream, "write_bytes", lambda path, content: (seen.append(path.name), write(path, content)))
    choral(*call)
    assert seen == ["000002.parquet", "000003.parquet"]  # what was there is kept
    assert pd.read_parquet(houses / "p.parquet")["row"].tolist() == list(range(60))
    assert not list(houses.glob(".p.parquet*"))
    seen.clear()
    choral(*call, "--id", "town")
    assert seen == ["about.json", *(f"{i:06d}.parquet" for i in range(4))]
    assert pd.read_parquet(houses / "p.parquet")["town"].tolist() == ["Ulm", "Bonn", "Kiel"] * 20


def test_columns_that_begin_without_values_keep_their_type(tmp_path):
    frame = pd.DataFrame({"a": [None] * 70_000 + ["word"] * 10})
    frame.to_parquet(tmp_path / "in.parquet")
    told = []
    rows = stream.by_chunks(
        tmp_path / "in.parquet",
        tmp_path / "out.parquet",
        lambda chunk, first: chunk.assign(row=range(first, first + len(chunk))),
        key="",
        tell=lambda *numbers: told.append(numbers),
    )
    assert rows == 70_010
    assert told == [(stream.CHUNK,), (rows,)]
    assert pd.read_parquet(tmp_path / "out.parquet")["a"].tolist()[-1] == "word"
