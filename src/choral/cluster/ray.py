"""Ray: leaves as tasks on a cluster, or on this machine. The extra `choral[ray]` installs it.

A task trains one leaf after the one it continues from; members go to the run's folder. If a worker or its machine dies, Ray restarts the
leaf elsewhere, from its newest checkpoint. Errors of the leaf itself are not retried.
"""

import contextlib
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from choral.base.errors import ChoralError, RunError, first_line, needed, warn
from choral.base.values import NotNegative, Positive, Value, Whole
from choral.cluster.leaf import Field, admitted, key_of, leaves_of, train_leaf
from choral.cluster.storage import storage_of
from choral.engine.events import events_in
from choral.engine.folder import read_plan
from choral.engine.run import Leaf

_PAUSE = 0.5  # seconds between two looks at what is done
_SHARE = 20  # listening takes one part in so many of the time, at most


@dataclass(frozen=True, kw_only=True)
class Ray(Value):
    """A Ray cluster that trains the leaves of a run.

    Args:
        address: 'auto', 'ray://host:10001' or 'host:6379' of a running cluster; None starts Ray on this machine and stops it at the end.
        cpus: CPUs of one leaf, and its threads unless `fit` is given another number.
        gpus: GPUs of one leaf.
        retries: how often a leaf is restarted after its worker or machine died.
        options: further options of `ray.init`, such as runtime_env.

    >>> Ray(cpus=2)
    Ray(address=None, cpus=2, gpus=0, retries=50, options={})
    """

    address: str | None = None
    cpus: Positive = 1
    gpus: NotNegative = 0
    retries: Whole = 50
    options: dict[str, Any] = field(default_factory=dict)

    @contextlib.contextmanager
    def connected(self) -> Iterator["RayWorkers"]:
        """Yield the workers of the cluster, and disconnect at the end."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray = needed("ray", "ray")
        ours = not ray.is_initialized()
        if ours:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray's future default
            # 'local', since without an address Ray joins whatever cluster this machine last heard of
            start: dict[str, Any] = {
                "logging_level": "error",
                "log_to_driver": False,
                "address": self.address or "local",
            }
            start |= {} if self.address else {"include_dashboard": False}
            try:
                ray.init(**start | self.options)
            except Exception as error:  # a slow start raises nothing more precise
                raise RunError(
                    f"Ray at {self.address or 'this machine'} cannot be reached ({first_line(error)}); check the address."
                ) from error
        workers = RayWorkers(self, ray)
        try:
            workers.check_room(may_grow=bool(self.address) or not ours)
            yield workers
        finally:
            if ours:
                ray.shutdown()


class RayWorkers:
    """The workers of a connected cluster."""

    def __init__(self, cluster: Ray, ray: Any):
        self.cluster, self.ray = cluster, ray

    @property
    def slots(self) -> int:
        """Number of leaves that can be trained at once."""
        have: dict[str, float] = self.ray.cluster_resources()
        by_gpu = have.get("GPU", 0) / self.cluster.gpus if self.cluster.gpus else float("inf")
        return max(1, int(min(have.get("CPU", 0) / self.cluster.cpus, by_gpu)))

    def check_room(self, *, may_grow: bool) -> None:
        """Raise RunError if a leaf fits on no machine; warn if one that is large enough may join."""
        nodes = [node["Resources"] for node in self.ray.nodes() if node.get("Alive", node.get("alive"))]
        have = {(node.get("CPU", 0.0), node.get("GPU", 0.0)) for node in nodes}
        if any(cpu >= self.cluster.cpus and gpu >= self.cluster.gpus for cpu, gpu in have):
            return
        shown = "; ".join(f"{cpu:g} CPU and {gpu:g} GPU" for cpu, gpu in sorted(have, reverse=True)[:3])
        wants = f"a leaf wants {self.cluster.cpus:g} CPU and {self.cluster.gpus:g} GPU, and the machines of Ray have {shown or 'nothing'}"
        if not may_grow:
            raise RunError(f"{wants}; give fewer (choral.Ray(cpus=..., gpus=...)), or another cluster.")
        warn(f"{wants}; waiting for one that joins.")

    def train(self, fields: Sequence[Field]) -> dict[str, str]:
        """Train leaves in parallel, each after the one it continues from; return the failed ones with their reasons."""
        ray, tasks = self.ray, dict[Any, tuple[Field, Leaf]]()
        how = {"num_cpus": self.cluster.cpus, "num_gpus": self.cluster.gpus, "max_retries": self.cluster.retries}
        remote = ray.remote(_train)
        for own in fields:
            begun = dict[str | None, Any]()
            # in a list, so that a worker fetches a call only if it does not have it
            call = [ray.put(ray.cloudpickle.dumps(own.call))] if own.waiting else []
            for leaf in own.waiting:
                task = remote.options(name=f"{own.call.recipe.name} {leaf.path}", retry_exceptions=False, **how)
                what = own.run_dir, leaf.path, key_of(own.plan, leaf)
                begun[leaf.path] = task.remote(call, *what, begun.get(leaf.after))  # which Ray waits for
                tasks[begun[leaf.path]] = own, leaf
        ears, left, failed = [Ear(field) for field in fields], list(tasks), dict[Any, str]()
        try:
            while left:
                done, left = ray.wait(left, num_returns=len(left), timeout=_PAUSE, fetch_local=False)
                failed |= {ref: why for ref in done if (why := self._reason(ref, tasks[ref][1]))}
                for ear in ears:
                    ear.listen(last=not left)
        except BaseException:
            for ref in left:
                with contextlib.suppress(Exception):  # a cluster that is gone has ended them
                    ray.cancel(ref, force=True)
            raise
        return {f"{own.run_dir} {leaf.path}": failed[ref] for ref, (own, leaf) in tasks.items() if ref in failed}

    def _reason(self, ref: Any, leaf: Leaf) -> str:
        try:
            self.ray.get(ref)
        except self.ray.exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, ChoralError):
                return str(cause)
            return f"leaf '{leaf.path}': {type(cause or error).__name__}: {first_line(cause or error)}"
        except self.ray.exceptions.RayError as error:
            return f"leaf '{leaf.path}': its worker or machine died, and no retries are left ({first_line(error)})"
        return ""


class Ear:
    """Reads the events of leaves that other processes train from their logs."""

    def __init__(self, field: Field):
        self.storage, self.hear = field.storage, field.hear
        self._logs = {f"{leaf.folder}/log.jsonl": leaf.path for leaf in field.waiting}
        self._read = {name: len(self._data(name)) for name in self._logs}  # bytes of each that were heard
        self._next = 0.0

    def _data(self, name: str) -> bytes:
        self.storage.pull(name)
        path = self.storage.folder / name
        return path.read_bytes() if path.exists() else b""

    def listen(self, *, last: bool = False) -> None:
        """Pass on new events, at most once in a while unless it is the last time."""
        started = time.monotonic()
        if started < self._next and not last:
            return
        with contextlib.suppress(RunError):  # a store that does not answer just now; nothing depends on what is heard
            for name, path in self._logs.items():
                data = self._data(name)
                begin, end = min(self._read[name], len(data)), data.rfind(b"\n") + 1  # a resumed leaf's log is cut
                for event in events_in(data[begin:end]):
                    event.pop("time", None)
                    self.hear(path, event)
                self._read[name] = max(begin, end)
        self._next = time.monotonic() + max(_PAUSE, _SHARE * (time.monotonic() - started))


_UNDERSTOOD: dict[str, tuple[Any, Field]] = {}
"""What this worker has understood, by the reference of the call: one is enough, and data is not held twice."""


def _train(call: list[Any], run_dir: Any, path: str, key: str, after: Any) -> str:
    """Train a leaf in a worker, after the leaf it continues from; return the digest of its members. `call` is a reference to the arguments."""
    import ray

    name = call[0].hex()
    if name not in _UNDERSTOOD:
        made, storage = ray.cloudpickle.loads(ray.get(call[0])), storage_of(run_dir)
        storage.pull("plan.json")
        plan = read_plan(storage.folder)
        keys = [] if plan is None or "leaves" not in plan else [key_of(plan, leaf) for leaf in leaves_of(plan)]
        if plan is None or key not in keys:
            raise RunError(
                f"leaf '{path}': {storage.where} is another place on this machine; give a run_dir that all machines can access (a shared "
                "folder, or a URL such as s3://...)."
            )
        _UNDERSTOOD.clear()
        _UNDERSTOOD[name] = made, admitted(made, storage, run_dir, plan)
    return train_leaf(_UNDERSTOOD[name][1], path).digest
