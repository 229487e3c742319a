"""A server for one exported or saved ensemble: the Open Inference Protocol v2 over HTTP, rows of tables, metrics and a page.

Requests that come within a short delay are answered as one batch. Everything that a request can ask for is bounded: its bytes, its rows,
how many wait, and how long. Nothing in a request names a file, and nothing that could run is ever read. An .onnx is served without torch,
unless it reads a table, so that the server is ready soon after it is started.
"""

import asyncio
import hmac
import json
import logging
import math
import re
import signal
import threading
import time
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from choral import __version__
from choral.base.errors import ChoralError, RunError, needed
from choral.deploy import ABOUT

if TYPE_CHECKING:
    from choral.tables.table import Table

_LOG = logging.getLogger("choral")
Arrays = dict[str, np.ndarray]
_FLOATS, _INTEGERS = {"FP16": "<f2", "FP32": "<f4", "FP64": "<f8"}, {"INT16": "<i2", "INT32": "<i4", "INT64": "<i8"}
_CODES = _FLOATS | _INTEGERS | {"INT8": "i1", "UINT8": "u1", "BOOL": "?"}
_TYPES = {name: np.dtype(code) for name, code in _CODES.items()}
_LENGTH = "Inference-Header-Content-Length"
_BODIES = 16  # of the largest size, held at once
_METRICS = """\
# TYPE choral_model_info gauge
choral_model_info{{{about}}} 1
# TYPE choral_requests_total counter
{requests}
# TYPE choral_rows_total counter
choral_rows_total {batcher.rows}
# TYPE choral_batches_total counter
choral_batches_total {batcher.batches}
# TYPE choral_queue_requests gauge
choral_queue_requests {waiting}
# TYPE choral_request_seconds summary
choral_request_seconds_sum {seconds:.6f}
choral_request_seconds_count {count}
"""


@dataclass(eq=False)
class Refusal(Exception):  # an answer, not a mistake of ours
    """A request that is not answered: a status code and one sentence."""

    status: int
    sentence: str


@contextmanager
def _refused(status: int, sentence: str, *kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of some kinds into a refusal; {} in its sentence is what they say."""
    try:
        yield
    except kinds as error:
        raise Refusal(status, sentence.replace("{}", " ".join(str(error).split())[:200])) from None


def _field(content: Any, name: str, kind: type, otherwise: Any = None) -> Any:
    """Return a field of a JSON object, and something else if there is none of that type."""
    value = content.get(name) if isinstance(content, dict) else None
    return value if isinstance(value, kind) else otherwise


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a server.

    Args:
        body: largest number of bytes of a request (413 above); 16 times as many for all requests together (429 above).
        rows: largest number of rows of a request, and of a batch (422 above).
        queue: largest number of waiting requests (429 above).
        delay: seconds that a request waits for others to form a batch.
        timeout: seconds until a body must have arrived (408), and an answer must be ready (503).
    """

    body: int = 16 << 20
    rows: int = 1024
    queue: int = 64
    delay: float = 0.002
    timeout: float = 30.0


class Tensor(TypedDict):
    """An input or output of a model as the protocol describes it; -1 in the shape is an open size."""

    name: str
    datatype: str
    shape: list[int]


def _tensor(name: str, datatype: str, row: Iterable[Any]) -> Tensor:
    return {"name": name, "datatype": datatype, "shape": [-1, *(n if isinstance(n, int) else -1 for n in row)]}


@dataclass(frozen=True)
class Model:
    """What is served: its name in paths, its description, what it reads and returns, what answers a batch, and the table it was fitted on."""

    name: str
    about: dict[str, Any]
    inputs: list[Tensor]
    outputs: list[Tensor]
    run: Callable[[Arrays], Arrays]
    table: "Table | None"


def load_model(path: Path) -> Model:
    """Return the model of a file: .onnx, or an ensemble of networks from choral's own zoo."""
    if not path.exists():
        raise RunError(f"{path} does not exist; give a file made by ensemble.export or ensemble.save.")
    if path.suffix.lower() == ".pt2":
        raise RunError(f"{path} is a program of torch.export; serve an .onnx or a saved ensemble.")
    return _onnx(path) if path.suffix.lower() == ".onnx" else _saved(path)


def _onnx(path: Path) -> Model:
    onnxruntime = needed("onnxruntime", "onnx,serve")
    try:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        about = json.loads(session.get_modelmeta().custom_metadata_map[ABOUT])
        described_table = about["table"]
    except Exception as error:  # onnxruntime raises errors of its own
        raise RunError(f"{path} is no model that ensemble.export wrote ({str(error)[:200]}).") from error
    table = None
    if described_table is not None:
        from choral.base.values import of_kind
        from choral.tables.table import Table

        table = of_kind(Table, described_table, str(path))
    kinds = {"float16": "FP16", "float": "FP32", "double": "FP64"}

    def described(values: Any) -> list[Tensor]:
        types = [value.type.removeprefix("tensor(").removesuffix(")") for value in values]
        return [_tensor(v.name, kinds.get(t, t.upper()), v.shape[1:]) for v, t in zip(values, types)]

    outputs = described(session.get_outputs())

    def run(inputs: Arrays) -> Arrays:
        return dict(zip((o["name"] for o in outputs), session.run(None, inputs)))

    return Model(path.stem, about, described(session.get_inputs()), outputs, run, table)


def _saved(path: Path) -> Model:
    import torch

    from choral.base import batches
    from choral.deploy.export import describe, described_inputs, example, network_inputs, outputs_of, table_of
    from choral.fit import load

    ensemble = load(path)
    some = batches.part(example(ensemble), slice(2))
    named = described_inputs(some)

    def run(inputs: Arrays) -> Arrays:
        given = batches.filled(some, [torch.from_numpy(np.ascontiguousarray(value)) for value in inputs.values()])
        found = ensemble._predictive(network_inputs(ensemble, given))
        answers = outputs_of(found, ensemble._interface.target, members=True)
        return {n: (v.float() if v.is_floating_point() else v).numpy() for n, v in answers.items()}

    kinds = {str(dtype): name for name, dtype in _TYPES.items()}
    inputs = [_tensor(i["name"], kinds[i["type"]], i["shape"]) for i in named]
    trial = run({i["name"]: value.numpy() for i, value in zip(inputs, batches.leaves(some))})
    outputs = [_tensor(name, kinds[str(value.dtype)], value.shape[1:]) for name, value in trial.items()]
    return Model(path.stem, describe(ensemble), inputs, outputs, run, table_of(ensemble))


@dataclass(eq=False)
class _Asked:
    """A request that waits: its arrays, rows, and where its answer goes."""

    inputs: Arrays
    rows: int
    answer: "asyncio.Future[Arrays | Refusal]"
    run: Callable[[Arrays], Arrays]  # of the model that read it, which another may follow

    @property
    def key(self) -> Any:
        return self.run, *((name, value.shape[1:]) for name, value in self.inputs.items())


class Batcher:
    """Answers requests in batches, one batch at a time."""

    def __init__(self, run: Callable[[Arrays], Arrays], limits: Limits):
        self.run, self.limits = run, limits
        self.stopping = False
        self.batches = self.rows = 0
        self.waiting: list[_Asked] = []
        self._wake = asyncio.Event()
        self._pool = ThreadPoolExecutor(1)

    def admit(self) -> None:
        """Raise a refusal if no other request can be answered now."""
        if self.stopping:
            raise Refusal(503, "the server is stopping; ask another one.")
        if len(self.waiting) >= self.limits.queue:
            raise Refusal(429, f"{len(self.waiting)} requests wait already; ask again in a moment.")

    async def ask(self, inputs: Arrays) -> Arrays:
        """Return the answer to a request."""
        self.admit()
        asked = _Asked(inputs, len(next(iter(inputs.values()))), asyncio.get_running_loop().create_future(), self.run)
        self.waiting.append(asked)
        self._wake.set()
        try:
            with _refused(503, f"there was no answer within {self.limits.timeout:g} seconds; ask later.", TimeoutError):
                answer = await asyncio.wait_for(asked.answer, self.limits.timeout)
        finally:
            if asked in self.waiting:
                self.waiting.remove(asked)
        if isinstance(answer, Refusal):
            raise answer
        return answer

    async def work(self) -> None:
        """Answer until cancelled."""
        while True:
            await self._wake.wait()
            if sum(asked.rows for asked in self.waiting) < self.limits.rows:
                await asyncio.sleep(self.limits.delay)
            batch = self._next()
            if batch:
                found = await asyncio.get_running_loop().run_in_executor(self._pool, self._answers, batch)
                for asked, answer in zip(batch, found):
                    if not asked.answer.done():  # else whoever asked has gone
                        asked.answer.set_result(answer)
            if not self.waiting:
                self._wake.clear()

    def _next(self) -> list[_Asked]:
        """Take requests of equal shapes out of the queue, up to as many rows as make a batch."""
        batch, rows = list[_Asked](), 0
        for asked in list(self.waiting):
            if batch and (asked.key != batch[0].key or rows + asked.rows > self.limits.rows):
                continue
            batch.append(asked)
            rows += asked.rows
            self.waiting.remove(asked)
        return batch

    def _answers(self, batch: list[_Asked]) -> list[Arrays | Refusal]:
        try:
            joined = {n: np.concatenate([asked.inputs[n] for asked in batch]) for n in batch[0].inputs}
            found = batch[0].run(joined)
        except Exception as error:  # a runtime raises what it likes about rows it cannot read
            if len(batch) > 1:  # one of them may be wrong: each by itself
                return [answer for asked in batch for answer in self._answers([asked])]
            return [Refusal(422, f"the model cannot read these rows ({' '.join(str(error).split())[:200]}).")]
        ends = np.cumsum([asked.rows for asked in batch])
        self.batches, self.rows = self.batches + 1, self.rows + int(ends[-1])
        return [{n: v[end - asked.rows : end] for n, v in found.items()} for asked, end in zip(batch, ends)]


def read_json(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a body; Refusal for anything else."""
    with _refused(400, "the body is no JSON ({}).", ValueError):
        content = json.loads(body)
    if not isinstance(content, dict):
        raise Refusal(400, f"the body is a JSON {type(content).__name__}; give an object.")
    return content


def read_inference(model: Model, body: bytes, length: str | None, most: int) -> tuple[dict[str, Any], Arrays]:
    """Return an inference request and its arrays: JSON that ends at a length, then the bytes of binary tensors; at most so many rows."""
    if length is not None and not (re.fullmatch("[0-9]{1,18}", length) and int(length) <= len(body)):
        raise Refusal(400, f"{_LENGTH} is {length[:20]!r}; give the number of bytes of the JSON part of the body.")
    end = len(body) if length is None else int(length)
    asked, binary = read_json(body[:end]), memoryview(body)[end:]
    given = _field(asked, "inputs", list)
    if given is None:
        raise Refusal(422, "inputs is missing, or no list; give the model's inputs.")
    known, found = {i["name"]: i for i in model.inputs}, Arrays()
    for item in given:
        name = _field(item, "name", str)
        if name not in known or name in found:
            raise Refusal(422, f"inputs names {str(name)[:40]!r}; the model reads each of {', '.join(known)} once.")
        found[name], used = _array(known[name], item, binary)
        binary = binary[used:]
    if len(found) < len(known) or len(binary):
        what = f"{len(binary)} bytes after the last tensor" if len(binary) else "too few inputs"
        raise Refusal(422, f"there are {what}; the model reads each of {', '.join(known)} once.")
    return asked, _accepted(model, {name: found[name] for name in known}, most)


def _accepted(model: Model, inputs: Arrays, most: int) -> Arrays:
    """Return arrays of equally many rows, at most so many, without numbers that no model was fitted on; NaN is a gap of a table."""
    rows = {len(value) for value in inputs.values()}
    if len(rows) > 1 or max(rows) > most:
        said = " and ".join(map(str, sorted(rows)))
        raise Refusal(422, f"the inputs have {said} rows; give equally many, at most {most}.")
    for name, value in inputs.items():
        odd = np.isinf if model.table is not None else lambda v: ~np.isfinite(v)
        if value.dtype.kind == "f" and odd(value).any():
            raise Refusal(422, f"{name} holds NaN, infinite or too large numbers; leave out those rows.")
    return inputs


def _array(tensor: Tensor, item: dict[str, Any], binary: memoryview) -> tuple[np.ndarray, int]:
    """Return the array of a request's input, and how many binary bytes it took."""
    name, wanted, shape = tensor["name"], tensor["shape"], _field(item, "shape", list, [])
    sizes = all(type(n) is int and 0 <= n < 1 << 40 for n in shape) and len(shape) == len(wanted)
    if not sizes or not shape[0] or not all(n in (-1, given) for n, given in zip(wanted, shape)):
        given = str(item.get("shape"))[:80]
        raise Refusal(422, f"{name} has the shape {given}; the model reads {wanted}, -1 for any size above 0.")
    if item.get("datatype") != tensor["datatype"]:
        raise Refusal(422, f"{name} has the datatype {str(item.get('datatype'))[:20]!r}; give {tensor['datatype']}.")
    dtype, count = _TYPES[tensor["datatype"]], math.prod(shape)
    size = _field(item, "parameters", dict, {}).get("binary_data_size")
    if size is None:
        return _from_list(item.get("data"), dtype, shape, name), 0
    if type(size) is not int or size != count * dtype.itemsize or size > len(binary):
        raise Refusal(422, f"binary_data_size of {name} is {str(size)[:20]}; {shape} needs {count * dtype.itemsize}.")
    values = np.frombuffer(binary[:size], "u1" if dtype.kind == "b" else dtype)
    return (values != 0 if dtype.kind == "b" else values).reshape(shape), size


def _from_list(data: Any, dtype: np.dtype, shape: list[int], name: str) -> np.ndarray:
    """Return the numbers of a flat or nested list; null is NaN."""
    with _refused(422, f"the data of {name} do not make {shape} ({{}}).", ValueError, TypeError, OverflowError):
        cells = np.array(data, object)  # text in an array of its own type takes the room of the longest for each
        if not set(map(type, cells.ravel().tolist())) <= (
            {bool} if dtype.kind == "b" else {bool, int, float, type(None)}
        ):
            raise ValueError(f"they are no {'booleans' if dtype.kind == 'b' else 'numbers'}")
        with np.errstate(over="ignore"):  # infinite, which is refused later on
            found = cells.astype(dtype)
        if dtype.kind in "iu" and not np.array_equal(found, cells):
            raise ValueError(f"some are no whole numbers of {dtype.itemsize} bytes")
        return found.reshape(shape)


def inference(model: Model, asked: dict[str, Any], found: Arrays) -> tuple[bytes, dict[str, str]]:
    """Return the protocol's answer, with binary tensors where they are asked for, and its headers."""
    everything = _field(asked, "parameters", dict, {}).get("binary_data_output")
    wanted = _field(asked, "outputs", list, [None]) if asked.get("outputs") else [{"name": name} for name in found]
    binary = {_field(o, "name", str): _field(o, "parameters", dict, {}).get("binary_data", everything) for o in wanted}
    if not binary.keys() <= found.keys():
        raise Refusal(422, f"outputs names what the model does not give; it gives {', '.join(found)}.")
    kinds, outputs, parts = {o["name"]: o["datatype"] for o in model.outputs}, [], []
    for name, as_bytes in binary.items():
        value = np.ascontiguousarray(found[name], _TYPES[kinds[name]])
        about: dict[str, Any] = {"name": name, "datatype": kinds[name], "shape": list(value.shape)}
        if as_bytes is True:
            parts.append(value.tobytes())
            about["parameters"] = {"binary_data_size": value.nbytes}
        else:
            about["data"] = plain(value.reshape(-1))
        outputs.append(about)
    answer: dict[str, Any] = {"model_name": model.name, "model_version": "1", "outputs": outputs}
    if "id" in asked:
        answer["id"] = str(asked["id"])[:200]
    text = json.dumps(answer).encode()
    if not parts:
        return text, {"content-type": "application/json"}
    return b"".join([text, *parts]), {"content-type": "application/octet-stream", _LENGTH: str(len(text))}


def plain(value: np.ndarray) -> Any:
    """Return an array as JSON has it; numbers that JSON lacks become null.

    >>> plain(np.array([[1.0, np.inf]]))
    [[1.0, None]]
    """
    if value.dtype.kind != "f" or np.isfinite(value).all():
        return value.tolist()
    boxed = value.astype(object)
    boxed[~np.isfinite(value)] = None
    return boxed.tolist()


def read_rows(model: Model, content: dict[str, Any], most: int) -> tuple[Arrays, list[str]]:
    """Return the arrays of rows, objects by column for a table, else lists of numbers; and warnings, such as of values that training did not have."""
    rows = _field(content, "rows", list, [])
    if not 0 < len(rows) <= most:
        raise Refusal(422, f'rows is missing, empty or too long; give {{"rows": [...]}} with 1 to {most} of them.')
    only = model.inputs[0]
    if model.table is None:
        if len(model.inputs) != 1:
            raise Refusal(422, f"the model reads several inputs; ask /v2/models/{model.name}/infer.")
        found = _from_list(rows, _TYPES[only["datatype"]], [len(rows), *only["shape"][1:]], "rows")
        return _accepted(model, {only["name"]: found}, most), []
    import pandas as pd

    names = [c.name for c in model.table.used]
    for row in rows:
        lacking = [n for n in names if n not in row] if isinstance(row, dict) else names
        if lacking:
            raise Refusal(422, f"a row lacks {lacking[0]!r}; give each of {', '.join(names[:20])}, null for no value.")
        if any(isinstance(row[n], list | dict) for n in names):
            raise Refusal(422, "a row holds a list or an object; give texts, numbers or null.")
    wrong = _refused(422, "{}", ChoralError, ValueError, TypeError, ArithmeticError)
    with wrong, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = model.table.read(pd.DataFrame({n: [row[n] for row in rows] for n in names}), path="rows")
    return _accepted(model, {only["name"]: found}, most), [str(warning.message) for warning in told]


def row_answers(model: Model, found: Arrays) -> list[dict[str, Any]]:
    """Return one object for each row, probabilities by the names of classes where there are any."""
    classes = model.about.get("classes") or []
    columns = {name: plain(value) for name, value in found.items()}
    answers = [dict(zip(columns, row)) for row in zip(*columns.values())]
    if "probs" in found and found["probs"].shape[1:] == (len(classes),):
        for i, answer in enumerate(answers):
            probs = dict(zip(classes, answer["probs"]))
            best = max(classes, key=lambda name: probs[name] or 0.0)
            answers[i] = {"prediction": best} | answer | {"probs": probs}
            if "set" in answer:
                answers[i]["set"] = [name for name, inside in zip(classes, answer["set"]) if inside]
    return answers


def application(
    model: Model,
    *,
    limits: Limits | None = None,
    token: str | None = None,
    reload: Callable[[], Model] | None = None,
) -> Any:
    """Return the server as an ASGI application (Starlette's).

    Args:
        token: what requests must bring as `Authorization: Bearer ...`, but for health and the page; None lets all in.
        reload: returns the model that answers from then on, when SIGHUP comes; requests that wait are answered by the one that read them.
    """
    needed("starlette", "serve")
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import HTMLResponse, PlainTextResponse, Response
    from starlette.routing import Route

    bounds, renewing, requests = limits or Limits(), asyncio.Lock(), Counter[tuple[str, int]]()
    held = {"bytes": 0, "seconds": 0.0}
    batcher = Batcher(model.run, bounds)
    page = Path(__file__).with_name("page.html").read_text()

    def as_json(content: dict[str, Any], status: int = 200) -> Response:
        again = {"retry-after": "1"} if status in (429, 503) else None
        return Response(json.dumps(content), status, again, "application/json")

    @asynccontextmanager
    async def body_of(request: Request) -> AsyncIterator[bytes]:
        """Read a body, whose bytes count among those of all requests until it is answered."""
        batcher.admit()
        if request.headers.get("content-encoding", "identity") != "identity":
            raise Refusal(415, "the body is compressed; send it as it is.")
        parts, size = list[bytes](), 0
        late = _refused(408, f"the body did not come within {bounds.timeout:g} seconds.", TimeoutError)
        try:
            with late, _refused(400, "the body did not come whole.", ClientDisconnect):
                async with asyncio.timeout(bounds.timeout):
                    async for part in request.stream():
                        parts.append(part)
                        size, held["bytes"] = size + len(part), held["bytes"] + len(part)
                        if size > bounds.body:
                            raise Refusal(413, f"the body is longer than {bounds.body:,} bytes; send fewer rows.")
                        if held["bytes"] > _BODIES * bounds.body:
                            raise Refusal(429, "the bodies of other requests take all room; ask again in a moment.")
            yield b"".join(parts)
        finally:
            held["bytes"] -= size

    def allowed(request: Request) -> bool:
        given = request.headers.get("authorization", "").encode("latin-1")  # as Starlette decoded it
        return token is None or hmac.compare_digest(given, f"Bearer {token}".encode())

    def route(path: str, answer: Callable[..., Any], *, method: str = "GET", free: bool = False) -> Route:
        async def call(request: Request) -> Response:
            started = time.perf_counter()
            try:
                if not free and not allowed(request):
                    raise Refusal(401, "the token is missing or wrong; send it as Authorization: Bearer TOKEN.")
                if "name" in request.path_params and request.path_params["name"] != model.name:
                    raise Refusal(404, f"there is no such model; there is {model.name}.")
                if method == "GET":
                    response = answer()
                else:
                    async with body_of(request) as body:
                        with _refused(400, "the body is nested too deeply.", RecursionError):
                            response = await answer(body, request.headers.get(_LENGTH))
            except Refusal as refusal:
                response = as_json({"error": refusal.sentence}, refusal.status)
            requests[path, response.status_code] += 1
            held["seconds"] += time.perf_counter() - started
            return response

        return Route(path, call, methods=[method])

    async def elsewhere(request: Request, error: Exception) -> Response:
        status = getattr(error, "status_code", 404)
        return as_json({"error": f"{request.method} of this path is no request of this server; see /v2 or /."}, status)

    def ready() -> Response:
        return as_json({"ready": not batcher.stopping}, 503 if batcher.stopping else 200)

    def server() -> Response:
        return as_json({"name": "choral", "version": __version__, "extensions": ["binary_tensor_data"]})

    def metadata() -> Response:
        platform = {"name": model.name, "versions": ["1"], "platform": "choral"}
        return as_json(platform | {"inputs": model.inputs, "outputs": model.outputs})

    async def infer(body: bytes, length: str | None) -> Response:
        own = model
        asked, inputs = read_inference(own, body, length, bounds.rows)
        content, headers = inference(own, asked, await batcher.ask(inputs))
        return Response(content, headers=headers)

    async def predict(body: bytes, length: str | None) -> Response:
        own = model
        inputs, told = read_rows(own, read_json(body), bounds.rows)
        answers = row_answers(own, await batcher.ask(inputs))
        return as_json({"rows": answers} | ({"warnings": told} if told else {}))

    def card() -> Response:
        shown = ("method", "task", "target", "members", "level", "digest", "versions", "understood")
        columns = [] if model.table is None else [c for c in model.table.describe() if c["inputs"]]
        about = {name: model.about.get(name) for name in shown}
        return as_json({"name": model.name, "about": about, "columns": columns, "inputs": model.inputs})

    def measured() -> Response:
        text = _METRICS.format(
            about=",".join(f"{n}={json.dumps(str(model.about.get(n)))}" for n in ("method", "task", "digest")),
            requests="\n".join(
                f'choral_requests_total{{route="{path}",code="{status}"}} {n}'
                for (path, status), n in sorted(requests.items())
            ),
            batcher=batcher,
            waiting=len(batcher.waiting),
            seconds=held["seconds"],
            count=requests.total(),
        )
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    def home() -> Response:
        own = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'"
        return HTMLResponse(page, headers={"content-security-policy": own, "x-content-type-options": "nosniff"})

    async def renew() -> None:
        nonlocal model
        async with renewing:  # the file that was read last answers
            try:
                model = await asyncio.to_thread(reload or (lambda: model))
                batcher.run = model.run
            except ChoralError as error:
                _LOG.warning("the model stays as it is: %s", error)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        working, tasks = asyncio.create_task(batcher.work()), set[Any]()
        if reload is not None and threading.current_thread() is threading.main_thread():
            asyncio.get_running_loop().add_signal_handler(
                signal.SIGHUP, lambda: tasks.add(asyncio.create_task(renew()))
            )
        yield
        batcher.stopping = True
        working.cancel()

    one = "/v2/models/{name}"
    versions = (one, one + "/versions/1")
    routes = [
        route("/", home, free=True),
        route("/card", card),
        route("/metrics", measured),
        route("/predict", predict, method="POST"),
        route("/v2", server),
        route("/v2/health/live", lambda: as_json({"live": True}), free=True),
        route("/v2/health/ready", ready, free=True),
        *(route(path, metadata) for path in versions),
        *(route(path + "/ready", ready, free=True) for path in versions),
        *(route(path + "/infer", infer, method="POST") for path in versions),
    ]
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: elsewhere})
    app.router.redirect_slashes = False  # to whatever host a request names
    app.state.batcher = batcher
    return app


def server(app: Any, *, host: str = "127.0.0.1", port: int = 8080) -> Any:
    """Return a server of uvicorn for the application; `run()` answers until a signal, and finishes what it has begun."""
    needed("uvicorn", "serve")
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Connection(H11Protocol):
        """Closes when no request has come whole within the time that connections are kept alive, however many of its bytes have."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._close_at(self.loop.time() + self.timeout_keep_alive)

        def data_received(self, data: bytes) -> None:
            ends = self.timeout_keep_alive_task
            super().data_received(data)  # which forgets when it ends
            answering = self.cycle is not None and not self.cycle.response_complete
            if ends is not None and self.timeout_keep_alive_task is None and not answering:
                self._close_at(ends.when())

        def _close_at(self, when: float) -> None:
            self.timeout_keep_alive_task = self.loop.call_at(when, self.timeout_keep_alive_handler)

    class Server(uvicorn.Server):
        """Says that it stops before it does, and ends well then; a second signal ends it at once."""

        should_exit: bool

        def handle_exit(self, sig: int, frame: Any) -> None:
            app.state.batcher.stopping = True
            self.force_exit, self.should_exit = self.should_exit, True

    options: dict[str, Any] = {"log_level": "warning", "access_log": False, "server_header": False, "ws": "none"}
    return Server(uvicorn.Config(app, host=host, port=port, http=Connection, timeout_graceful_shutdown=30, **options))
