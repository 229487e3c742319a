"""Readers of public data, on tiny files in the official layout that are made here."""

import importlib.util
import pickle
from pathlib import Path

import numpy as np
import pytest
from benchmarks import official


def pictures(rows: int, seed: int = 0) -> np.ndarray:
    """Images (row, height, width, channel)."""
    return np.random.default_rng(seed).integers(0, 256, (rows, 32, 32, 3), dtype=np.uint8)


def planes(images: np.ndarray) -> np.ndarray:
    """Images as the files have them: all red bytes, then all green ones, then all blue ones."""
    return images.transpose(0, 3, 1, 2).reshape(len(images), 3072)


def write_cifar10(folder: Path, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Write six official pickles with `rows` images each; return all of them and their labels, the test ones last."""
    x, y = pictures(6 * rows), np.arange(6 * rows) % 10
    place = folder / "cifar-10-batches-py"
    place.mkdir(parents=True)
    for i, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        own = slice(i * rows, (i + 1) * rows)
        batch = {b"batch_label": name.encode(), b"labels": y[own].tolist(), b"data": planes(x[own])}
        (place / name).write_bytes(pickle.dumps(batch, protocol=2))
    return x, y


def test_cifar10_of_python(tmp_path):
    x, y = write_cifar10(tmp_path, 4)
    for split, own in (("train", slice(0, 20)), ("test", slice(20, 24))):
        images, labels = official.cifar10(tmp_path, split)
        np.testing.assert_array_equal(images, x[own])
        np.testing.assert_array_equal(labels, y[own])
        assert labels.dtype == np.int64


def test_cifar10_of_bytes(tmp_path):
    x, y = pictures(12), np.arange(12) % 10
    place = tmp_path / "cifar-10-batches-bin"
    place.mkdir()
    for i, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        own = slice(2 * i, 2 * i + 2)
        rows = np.concatenate([y[own, None].astype(np.uint8), planes(x[own])], 1)
        (place / f"{name}.bin").write_bytes(rows.tobytes())
    images, labels = official.cifar10(tmp_path, "train")
    np.testing.assert_array_equal(images, x[:10])
    np.testing.assert_array_equal(labels, y[:10])
    np.testing.assert_array_equal(official.cifar10(tmp_path, "test")[0], x[10:])


@pytest.mark.parametrize("binary", [False, True])
def test_cifar100_has_fine_labels(tmp_path, binary):
    x, fine, coarse = pictures(6), np.array([99, 3, 57, 0, 12, 41]), np.arange(6)
    place = tmp_path / ("cifar-100-binary" if binary else "cifar-100-python")
    place.mkdir()
    for split, own in (("train", slice(0, 4)), ("test", slice(4, 6))):
        if binary:
            rows = np.concatenate([np.stack([coarse[own], fine[own]], 1).astype(np.uint8), planes(x[own])], 1)
            (place / f"{split}.bin").write_bytes(rows.tobytes())
        else:
            batch = {
                b"fine_labels": fine[own].tolist(),
                b"coarse_labels": coarse[own].tolist(),
                b"data": planes(x[own]),
            }
            (place / split).write_bytes(pickle.dumps(batch, protocol=2))
    for split, own in (("train", slice(0, 4)), ("test", slice(4, 6))):
        images, labels = official.cifar100(tmp_path, split)
        np.testing.assert_array_equal(images, x[own])
        np.testing.assert_array_equal(labels, fine[own])


class Attack:
    def __reduce__(self):
        return (print, ("ran",))


def test_a_pickle_that_asks_for_code_is_refused(tmp_path, capsys):
    place = tmp_path / "cifar-100-python"
    place.mkdir()
    (place / "test").write_bytes(pickle.dumps({b"data": Attack()}, protocol=2))
    with pytest.raises(pickle.UnpicklingError, match="print"):
        official.cifar100(tmp_path, "test")
    assert capsys.readouterr().out == ""


def write_uci(folder: Path, rows: int = 12, splits: int = 2) -> np.ndarray:
    """Write a set of two features and two targets in the layout of the standard splits; return its table."""
    table = np.random.default_rng(1).normal(size=(rows, 4))
    place = folder / "UCI_Datasets" / "bostonHousing" / "data"
    place.mkdir(parents=True)
    np.savetxt(place / "data.txt", table)
    np.savetxt(place / "index_features.txt", [0, 2], fmt="%d")
    np.savetxt(place / "index_target.txt", [3, 1], fmt="%d")
    (place / "n_splits.txt").write_text(f"{splits}\n")
    for i in range(splits):
        order = np.random.default_rng(i).permutation(rows)
        np.savetxt(place / f"index_train_{i}.txt", order[1:], fmt="%d")
        np.savetxt(place / f"index_test_{i}.txt", order[:1], fmt="%d")
    return table


def test_uci(tmp_path):
    table = write_uci(tmp_path)
    x, y, splits = official.uci(tmp_path, "boston")
    np.testing.assert_allclose(x, table[:, [0, 2]])
    np.testing.assert_allclose(y, table[:, 3])
    assert len(splits["std"]) == 2
    for kind in ("std", "gap"):
        for train, test in splits[kind]:
            assert sorted([*train, *test]) == list(range(12))
    for feature, (train, test) in enumerate(splits["gap"]):  # the middle third of the feature
        inside, outside = x[test, feature], x[train, feature]
        assert not ((outside > inside.min()) & (outside < inside.max())).any()
        assert len(test) == 4
    x_train, _, _, y_test = official.uci_split(tmp_path, "boston", "std", 1)
    assert x_train.shape == (11, 2)
    np.testing.assert_allclose(y_test, table[splits["std"][1][1], 3])


def test_imdb(tmp_path):
    texts = {
        "train/pos": {"0_9.txt": "Good, good<br />good film!", "10_7.txt": "a good film"},
        "train/neg": {"0_2.txt": "A bad film."},
        "test/pos": {"0_10.txt": "good unseen"},
        "test/neg": {"0_1.txt": ""},
    }
    for place, files in texts.items():
        (tmp_path / "aclImdb" / place).mkdir(parents=True)
        for name, text in files.items():
            (tmp_path / "aclImdb" / place / name).write_text(text)
    x, y = official.imdb(tmp_path, "train", 4)  # by falling frequency: good 2, film 3, a 4, bad 5
    assert x.tolist() == [[2, 2, 2, 3], [0, 4, 2, 3], [0, 4, 5, 3]]
    assert y.tolist() == [1, 1, 0]
    x, y = official.imdb(tmp_path, "test", 2)
    assert x.tolist() == [[2, 1], [0, 0]]
    assert y.tolist() == [1, 0]


def test_a_load_py_gives_what_official_files_do_not(tmp_path, monkeypatch):
    folder = Path(official.__file__).parent
    monkeypatch.syspath_prepend(str(folder))
    spec = importlib.util.spec_from_file_location("benchmark_datasets", folder / "datasets.py")
    datasets = importlib.util.module_from_spec(spec)  # under a name of its own: a public package has that of the file
    spec.loader.exec_module(datasets)
    monkeypatch.setenv("CHORAL_DATA", str(tmp_path))
    with pytest.raises(SystemExit, match="cifar-10-batches-py or cifar-10-batches-bin"):
        datasets.cifar10()
    (tmp_path / "load.py").write_text(
        "import numpy as np\n"
        "TABLES = {'own': 'target'}\n"
        "def cifar10(split):\n"
        "    return np.full((3, 32, 32, 3), split == 'test', np.uint8), np.arange(3)\n"
    )
    assert datasets.cifar10()[2].all()
    assert datasets.loaders().TABLES == {"own": "target"}
    write_cifar10(tmp_path, 2)
    x, y, x_test, _ = datasets.cifar10()
    assert x.shape == (10, 3, 32, 32)
    assert len(x_test) == 2
    np.testing.assert_array_equal(y, np.arange(10))


def test_a_mixture_of_clean_and_corrupted_images_has_the_papers_parts():
    images = np.random.default_rng(0).integers(0, 256, (300, 3, 32, 32)).astype(np.uint8)
    made = official.mixed(images)
    same = (made == images).all((1, 2, 3))
    assert same.sum() == 60  # a fifth is clean, all others are corrupted
    assert (official.mixed(images) == made).all()
    assert (official.mixed(images, seed=1) != made).any()
