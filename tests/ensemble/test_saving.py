"""What is read from files: damaged bits, hostile headers, old formats, and writers at work at the same time."""

import copy
import json
import multiprocessing
import os
import struct
import time
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import choral
from choral import models
from choral.base.errors import ChoralError, InputError, RunError
from choral.calibration import ConformalSets, StackingWeights, Temperature
from choral.comparison.compare import compare
from choral.data.problems import read_arrays
from choral.engine.files import pack_tensors, read_json, unpack_tensors, write_bytes, write_json
from choral.fit import fit
from choral.plan import Adam, Collect, Reset, Train, fork, seq
from choral.recipes import make
from choral.recipes.recipe import Recipe
from choral.recipes.training import Training
from choral.tables.columns import CategoryColumn, NumberColumn, Scale
from choral.tables.table import Table

G = torch.Generator().manual_seed(0)
X, Y = torch.randn(40, 3, generator=G), torch.randint(0, 2, (40,), generator=G)
QUICK = Training(optimizer=Adam(), lr=0.01)


def build():
    return models.mlp(3, 2, hidden=(4,))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    ensemble = fit(build, (X, Y), make("deep_ensemble", budget=2, members=2, training=QUICK))
    path = tmp_path_factory.mktemp("saved") / "e.choral"
    ensemble.with_posthoc(Temperature(temperatures=(1.5,)), StackingWeights(weights=(0.3, 0.7))).save(path)
    return path


def unsealed(data, tensors=None, change=None):
    """Return the bytes of a file with another header, sealed as a maker of hostile files would."""
    old, header = unpack_tensors(data, "test")
    header = copy.deepcopy(header)
    if change is not None:
        change(header)
    return pack_tensors(old if tensors is None else tensors, header)


def without_seal(data):
    """Return the bytes of a file with the same tensors and header, but no checksum."""
    from safetensors.torch import save

    tensors, header = unpack_tensors(data, "test")
    return save(tensors, metadata={"choral": json.dumps(header)})


def test_every_bit_of_a_file_counts(saved, tmp_path):
    data = saved.read_bytes()
    path = tmp_path / "e.choral"
    for place in [*range(0, len(data), 37), *range(len(data) - 3, len(data))]:
        path.write_bytes(data[:place] + bytes([data[place] ^ (1 << place % 8)]) + data[place + 1 :])
        with pytest.raises(RunError):
            choral.load(path)


def test_what_is_no_file_is_not_replaced_and_leftovers_of_killed_saves_are_swept(saved, tmp_path):
    ensemble = choral.load(saved, build)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RunError, match="device or a folder"):
        ensemble.save(tmp_path / "pipe")
    with pytest.raises(RunError, match="null"):
        ensemble.save(str(tmp_path / "a") + "\0b")
    old, young, other = (tmp_path / f".{n}.{'0' * 15}{i}.part" for i, n in enumerate(("e", "e", "f")))
    for path in (old, young, other):
        path.write_bytes(b"")
    os.utime(old, (0, 0))
    os.utime(other, (0, 0))
    ensemble.save(tmp_path / "e")
    assert (old.exists(), young.exists(), other.exists()) == (False, True, True)


def test_outputs_that_are_no_numbers_are_an_error_that_names_the_rows():
    torch.manual_seed(0)  # weights of 1e15 times inputs of 1e30 overflow unless all units are closed
    networks = [build(), build()]
    for parameter in networks[1].parameters():
        parameter.data *= 1e15
    ensemble = choral.ensemble_of(networks, data=(X, Y))
    x = X[:6].clone()
    x[4] *= 1e30
    with pytest.raises(InputError, match=r"1 of 6 rows .*: \[4\]; of networks \[1\]"):
        ensemble.predict(x)
    networks[1][-1].weight.data[0, 0] = float("nan")
    with pytest.raises(InputError, match="NaN in its weights"):
        choral.ensemble_of(networks, data=(X, Y))


def test_the_same_ensemble_gives_the_same_bytes(saved, tmp_path):
    choral.load(saved).save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == saved.read_bytes()


def test_files_without_a_checksum_or_of_another_format_are_refused(saved, tmp_path):
    path = tmp_path / "e.choral"
    path.write_bytes(without_seal(saved.read_bytes()))
    with pytest.raises(RunError, match="do not have its checksum"):
        choral.load(path)
    fit(build, (X, Y), make("deep_ensemble", budget=2, members=2, training=QUICK), run_dir=tmp_path / "run")
    plan = tmp_path / "run" / "plan.json"
    plan.write_text(json.dumps({k: v for k, v in json.loads(plan.read_text()).items() if k != "sealed"}))
    with pytest.raises(RunError, match="does not have its checksum"):
        choral.load(tmp_path / "run")
    write_bytes(path, unsealed(saved.read_bytes(), change=lambda header: header.update(format=3)))
    with pytest.raises(RunError, match="has format 3"):
        choral.load(path)


def test_every_member_is_checked_not_only_the_first(saved, tmp_path):
    path = tmp_path / "e.choral"
    tensors, _ = unpack_tensors(saved.read_bytes(), "test")
    for change in (
        lambda t: t.update({"00001/params/linear1.weight": torch.zeros(5, 3)}),
        lambda t: t.update({"00001/params/extra": torch.zeros(5, 3)}),
        lambda t: t.pop("00001/params/linear1.bias"),
        lambda t: t.update({"00001/params/linear1.bias": torch.zeros(4, dtype=torch.float64)}),
        lambda t: t.update({"00001/buffers/mean": torch.zeros(4)}),
    ):
        changed = dict(tensors)
        change(changed)
        path.write_bytes(unsealed(saved.read_bytes(), changed))
        with pytest.raises(RunError, match=r"does not fit .*network 1 of it"):
            choral.load(path)


def put(*keys):
    """Return a change of a header: the last of the arguments is put at the place the others name."""

    def change(header):
        *way, last, value = keys
        for key in way:
            header = header[key]
        header[last] = value

    return change


BIG = 10**9
HOSTILE = {
    "draws": (put("recipe", "structure", "draws", BIG), "draws = 1,000,000,000"),
    "negative draws": (put("recipe", "structure", "draws", -1), "draws = -1"),
    "members": (put("recipe", "structure", "members", BIG), "members = 1,000,000,000"),
    "branches": (put("recipe", "plan", "branches", BIG), "branches = 1,000,000,000"),
    "layers": (put("network", "arguments", "hidden", [4] * 10**6), "hidden: layers = 1,000,000, but 0 to 2,000"),
    "widths": (put("network", "arguments", "hidden", [40_000, 40_000]), "parameters = 6,401,120,008"),
    "inputs": (put("network", "arguments", "inputs", 10**15), "network.inputs = 1,000,000,000,000,000"),
    "forms": (put("forms", [None] * 10**6), "lists 1,000,000 networks in forms but holds tensors of 2"),
    "text": (put("network", "arguments", "hidden", "abc"), "hidden is 'abc'"),
    "name": (put("network", "name", "os.system"), "not in the model zoo"),
    "combine": (put("recipe", "combine", "nonsense"), "combine is 'nonsense'"),
    "temperature": (put("posthoc", 0, "temperatures", [0.0]), "temperatures is"),
    "nan temperature": (put("posthoc", 0, "temperatures", [float("nan")]), "temperatures is .nan"),
    "nan weights": (put("posthoc", 1, "weights", [float("nan"), 1.0]), "weights is .nan"),
    "weights of text": (put("posthoc", 1, "weights", ["a", "b"]), "weights is .*give a"),
    "kind": (put("recipe", "plan", "kind", []), r"kind \[\] is not known"),
    "another kind": (
        put("recipe", "plan", {"kind": "Temperature", "temperatures": [1.0]}),
        "plan is .*give a Phase",
    ),
    "an empty plan": (put("recipe", "plan", {"kind": "Phase"}), "holds a recipe that cannot run"),
    "no recipe": (lambda header: header.pop("recipe"), "recipe is missing"),
    "a list": (put("recipe", [1]), r"recipe is \[1\]"),
    "a likelihood": (put("likelihood", {"kind": "Adam"}), "holds a Adam where a Likelihood belongs"),
    "scale": (
        put(
            "table",
            {
                "kind": "Table",
                "columns": [{"kind": "NumberColumn", "name": "a", "scale": {"kind": "Scale", "mean": 0.0, "std": 0.0}}],
            },
        ),
        "std is 0.0",
    ),
    "columns": (put("table", {"kind": "Table", "columns": [{"name": "a"}]}), "columns is .*give a"),
    "an old table": (put("table", {"target_mean": 0.0, "target_std": 1.0}), "kind None"),
    "another's table": (put("table", {"kind": "Scale"}), "holds a Scale where a Table belongs"),
    "too many classes": (
        put("table", {"kind": "Table", "task": "classification", "classes": ["a"] * 200_000}),
        "has 200,000 values, 1 of them",
    ),
    "form": (put("forms", [{"axes": 3, "attributes": {}}, None]), "a form is a dict with 'axes'"),
    "axis": (put("forms", [{"axes": {"linear1.weight": {"x": [0]}}, "attributes": {}}, None]), "names the axis 'x'"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_headers_are_one_sentence_at_once(case, saved, tmp_path):
    change, message = HOSTILE[case]
    path = tmp_path / "e.choral"
    path.write_bytes(unsealed(saved.read_bytes(), change=change))
    started = time.monotonic()
    with pytest.raises(RunError, match=message) as caught:
        choral.load(path)
    assert time.monotonic() - started < 60
    assert "\n" not in str(caught.value)


STRANGE: tuple[object, ...] = (
    None,
    [],
    {},
    "x",
    -1,
    0,
    1e30,
    10**12,
    10**400,
    float("nan"),
    True,
    [None],
    {"kind": "Collect"},
    ["a"] * 3,
)


def places(content, way=()):
    """Yield the way to every value of nested dicts and lists."""
    pairs = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in pairs:
        yield (*way, key)
        yield from places(value, (*way, key))


def test_headers_changed_anywhere_and_sealed_again_give_no_other_error(saved, tmp_path):
    tensors, header = unpack_tensors(saved.read_bytes(), "test")
    columns = (NumberColumn(name="a", scale=Scale()), CategoryColumn(name="b", values=("x", "y")))
    header |= {"table": Table(columns=columns, task="classification", classes=("a", "b")).to_dict()}
    path = tmp_path / "e.choral"
    refused = 0
    for number, way in enumerate(places(header)):
        for strange in (STRANGE[number % len(STRANGE)], "gone"):
            changed = copy.deepcopy(header)
            holder = changed
            for key in way[:-1]:
                holder = holder[key]
            if strange == "gone":
                del holder[way[-1]]
            else:
                holder[way[-1]] = strange
            path.write_bytes(pack_tensors(tensors, changed))
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    choral.load(path).predict(X)
            except ChoralError:
                refused += 1
    assert refused > 100


def test_a_fork_of_forks_in_a_plan_is_counted_not_walked(tmp_path):
    recipe = Recipe(name="r", plan=seq(Reset(), Train(epochs=1), fork(2, Train(epochs=1), Collect())))
    fit(build, (X, Y), recipe, run_dir=tmp_path)
    plan = read_json(tmp_path / "plan.json")
    other = copy.deepcopy(plan)
    other["identity"]["recipe"] = {"kind": "Collect"}
    write_json(tmp_path / "plan.json", other)
    with pytest.raises(RunError, match="holds a Collect where a Recipe belongs"):
        choral.load(tmp_path)
    inner = plan["identity"]["recipe"]["plan"]["phases"][2]
    inner["body"] = {"kind": "Fork", "branches": 900_000, "body": inner["body"]}
    write_json(tmp_path / "plan.json", plan)
    with pytest.raises(RunError, match="branches = 900,000"):
        choral.load(tmp_path)


def test_a_header_that_says_it_is_longer_than_the_file_is_refused(tmp_path):
    for data in (struct.pack("<Q", 2**63) + b"{}", struct.pack("<Q", 10**6) + b"[" * 10**6, b"", b"{}", b"\x00" * 50):
        (tmp_path / "e.choral").write_bytes(data)
        with pytest.raises(RunError):
            choral.load(tmp_path / "e.choral")


def test_values_that_cannot_be_are_refused_when_they_are_made():
    plan = seq(Reset(), Train(epochs=1), Collect())
    nan = float("nan")
    for make_it in (
        lambda: Recipe(name="r", plan=plan, combine="median"),
        lambda: Temperature(temperatures=(nan,)),
        lambda: Temperature(temperatures=(0.0,)),
        lambda: Temperature(temperatures=()),
        lambda: StackingWeights(weights=(nan, 1.0)),
        lambda: StackingWeights(weights=(0.0, 0.0)),
        lambda: StackingWeights(weights=(-0.5, 1.5)),
        lambda: ConformalSets(threshold=nan, level=0.9),
        lambda: ConformalSets(threshold=0.5, level=1.5),
    ):
        with pytest.raises(InputError):
            make_it()


def _save_often(path, seed, times):
    torch.set_num_threads(1)
    data = pack_tensors({"a": torch.full((100_000,), float(seed))})
    for _ in range(times):
        write_bytes(path, data)


def test_two_processes_saving_one_path_both_succeed_with_a_whole_file(tmp_path):
    path = tmp_path / "e.choral"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_save_often, args=(path, seed, 60)) for seed in (1, 2)]
    for writer in writers:
        writer.start()
    seen = 0
    while any(w.is_alive() for w in writers):
        if path.exists():
            tensors, _ = unpack_tensors(path.read_bytes(), "test")
            assert float(tensors["a"].std()) == 0
            seen += 1
    assert [w.exitcode for w in writers] == [0, 0]
    assert seen
    assert [p.name for p in tmp_path.iterdir()] == ["e.choral"]


def test_nothing_is_written_through_links(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    run = tmp_path / "run"
    recipe = make("single", budget=2, training=QUICK)
    run.mkdir()
    (run / "members").symlink_to(outside)
    with pytest.raises(RunError, match="members is a link that leads out of"):
        fit(build, (X, Y), recipe, run_dir=run)
    (run / "members").unlink()
    for name in ("log.jsonl", ".lock"):
        (run / name).unlink()
        (run / name).symlink_to(outside / "stolen")
        with pytest.raises(RunError, match="it is a link"):
            fit(build, (X, Y), recipe, run_dir=run)
        (run / name).unlink()
    (outside / "kept").write_text("mine")
    (run / "results.json").symlink_to(outside / "kept")
    fit(build, (X, Y), recipe, run_dir=run)
    assert sorted(p.name for p in outside.iterdir()) == ["kept"]
    assert (outside / "kept").read_text() == "mine"
    (run / "results.json.part").symlink_to(outside / "kept")
    (run / "figures").symlink_to(outside)
    with pytest.raises(RunError, match="figures is a link"):
        write_bytes(run / "figures" / "a.svg", b"x", within=run)
    link = tmp_path / "linked"  # a run folder that is itself a link is the user's own choice
    link.symlink_to(run)
    assert choral.load(link).members == 1
    fit(build, (X, Y), recipe, run_dir=link)


def test_a_write_that_fails_is_a_sentence_and_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"cannot be written \(No"):
        write_bytes(tmp_path / "a", b"x")
    assert not list(tmp_path.iterdir())


def test_names_that_would_lead_out_of_the_folder_are_refused(tmp_path):
    recipe = Recipe(name="../../escape", plan=seq(Reset(), Train(epochs=1), Collect()))
    data = (X.numpy(), Y.numpy(), X.numpy(), Y.numpy())
    with pytest.raises(InputError, match="cannot name a folder"):
        compare(build, data, [recipe], budget=1, run_dir=tmp_path / "a" / "b")
    assert not (tmp_path / "escape").exists()


def test_arrays_are_read_without_unpickling(tmp_path):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.ones((3, 2)), y=np.arange(3))
    assert read_arrays(path, ("x",))[0].shape == (3, 2)
    np.savez(path, x=np.array([{}], dtype=object))
    with pytest.raises(InputError, match="never unpickles"):
        read_arrays(path, ("x",))

    for data in (b"", b"PK", b"\x93NUMPY\x01\x00"):
        path.write_bytes(data)
        with pytest.raises(InputError, match=r"cannot be read as an \.npz"):
            read_arrays(path, ("x",))


def mutated(data, chance):
    """Return bytes with one flip, cut, insertion or run of zeros."""
    place = int(chance.integers(len(data)))
    kind = int(chance.integers(4))
    if kind == 0:
        return data[:place] + bytes([data[place] ^ (1 << int(chance.integers(8)))]) + data[place + 1 :]
    if kind == 1:
        return data[:place]
    if kind == 2:
        return data[:place] + chance.bytes(int(chance.integers(1, 9))) + data[place:]
    return data[:place] + bytes(len(data[place : place + 16])) + data[place + 16 :]


def test_mutations_of_saved_files_predict_the_same_or_are_refused(tmp_path):
    """A small part of benchmarks/mutations.py, on a network with BatchNorm and pruned members."""

    def network():
        return nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(32, 2))

    images = torch.randn(24, 3, 5, 5, generator=G)
    recipe = make("prune_and_tune", budget=4, members=2, training=QUICK)
    run = tmp_path / "run"
    ensemble = fit(network, (images, Y[:24]), recipe, run_dir=run, compute=choral.Compute(executor="sequential"))
    expected = ensemble.predict(images).probs
    ensemble.save(tmp_path / "e.choral")
    files = [tmp_path / "e.choral", *sorted(p for p in run.rglob("*") if p.is_file())]
    chance, same, refused = np.random.default_rng(0), 0, 0
    for number in range(80):
        file = files[number % len(files)]
        data = file.read_bytes()
        if data:
            file.write_bytes(mutated(data, chance))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                again = choral.load(file if file.suffix == ".choral" else run, build=network)
                found = again.predict(images).probs
            assert torch.equal(found, expected), file
            same += 1
        except ChoralError:
            refused += 1
        file.write_bytes(data)
    assert same
    assert refused > 30
