import pickle
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import choral
from choral import models
from choral.base.errors import RunError
from choral.engine.files import is_pickle, pack_tensors, unpack_tensors, write_bytes
from choral.fit import fit
from choral.plan import Adam
from choral.recipes import make
from choral.recipes.training import Training

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
RECIPE = make("deep_ensemble", budget=2, members=2, training=Training(optimizer=Adam(), lr=0.01))


def own():
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))


@given(st.integers(0, 400))
@settings(max_examples=40, deadline=None)
def test_any_header_length_is_read_back_and_never_taken_for_a_pickle(length):
    tensors = {"a": torch.arange(3.0), "b": torch.zeros(0, 2), "c": torch.tensor(True)}
    found, header = unpack_tensors(pack_tensors(tensors, {"text": "x" * length}), "test")
    assert header == {"format": 2, "text": "x" * length}
    assert all(torch.equal(found[n], tensors[n]) for n in tensors)


def test_no_length_of_a_header_is_taken_for_a_pickle():
    found = [n for n in range(1 << 16) for high in (0, 3 << 16) if is_pickle(struct.pack("<Q", high + n) + b'{"')]
    assert not found
    assert is_pickle(pickle.dumps({"a": 1}))


def test_a_file_whose_header_length_begins_as_a_zip_is_read_back():
    wanted = int.from_bytes(b"PK", "little")  # 19,280 bytes
    spare = wanted - struct.unpack("<Q", pack_tensors({"a": torch.ones(2)}, {"text": ""})[:8])[0]
    data = next(
        made
        for length in range(spare - 16, spare + 16)
        if (made := pack_tensors({"a": torch.ones(2)}, {"text": "x" * length}))[:2] == b"PK"
    )
    assert torch.equal(unpack_tensors(data, "test")[0]["a"], torch.ones(2))


def test_equal_tensors_give_equal_bytes_whatever_their_order():
    a, b = torch.ones(2), torch.zeros(3)
    assert pack_tensors({"a": a, "b": b}) == pack_tensors({"b": b.clone(), "a": a.clone()})


def test_nothing_is_left_behind_when_writing_fails(tmp_path):
    with pytest.raises(TypeError):
        write_bytes(tmp_path / "file", "text")  # type: ignore[arg-type]  # wrong on purpose
    assert not (tmp_path / "file").exists()


def test_pickles_cut_files_and_other_files_are_refused(tmp_path):
    ensemble = fit(lambda: models.mlp(3, 1), (X, X[:, :1]), RECIPE)
    path = tmp_path / "e.choral"
    ensemble.save(path)
    data = path.read_bytes()
    for cut in (len(data) // 2, len(data) - 1, 20, 3, 0):
        (tmp_path / "cut").write_bytes(data[:cut])
        with pytest.raises(RunError, match="was cut short, damaged or"):
            choral.load(tmp_path / "cut")
    torch.save(ensemble._network(0).state_dict(), tmp_path / "w.pt")
    (tmp_path / "w.pkl").write_bytes(pickle.dumps({"a": 1}))
    for name in ("w.pt", "w.pkl"):
        with pytest.raises(RunError, match="is a pickle"):
            choral.load(tmp_path / name)
    with pytest.raises(RunError, match="does not exist"):
        choral.load(tmp_path / "nowhere")
    with pytest.raises(RunError, match=r"no plan\.json"):
        choral.load(tmp_path)


def test_a_network_of_the_user_s_own_needs_its_build_again(tmp_path):
    ensemble = fit(own, (X, X[:, :1]), RECIPE)
    ensemble.save(tmp_path / "e.choral")
    with pytest.raises(RunError, match=r"choral.load\(path, build=...\)"):
        choral.load(tmp_path / "e.choral")
    assert torch.equal(choral.load(tmp_path / "e.choral", build=own).outputs(X), ensemble.outputs(X))
    with pytest.raises(RunError, match=r"0.weight: network \(5, 3\), file \(4, 3\)"):
        choral.load(
            tmp_path / "e.choral",
            build=lambda: torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1)),
        )


def test_an_unfinished_run_folder_says_so(tmp_path):
    class Stop(Exception):
        pass

    def stop(event):
        if event["kind"] == "collected":
            raise Stop

    with pytest.raises(Stop):
        fit(own, (X, X[:, :1]), RECIPE, run_dir=tmp_path, compute=choral.Compute(executor="sequential"), callbacks=stop)
    with pytest.raises(
        RunError,
        match=r"1 of 2 networks are missing \(numbers 1\);.*choral.load\(path, partial=True\)",
    ):
        choral.load(tmp_path, build=own)
