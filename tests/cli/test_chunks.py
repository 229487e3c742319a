"""A large parquet file is predicted chunk by chunk, with what it gives as a whole."""

import pandas as pd
import pytest
from tests.cli.shell import choral, sentence

from choral.cli import chunks


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
    call = ["predict", houses / "houses.choral", houses / "new.parquet", "--keep-columns", "--out"]
    choral(*call, whole)
    monkeypatch.setattr(chunks, "CHUNK", 16)
    assert "60 predictions written" in choral(*call, parts).stderr
    found, expected = pd.read_parquet(parts), pd.read_parquet(whole)
    pd.testing.assert_frame_equal(found, expected, check_dtype=False, rtol=1e-5)
    assert sorted(p.name for p in houses.iterdir()) == [
        "houses.choral",
        "new.parquet",
        "parts.parquet",
        "whole.parquet",
    ]


def test_a_mistake_leaves_no_file(houses, monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK", 16)
    pd.read_parquet(houses / "new.parquet").drop(columns="size").to_parquet(houses / "less.parquet")
    done = choral("predict", houses / "houses.choral", houses / "less.parquet", "--out", houses / "p.parquet", expect=2)
    assert "has no column 'size'" in sentence(done)
    assert not [p for p in houses.iterdir() if "p.parquet" in p.name and p.name != "less.parquet"]
