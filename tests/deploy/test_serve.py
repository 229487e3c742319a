"""The server: the protocol, rows of tables, limits, and refusals in one sentence; on loopback alone."""

import asyncio
import gzip
import http.client
import json
import os
import random
import select
import signal
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import choral
from choral.base.errors import InputError, RunError
from choral.deploy.serve import Limits, Model, Refusal, Tensor, application, load_model, plain, server
from choral.models import mlp
from choral.recipes import make
from choral.recipes.training import Training

pytest.importorskip("starlette", reason="starlette is in the extra 'serve'")
pytest.importorskip("uvicorn", reason="uvicorn is in the extra 'serve'")

ABOUT: dict[str, object] = {"method": "toy", "task": "regression", "digest": "d", "classes": [], "table": None}


def toy(seen=None, gate=None):
    """Return a model that sums its rows; a row that starts with 13 fails. It waits for a gate to open."""

    def run(inputs):
        x = inputs["x"]
        if seen is not None:
            seen.append(len(x))
        assert gate is None or gate.wait(60)
        if (x[:, 0] == 13).any():
            raise RuntimeError("thirteen")
        return {"mean": x.sum(1), "set": x > 0}

    outputs = [
        Tensor(name="mean", datatype="FP32", shape=[-1]),
        Tensor(name="set", datatype="BOOL", shape=[-1, 3]),
    ]
    return Model("toy", ABOUT, [Tensor(name="x", datatype="FP32", shape=[-1, 3])], outputs, run, None)


@contextmanager
def serving(model, *, keep_alive=5, **options):
    """Yield a function that asks a running server; it is stopped at the end."""
    app = application(model, **options)
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        running = server(app)
        running.config.timeout_keep_alive = keep_alive
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        port = listening.getsockname()[1]

        def ask(method, path, body=None, headers=None):
            sent = json.dumps(body).encode() if isinstance(body, dict | list) else body
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            try:
                connection.request(method, path, sent, headers or {})
                answer = connection.getresponse()
                return answer.status, answer.read(), dict(answer.getheaders())
            finally:
                connection.close()

        ask.port, ask.app = port, app
        end = time.monotonic() + 60
        while not running.started and time.monotonic() < end:
            time.sleep(0.01)
        try:
            yield ask
        finally:
            running.should_exit = True
            thread.join(60)
            assert not thread.is_alive()


def tensor(values, **changes):
    return {"name": "x", "shape": [len(values), 3], "datatype": "FP32", "data": values} | changes


INFER = "/v2/models/toy/infer"


def test_health_metadata_and_an_answer():
    with serving(toy()) as ask:
        assert [ask("GET", f"/v2/{p}")[0] for p in ("health/live", "health/ready", "models/toy/ready")] == [200] * 3
        assert json.loads(ask("GET", "/v2")[1])["extensions"] == ["binary_tensor_data"]
        about = json.loads(ask("GET", "/v2/models/toy")[1])
        assert about["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]
        assert [o["name"] for o in about["outputs"]] == ["mean", "set"]
        status, body, _ = ask("POST", INFER, {"id": "7", "inputs": [tensor([[1, 2, 3], [0, -1, 0]])]})
        answer = json.loads(body)
        assert (status, answer["id"], answer["model_name"]) == (200, "7", "toy")
        assert answer["outputs"][0] == {"name": "mean", "datatype": "FP32", "shape": [2], "data": [6.0, -1.0]}
        assert answer["outputs"][1]["data"] == [True, True, True, False, False, False]
        assert ask("GET", "/v2/models/other")[0] == 404


def test_tensors_may_be_bytes_both_ways():
    x = np.array([[1.5, 2, 3]], np.float32)
    item = tensor(x) | {"parameters": {"binary_data_size": x.nbytes}}
    del item["data"]
    wanted = [{"name": "mean", "parameters": {"binary_data": True}}]
    text = json.dumps({"inputs": [item], "outputs": wanted}).encode()
    with serving(toy()) as ask:
        status, body, headers = ask(
            "POST", INFER, text + x.tobytes(), {"Inference-Header-Content-Length": str(len(text))}
        )
    end = int(headers["inference-header-content-length"])
    (output,) = json.loads(body[:end])["outputs"]
    assert (status, output["parameters"]) == (200, {"binary_data_size": 4})
    assert np.frombuffer(body[end:], "<f4") == [6.5]


BAD = [
    (b"", 400),
    (b"{", 400),
    (b"[1]", 400),
    (b"[" * 100_000, 400),
    (b'{"inputs": [' + b"9" * 5000 + b"]}", 400),
    ({}, 422),
    ({"inputs": 3}, 422),
    ({"inputs": [3]}, 422),
    ({"inputs": []}, 422),
    ({"inputs": [tensor([[1, 2, 3]], name="y")]}, 422),
    ({"inputs": [tensor([[1, 2, 3]], name=["x"])]}, 422),
    ({"inputs": [tensor([[1, 2, 3]])] * 2}, 422),
    ({"inputs": [tensor([[1, 2, 3]], datatype="BYTES")]}, 422),
    ({"inputs": [tensor([[1, 2, 3]], shape=[1, 4])]}, 422),
    ({"inputs": [tensor([[1, 2, 3]], shape=[-1, 3])]}, 422),
    ({"inputs": [tensor([[1, 2, 3]], shape="all")]}, 422),
    ({"inputs": [tensor([], shape=[0, 3])]}, 422),
    ({"inputs": [tensor([[1, 2], [3]], shape=[1, 3])]}, 422),
    ({"inputs": [tensor([["a", "b", "c"]])]}, 422),
    ({"inputs": [tensor([[None, 1, 2]])]}, 422),
    ({"inputs": [tensor([[1, 2, {}]])]}, 422),
    (b'{"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [NaN, 1, 2]}]}', 422),
    (b'{"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1e999, 1, 2]}]}', 422),
    ({"inputs": [tensor([[1e39, 1, 2]])]}, 422),
    ({"inputs": [tensor(["a" * 100_000, *[""] * 1_000_000], shape=[1, 3])]}, 422),  # 400 GB as an array of text
    (
        b'{"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": ' + b"[" * 400 + b"]" * 400 + b"}]}",
        422,
    ),
    ({"inputs": [tensor([[1, 2, 3]], shape="\ud800")]}, 422),
    ({"inputs": [tensor([[1, 2, 3]], parameters={"binary_data_size": 12})]}, 422),
    ({"inputs": [tensor([[1, 2, 3]], parameters={"binary_data_size": "12"})]}, 422),
    ({"inputs": [tensor([[13, 2, 3]])]}, 422),
    ({"inputs": [tensor([[1, 2, 3]])], "outputs": [{"name": "no"}]}, 422),
    ({"inputs": [tensor([[1, 2, 3]])], "outputs": [{"name": ["no"]}]}, 422),
    ({"inputs": [tensor([[1, 2, 3]])], "outputs": 5}, 422),
]


def test_malformed_requests_get_one_sentence_and_never_500():
    with serving(toy()) as ask:
        for body, expected in BAD:
            status, said, _ = ask("POST", INFER, body)
            assert (status, body) == (expected, body)
            assert json.loads(said)["error"]
        for length in ("x", "-1", "9" * 30, "0" * 18 + "9" * 5000, "99999", "٣"):
            headers = {"Inference-Header-Content-Length": length.encode().decode("latin-1")}
            assert ask("POST", INFER, b"{}", headers)[0] == 400
        draw = random.Random(0)
        good = json.dumps({"inputs": [tensor([[1, 2, 3]])]}).encode()
        for _ in range(200):
            bad = bytearray(good)
            for _ in range(draw.randint(1, 6)):
                bad[draw.randrange(len(bad))] = draw.randrange(256)
            assert ask("POST", INFER, bytes(bad))[0] in (200, 400, 422)
        assert ask("POST", "/predict", {"rows": [[1, 2]]})[0] == 422
        assert ask("POST", INFER, gzip.compress(good), {"Content-Encoding": "gzip"})[0] == 415
        for method, path, expected in (
            ("GET", INFER, 405),
            ("POST", "/predict/", 404),
            ("GET", "/v2/models/toy/versions/2", 404),
        ):
            status, said, _ = ask(method, path)
            assert (status, list(json.loads(said))) == (expected, ["error"])
        x = np.array([[1, np.nan, 2]], np.float32)
        item = tensor(x, parameters={"binary_data_size": x.nbytes})
        del item["data"]
        text = json.dumps({"inputs": [item]}).encode()
        assert ask("POST", INFER, text + x.tobytes(), {"Inference-Header-Content-Length": str(len(text))})[0] == 422
        assert ask("POST", INFER, good)[0] == 200


def test_requests_that_never_come_whole_are_ended():
    with serving(toy(), keep_alive=1) as ask:
        begin = b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n"
        for first in (
            b"",
            begin,
            begin + b"\r\n" + begin,
            b"POST /no HTTP/1.1\r\nhost: x\r\ncontent-length: 9999\r\n\r\n",
        ):
            with socket.create_connection(("127.0.0.1", ask.port), timeout=0.2) as connection:
                connection.sendall(first)
                end, open_ = time.monotonic() + 60, True
                while open_:
                    assert time.monotonic() < end
                    try:
                        open_ = bool(connection.recv(4096))
                    except TimeoutError:
                        connection.send(b"a")  # a byte now and then
                    except ConnectionError:
                        open_ = False
        assert ask("GET", "/v2/health/live")[0] == 200


def test_bodies_of_all_requests_together_are_bounded():
    with serving(toy(), limits=Limits(body=1000)) as ask:
        head = f"POST {INFER} HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n".encode()
        several = [socket.create_connection(("127.0.0.1", ask.port), timeout=60) for _ in range(18)]
        for connection in several:
            connection.sendall(head + b" " * 990)
        answered, _, _ = select.select(several, [], [], 60)
        assert answered[0].recv(12) == b"HTTP/1.1 429"
        for connection in several:
            connection.close()
        good = {"inputs": [tensor([[1, 2, 3]])]}
        end = time.monotonic() + 60
        while (status := ask("POST", INFER, good)[0]) == 429 and time.monotonic() < end:
            time.sleep(0.01)
        assert status == 200


def test_limits_of_body_rows_and_queue():
    gate = threading.Event()
    with serving(toy(gate=gate), limits=Limits(body=2000, rows=4, queue=2)) as ask:
        assert ask("POST", INFER, b" " * 2001)[0] == 413
        assert ask("POST", INFER, iter([b" " * 1500] * 2))[0] == 413
        assert ask("POST", INFER, {"inputs": [tensor([[1, 2, 3]] * 5)]})[0] == 422
        assert ask("POST", "/predict", {"rows": [[1, 2, 3]] * 5})[0] == 422
        codes = []
        each = [
            threading.Thread(target=lambda: codes.append(ask("POST", INFER, {"inputs": [tensor([[1, 2, 3]] * 4)]})[0]))
            for _ in range(8)
        ]
        for thread in each:
            thread.start()
        end = time.monotonic() + 60
        while 429 not in codes and time.monotonic() < end:  # one is answered, two wait, the others are sent away
            time.sleep(0.01)
        gate.set()
        for thread in each:
            thread.join()
        assert set(codes) == {200, 429}
        ask.app.state.batcher.stopping = True
        assert ask("POST", INFER, {"inputs": [tensor([[1, 2, 3]])]})[0] == 503
        assert ask("GET", "/v2/health/ready")[0] == 503
        assert ask("GET", "/v2/health/live")[0] == 200


def test_an_answer_that_takes_too_long_is_refused():
    gate = threading.Event()
    with serving(toy(gate=gate), limits=Limits(timeout=0.5)) as ask:
        assert ask("POST", INFER, {"inputs": [tensor([[1, 2, 3]])]})[0] == 503
        gate.set()


def test_requests_become_one_batch_and_a_bad_one_fails_alone():
    seen, found = [], {}
    with serving(toy(seen), limits=Limits(delay=3.0)) as ask:

        def one(first):
            found[first] = ask("POST", INFER, {"inputs": [tensor([[first, 0, 0]])]})[:2]

        each = [threading.Thread(target=one, args=(n,)) for n in (1, 2, 13, 4)]
        for thread in each:
            thread.start()
        for thread in each:
            thread.join()
        metrics = ask("GET", "/metrics")[1].decode()
    assert [found[n][0] for n in (1, 2, 13, 4)] == [200, 200, 422, 200]
    assert [json.loads(found[n][1])["outputs"][0]["data"] for n in (1, 2, 4)] == [[1.0], [2.0], [4.0]]
    assert max(seen) > 1
    assert 'choral_requests_total{route="/v2/models/{name}/infer",code="422"} 1' in metrics
    assert "choral_rows_total 3" in metrics
    assert "choral_request_seconds_count 4" in metrics


def test_a_token_is_asked_for_everywhere_but_for_health_and_the_page():
    with serving(toy(), token="sesam") as ask:
        assert ask("GET", "/v2/health/ready")[0] == 200
        assert ask("GET", "/")[0] == 200
        right = {"Authorization": "Bearer sesam"}
        for path in ("/v2", "/card", "/metrics", "/v2/models/toy"):
            assert ask("GET", path)[0] == 401
            assert ask("GET", path, headers={"Authorization": "Bearer sesamm"})[0] == 401
            assert ask("GET", path, headers=right)[0] == 200
        assert ask("POST", "/predict", {"rows": [[1, 2, 3]]})[0] == 401
        assert ask("POST", "/predict", {"rows": [[1, 2, 3]]}, right)[0] == 200


def test_no_path_of_a_request_is_opened():
    with serving(toy()) as ask:
        for path in ("/../pyproject.toml", "/page.html", "/v2/models/..%2f..%2fetc%2fpasswd", "//etc/passwd"):
            assert ask("GET", path)[0] == 404


def test_a_saved_ensemble_answers_as_it_predicts(tmp_path):
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    recipe = make("deep_ensemble", members=2, budget=4, training=Training(lr=0.1, optimizer="sgd", batch_size=16))
    ensemble = choral.fit(lambda: mlp(3, 2, hidden=(8,)), (x, (x[:, 0] > 0).long()), recipe).calibrated(
        x, (x[:, 0] > 0).long()
    )
    ensemble.save(tmp_path / "toy.choral")
    with serving(load_model(tmp_path / "toy.choral")) as ask:
        found = json.loads(ask("POST", "/predict", {"rows": x[:4].tolist()})[1])["rows"]
        assert json.loads(ask("GET", "/card")[1])["about"]["method"] == "deep_ensemble"
    expected = ensemble.predict(x[:4])
    np.testing.assert_allclose([row["probs"] for row in found], expected.probs, atol=1e-6)
    np.testing.assert_allclose([row["mutual_information"] for row in found], expected.mutual_information, atol=1e-6)
    assert np.shape([row["members"] for row in found]) == (4, 2, 2)


@pytest.mark.parametrize("name", ["houses.onnx", "houses.choral"])
def test_rows_of_a_table_are_read_by_column_or_as_numbers(name, tmp_path):
    frame = pd.DataFrame(
        {"size": np.arange(40.0), "town": ["Ulm", "Bonn"] * 20, "sold": ["yes", "no", "no", "yes"] * 10}
    )
    fitted = choral.fit_table(frame, "sold", members=2, epochs=4)
    if name.endswith(".onnx"):
        for module in ("onnx", "onnxscript", "onnxruntime"):
            pytest.importorskip(module, reason=f"{module} is in the extra 'onnx'")
        fitted.export(tmp_path / name, frame)
    else:
        fitted.save(tmp_path / name)
    with serving(load_model(tmp_path / name)) as ask:
        rows = [{"size": 3, "town": "Ulm"}, {"size": None, "town": "Rome"}]
        status, body, _ = ask("POST", "/predict", {"rows": rows})
        assert status == 200
        found, told = json.loads(body)["rows"], json.loads(body)["warnings"]
        assert "Rome" in told[0]
        assert "without a value" in told[1]
        assert found[0]["prediction"] in ("yes", "no")
        expected = fitted.predict(frame[3:4].assign(town="Ulm")).to_frame()["p_yes"][0]
        assert found[0]["probs"]["yes"] == pytest.approx(float(expected), abs=1e-5)
        x = np.array([[3, 1], [np.nan, -1]])  # Bonn is 0, Ulm is 1
        item = {"name": "x", "shape": [2, 2], "datatype": "FP64", "parameters": {"binary_data_size": x.nbytes}}
        text = json.dumps({"inputs": [item], "outputs": [{"name": "probs"}]}).encode()
        headers = {"Inference-Header-Content-Length": str(len(text))}
        answer = json.loads(ask("POST", "/v2/models/houses/infer", text + x.tobytes(), headers)[1])
        assert answer["outputs"][0]["data"] == pytest.approx([p for row in found for p in row["probs"].values()])
        for bad in (
            [{"size": 3}],
            [[3, "Ulm"]],
            [{"size": [1], "town": "Ulm"}],
            "rows",
            [],
            [{"size": "big", "town": 5}] * 2000,
        ):
            status, body, _ = ask("POST", "/predict", {"rows": bad})
            assert status == 422
            assert json.loads(body)["error"]
        assert [c["column"] for c in json.loads(ask("GET", "/card")[1])["columns"]] == ["size", "town"]


def test_a_signal_brings_the_next_model_and_requests_that_wait_keep_theirs(caplog):
    def scaled(by, wait=0.0):
        def run(inputs):
            time.sleep(wait)
            return {"mean": by * inputs["x"].sum(1), "set": inputs["x"] > 0}

        return replace(toy(), run=run)

    following = [scaled(10.0), RunError("the file is damaged")]

    def reload():
        found = following.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    app = application(scaled(1.0, wait=0.2), limits=Limits(delay=0.3), reload=reload)
    rows = {"x": np.ones((1, 3), "float32")}

    async def drive():
        async with app.router.lifespan_context(app):
            batcher, old = app.state.batcher, app.state.batcher.run
            waiting = asyncio.create_task(batcher.ask(rows))
            await asyncio.sleep(0)
            os.kill(os.getpid(), signal.SIGHUP)
            while batcher.run is old:
                await asyncio.sleep(0.01)
            answers = [float((await task)["mean"][0]) for task in (waiting, asyncio.create_task(batcher.ask(rows)))]
            os.kill(os.getpid(), signal.SIGHUP)
            while not caplog.records:
                await asyncio.sleep(0.01)
            return [*answers, float((await batcher.ask(rows))["mean"][0])]

    try:
        assert asyncio.run(asyncio.wait_for(drive(), 60)) == [3.0, 30.0, 30.0]
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    assert "damaged" in caplog.text


def test_wrong_files_are_said(tmp_path):
    with pytest.raises(RunError, match="does not exist"):
        load_model(tmp_path / "no.onnx")
    (tmp_path / "odd.pt2").write_bytes(b"PK")
    with pytest.raises(RunError, match=r"serve an \.onnx"):
        load_model(tmp_path / "odd.pt2")
    (tmp_path / "odd.choral").write_bytes(b"odd")
    with pytest.raises((RunError, InputError)):
        load_model(tmp_path / "odd.choral")


def test_numbers_that_json_lacks_are_null():
    assert plain(np.array([np.nan, 1.0, -np.inf])) == [None, 1.0, None]
    assert Refusal(413, "long").status == 413
