import shutil
import threading

from choral.cluster.storage import Storage


def test_names_are_listed_while_others_remove_folders(tmp_path):
    """As one shell lists leaves while another ends one and removes its checkpoints."""
    (tmp_path / "leaves" / "a").mkdir(parents=True)
    (tmp_path / "leaves" / "a" / "manifest.json").touch()
    (tmp_path / "leaves" / "a" / ".aside").touch()
    ended = threading.Event()

    def come_and_go():
        while not ended.is_set():
            for i in range(20):
                (tmp_path / "leaves" / f"b{i}" / "checkpoints").mkdir(parents=True)
            for i in range(20):
                shutil.rmtree(tmp_path / "leaves" / f"b{i}")

    other = threading.Thread(target=come_and_go)
    other.start()
    try:
        found = {tuple(Storage(tmp_path).names("leaves")) for _ in range(200)}
    finally:
        ended.set()
        other.join()
    assert found == {("leaves/a/manifest.json",)}
