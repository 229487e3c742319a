"""The commands that deploy: a file that predicts, and a server that stops when it is told to."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import numpy as np
import pytest
import torch
from tests.cli.shell import choral, sentence

from choral.fit import fit
from choral.models import mlp
from choral.recipes import single


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    x = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
    ensemble = fit(lambda: mlp(3, 2, hidden=(4,)), (x, (x[:, 0] > 0).astype(int)), single(epochs=1))
    path = tmp_path_factory.mktemp("saved") / "toy.choral"
    ensemble.save(path)
    np.savez(path.with_name("rows.npz"), x=x)
    return path, ensemble, x


def test_export_writes_what_predicts_the_same(saved, tmp_path):
    path, ensemble, x = saved
    for options in ([], ["--data", path.with_name("rows.npz")]):
        said = json.loads(choral("export", path, "--to", tmp_path / "toy.pt2", "--members", "--json", *options).stdout)
        assert said["digest"] == ensemble._digest
        found = torch.export.load(tmp_path / "toy.pt2").module()(torch.as_tensor(x))
        torch.testing.assert_close(found["probs"], ensemble.predict(x).probs)
        assert found["members"].shape == (40, 1, 2)


def test_mistakes_get_a_sentence(saved, tmp_path):
    path, *_ = saved
    assert ".onnx" in sentence(choral("export", path, "--to", tmp_path / "a.choral", expect=2))
    assert "does not exist" in sentence(choral("serve", tmp_path / "no.onnx", expect=2))


@pytest.mark.full
def test_serve_answers_and_ends_well_when_it_is_told_to(saved):
    pytest.importorskip("starlette", reason="starlette is in the extra 'serve'")
    pytest.importorskip("uvicorn", reason="uvicorn is in the extra 'serve'")
    path, ensemble, x = saved
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "choral", "serve", str(path), "--port", str(port)]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, env=os.environ | {"OMP_NUM_THREADS": "1"})
    try:
        body = json.dumps({"rows": x[:2].tolist()}).encode()
        end = time.monotonic() + 120
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/predict", body, timeout=60) as answer:
                    rows = json.load(answer)["rows"]
                break
            except OSError:
                assert running.poll() is None, running.stderr.read()
                assert time.monotonic() < end
                time.sleep(0.2)
        np.testing.assert_allclose([row["probs"] for row in rows], ensemble.predict(x[:2]).probs, atol=1e-6)
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 0
    finally:
        running.kill()
        running.wait()
        running.stderr.close()
