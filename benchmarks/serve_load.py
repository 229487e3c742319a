"""A server under load on 127.0.0.1: `choral serve model.onnx` beside the same graph behind LitServe, and what it does with nonsense, a flood, kill -9 and SIGTERM.

    python benchmarks/serve_load.py [--seconds 60] [--clients 16]   # choral[onnx,serve], litserve, tritonclient[http]

Both servers get the same requests of one row as JSON from so many connections of one client. On a machine with other work, rates depend on how
many processes a server has; `processor_ms_per_request` is what it takes itself. Writes results/serve_load.json.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import requests
import torch

import choral
from choral import models
from machine import write

PORT, FEATURES = 18480, 20
URL = f"http://127.0.0.1:{PORT}"
WRONG = ["NaN", "1e999", '"word"', "null", "[]", "{}", "-1", "9" * 400, "true", "[[1],[1,2]]"]
LIT = """
import sys, litserve, numpy, onnxruntime
class API(litserve.LitAPI):
    def setup(self, device):
        self.session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
        self.names = [o.name for o in self.session.get_outputs()]
    def decode_request(self, request):
        return numpy.asarray(request["rows"], "float32")[0]
    def predict(self, x):
        found = dict(zip(self.names, self.session.run(None, {"x": numpy.stack(x)})))
        return [{"rows": [{n: v[i].tolist() for n, v in found.items()}]} for i in range(len(x))]
    unbatch = lambda self, found: found
if __name__ == "__main__":
    server = litserve.LitServer(API(max_batch_size=64, batch_timeout=0.002), accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=int(sys.argv[2]), generate_client_file=False, log_level="error", num_api_servers=1)
"""


SERVE = """
import onnxruntime, starlette.applications, uvicorn
import choral.cli.app, choral.deploy.serve
print("imported", flush=True)
choral.cli.main()
"""


def started(call: list[str], ready: str) -> tuple[subprocess.Popen[bytes], float]:
    """Start a server; return it, and the seconds from its first line, which it writes after its imports, until it is ready."""
    process = subprocess.Popen(call, stderr=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True)
    if ready != "/health":  # LitServe's
        assert process.stdout is not None
        process.stdout.readline()
    begun = time.monotonic()
    while True:
        assert process.poll() is None, call
        with contextlib.suppress(requests.ConnectionError):
            if requests.get(f"{URL}{ready}", timeout=5).ok:
                return process, time.monotonic() - begun
        time.sleep(0.02)


def ended(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)  # a group of its own: LitServe has children
    process.wait(30)


def message(path: str, body: bytes, more: str = "") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n{more}content-length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def asked(reader: Any, writer: Any, request: bytes) -> int:
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0)
    await reader.readexactly(length)
    return int(head[9:12])


def processor_seconds(pid: int) -> float:
    """Return the processor time that a server has taken, its children included."""
    process = psutil.Process(pid)
    return sum(sum(p.cpu_times()[:2]) for p in (process, *process.children(recursive=True)))


async def load(request: bytes, seconds: float, clients: int, pid: int) -> dict[str, Any]:
    """Ask for so long from so many connections; return rates, times, statuses and the memory of a process on the way."""
    times, statuses, memory, end = list[float](), Counter[int](), list[float](), time.monotonic() + seconds

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
        while (begun := time.monotonic()) < end:
            statuses[await asked(reader, writer, request)] += 1
            times.append(time.monotonic() - begun)
        writer.close()

    async def watch() -> None:
        for _ in range(12):
            memory.append(psutil.Process(pid).memory_info().rss / 2**20)
            await asyncio.sleep(seconds / 13)

    before = processor_seconds(pid)
    await asyncio.gather(watch(), *(client() for _ in range(clients)))
    each = 1000 * (processor_seconds(pid) - before) / len(times)
    p50, p99 = (round(float(np.quantile(times, q)) * 1000, 2) for q in (0.5, 0.99))
    found = {"requests_per_second": round(len(times) / seconds, 1), "p50_ms": p50, "p99_ms": p99}
    found["processor_ms_per_request"] = round(each, 3)
    return found | {"statuses": {str(c): n for c, n in statuses.items()}, "memory_mb": [round(m) for m in memory]}


async def nonsense(count: int) -> Counter[int]:
    """Send malformed requests until so many are refused, and count the answers; 0 is a connection closed without one."""
    draw, statuses, values = random.Random(0), Counter[int](), [0.5] * FEATURES
    good = json.dumps({"inputs": [{"name": "x", "shape": [1, FEATURES], "datatype": "FP32", "data": values}]})
    rows = json.dumps({"rows": [values]})
    while sum(statuses.values()) - statuses[200] < count:  # some are still a request
        path, text = draw.choice([("/v2/models/model/infer", good), ("/predict", rows)])
        body, more = bytearray(text.encode()), ""
        kind = draw.randrange(6)
        if kind == 0:
            body = body[: draw.randrange(len(body) - 1)]
        elif kind == 1:
            body[draw.randrange(len(body))] = body[draw.randrange(len(body))] = draw.randrange(256)
        elif kind == 2:
            old = draw.choice(["0.5", "1", str(FEATURES), '"x"'])
            body = bytearray(text.replace(old, draw.choice(WRONG)).encode())
        elif kind == 3:
            body = bytearray(b"[" * draw.randrange(100_000))
        elif kind == 4:
            more = f"inference-header-content-length: {draw.choice(['-1', 'x', '9' * 30, '5', '0'])}\r\n"
        else:
            path = f"/v2/models/{draw.choice(['../../etc/passwd', '%00', 'other', ''])}/infer"
        reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
        try:
            statuses[await asyncio.wait_for(asked(reader, writer, message(path, bytes(body), more)), 20)] += 1
        except (asyncio.IncompleteReadError, ConnectionError):
            statuses[0] += 1
        writer.close()
    return statuses


def triton(x: np.ndarray, right: np.ndarray) -> dict[str, Any]:
    from tritonclient.http import InferenceServerClient, InferInput

    client, given = InferenceServerClient(f"127.0.0.1:{PORT}"), InferInput("x", list(x.shape), "FP32")
    given.set_data_from_numpy(x)
    found = client.infer("model", [given]).as_numpy("probs")
    outputs = [output["name"] for output in client.get_model_metadata("model")["outputs"]]
    ready = client.is_server_live() and client.is_server_ready() and client.is_model_ready("model")
    return {"ready": ready, "outputs": outputs, "largest_difference_from_predict": float(np.abs(found - right).max())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=16)
    options = parser.parse_args()
    x, y, recipe = torch.randn(256, FEATURES), torch.arange(256) % 3, choral.recipes.deep_ensemble(members=5, epochs=8)
    build = lambda: models.mlp(FEATURES, 3, hidden=(64, 64))  # noqa: E731  # a factory
    ensemble = choral.fit(build, (x, y), recipe, validation=None, progress=False)
    request = message("/predict", json.dumps({"rows": [x[0].tolist()]}).encode())
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "model.onnx"
        ensemble.export(path)
        serve = [sys.executable, "-c", SERVE, "serve", str(path), "--port", str(PORT)]
        (Path(name) / "lit.py").write_text(LIT)
        found: dict[str, Any] = {"settings": {"seconds": options.seconds, "clients": options.clients}}
        process, _ = started([sys.executable, str(Path(name) / "lit.py"), str(path), str(PORT)], "/health")
        found["litserve"] = asyncio.run(load(request, options.seconds, options.clients, process.pid))
        del found["litserve"]["memory_mb"]  # of one of its processes alone
        ended(process)
        process, _ = started(serve, "/v2/health/ready")
        found["choral"] = asyncio.run(load(request, options.seconds, options.clients, process.pid))
        found["triton_client"] = triton(x[:8].numpy(), ensemble.predict(x[:8]).probs.numpy())
        found["malformed"] = {str(code): n for code, n in asyncio.run(nonsense(1000)).items()}
        found["reload"] = reload(path, process, request, ensemble)
        found["sigterm"] = asyncio.run(stop(request, options.clients, process))
        begun = time.monotonic()
        process, until = started([*serve, "--queue", "4"], "/v2/health/ready")
        whole = time.monotonic() - begun
        found["after_kill"] = {"seconds_with_imports": round(whole, 2), "seconds_after_imports": round(until, 2)}
        found["flood_above_queue_of_4"] = asyncio.run(load(request, 5, 64, process.pid))
        ended(process)
    print(write("serve_load", found).read_text())


async def stop(request: bytes, clients: int, process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Send SIGTERM under load; return the statuses (0 is a request sent before the signal and never answered), and how it ended."""
    statuses, signaled = Counter[str](), list[float]()

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                late, statuses["0"] = bool(signaled), statuses["0"] + 1
                try:
                    statuses[str(await asked(reader, writer, request))] += 1
                    statuses["0"] -= 1
                except (ConnectionError, asyncio.IncompleteReadError):
                    statuses["0"] -= late  # a connection may close once the server stops
                    raise

    running = [asyncio.create_task(client()) for _ in range(clients)]
    await asyncio.sleep(2)
    process.send_signal(signal.SIGTERM)
    signaled.append(time.monotonic())
    code = await asyncio.to_thread(process.wait, 60)
    seconds = round(time.monotonic() - signaled[0], 2)
    await asyncio.gather(*running)
    return {"statuses": dict(statuses), "exit_code": code, "seconds": seconds}


def reload(path: Path, process: subprocess.Popen[bytes], request: bytes, ensemble: Any) -> dict[str, Any]:
    """Put another model in the file and send SIGHUP under load; return the statuses, and whether the new one answers."""
    other = ensemble.with_posthoc(choral.calibration.Temperature(temperatures=(2.0,)))
    before = requests.get(f"{URL}/metrics", timeout=5).text
    other.export(path)

    async def both() -> dict[str, Any]:
        running = asyncio.create_task(load(request, 5, 4, process.pid))
        await asyncio.sleep(1)
        process.send_signal(signal.SIGHUP)
        return await running

    statuses, after = asyncio.run(both())["statuses"], requests.get(f"{URL}/metrics", timeout=5).text
    return {"statuses": statuses, "new_model": other._digest in after and other._digest not in before}


if __name__ == "__main__":
    main()
