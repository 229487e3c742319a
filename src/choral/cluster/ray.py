"""Ray: leaves as tasks on a cluster, or on this machine. The extra `choral[ray]` installs it.

A task trains one leaf and returns its path and digest; members go to the run's place. When a worker or its machine dies, Ray starts the
leaf elsewhere, where it goes on from its newest checkpoint. What a leaf itself raises is not tried again.

Listen to leaves that other processes train: their events are read where they are written.

Leaves as tasks of a Ray cluster, seen from the process that started them, and what a worker does.

What counts is the manifest of a leaf, not what Ray says of its task: an answer may die with a machine, or Ray may stop answering at all. Ray is
asked, each time with a limit, and manifests are looked at meanwhile.
"""

import atexit
import contextlib
import functools
import json
import os
import socket
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from choral.base.arguments import is_number, is_whole
from choral.base.errors import ChoralError, InputError, RunError
from choral.base.values import Value
from choral.cluster.leaf import Field, admit, train_leaf
from choral.cluster.leaves import Leaf, leaves_of
from choral.cluster.manifest import Manifest, key_of, read_manifest
from choral.cluster.objects import Objects, Question
from choral.cluster.run import Hears, Plot
from choral.cluster.sites import opened
from choral.engine.folder import read_plan

_SHARE = 20  # of the time, at most, that listening or looking takes: one in so many


class Ear:
    """Hears the events of leaves, each once, however often a leaf is begun again.

    Args:
        objects: where the leaves write.
        leaves: those that are trained.
        hear: is told every event, with the leaf's path.
    """

    def __init__(self, objects: Objects, leaves: Sequence[Leaf], hear: Hears):
        self.objects, self.hear = objects, hear
        self._path_of = {leaf.folder: leaf.path for leaf in leaves}
        self._read: dict[str, int] = {}  # bytes of each object that were heard
        self._heard: dict[str, set[int]] = {}  # lines of each leaf: an attempt begins with those of the one before
        self._next = 0.0
        self._skip_old()

    def _skip_old(self) -> None:
        """Pass over what was written before."""
        for name in self._logs(""):
            self._lines(name)

    def _logs(self, folder: str) -> list[str]:
        names = self.objects.names(folder or "leaves")
        return [n for n in names if n.endswith(".jsonl") and n.rpartition("/")[0] in self._path_of]

    def listen(self, *, folder: str = "") -> None:
        """Tell what is new, of all leaves or of one folder; not too often."""
        started = time.monotonic()
        if not folder and started < self._next:
            return
        try:
            for name in self._logs(folder):
                for line in self._lines(name):
                    self._tell(self._path_of[name.rpartition("/")[0]], line)
        except RunError:  # a store that does not answer just now; nothing depends on what is heard
            pass
        self._next = time.monotonic() + max(0.5, _SHARE * (time.monotonic() - started))

    def _lines(self, name: str) -> list[bytes]:
        """Return the whole lines of an object that are new to its leaf."""
        data = self.objects.get(name) or b""
        begin = self._read.get(name, 0)
        end = data.rfind(b"\n") + 1
        if end <= begin:
            return []
        self._read[name] = end
        heard = self._heard.setdefault(name.rpartition("/")[0], set())
        found = [line for line in data[begin:end].splitlines() if hash(line) not in heard]
        heard.update(map(hash, found))
        return found

    def _tell(self, path: str, line: bytes) -> None:
        try:
            event: dict[str, Any] = json.loads(line)
        except ValueError:
            return
        event.pop("time", None)
        self.hear(path, event)


R = TypeVar("R")
_PAUSE = 0.5  # seconds between two looks at what is done
_LOOK = 3.0  # seconds between two looks at manifests, at least
_ANSWER = 60.0  # seconds that Ray has for one answer
_SILENCE = 300.0  # seconds without an answer of Ray or an event of any leaf, after which nobody is there


class Tasks:
    """Tasks of leaves that are under way.

    Args:
        ray: the module, connected.
        plots: the leaves of one or more runs.
        means: processors of one leaf, in Ray's words.
        retries: how often a leaf is started again because its worker or machine died.
    """

    def __init__(self, ray: Any, plots: Sequence[Plot], *, means: dict[str, float], retries: int):
        self.ray, self.plots, self.retries, self.failed = ray, plots, retries, dict[str, str]()
        self.remote = ray.remote(_train)
        self.how = means | {"max_retries": retries, "retry_exceptions": False}
        # in a list, so that a worker fetches a call only if it does not have it
        self.calls = [[ray.put(_packed(plot.call, ray))] for plot in plots]
        self.ears = [Ear(plot.field.objects, plot.waiting, self._hearing(plot.hear)) for plot in plots]
        self.left = [{leaf.path: leaf for leaf in plot.waiting} for plot in plots]
        self.running: dict[Any, tuple[int, Leaf]] = {}
        self._wait: Question[list[Any]] | None = None
        self._open: list[Question[Any]] = []  # of which it is not known whether they ended
        self._heard_at = self._answered_at = time.monotonic()
        self._look_at = time.monotonic() + _LOOK
        for number, left in enumerate(self.left):
            self._submit(number, [leaf for leaf in left.values() if leaf.after not in left])

    def _hearing(self, hear: Callable[[str, dict[str, Any]], None]) -> Callable[[str, dict[str, Any]], None]:
        def note(path: str, event: dict[str, Any]) -> None:
            self._heard_at = time.monotonic()
            hear(path, event)

        return note

    def _submit(self, number: int, leaves: Sequence[Leaf]) -> None:
        plot = self.plots[number]
        for leaf in leaves:
            del self.left[number][leaf.path]
            task = self.remote.options(name=f"{plot.call.recipe.name} {leaf.path}", **self.how)
            what = self.calls[number], plot.run_dir, leaf.path, key_of(plot.field.plan, leaf)
            try:
                ref = self._asked(functools.partial(task.remote, *what))
            except TimeoutError as error:
                raise RunError(
                    f"leaf '{leaf.path}' could not be given to Ray ({error}); check the cluster, then run the same command again."
                ) from error
            self.running[ref] = number, leaf

    def _asked(self, act: Callable[[], R]) -> R:
        """Return what Ray answers; TimeoutError if it does not."""
        question = Question(act)
        self._open.append(question)
        found = question.answer(_ANSWER)
        self._answered_at = time.monotonic()
        return found

    @property
    def is_answered(self) -> bool:
        """Whether no call to Ray is under way still: one is waited for a little, since Ray must not be shut down below it."""
        until = time.monotonic() + _ANSWER / 6
        self._open = [question for question in self._open if not question.ended(until - time.monotonic())]
        return not self._open

    def finish(self) -> dict[str, str]:
        """Wait for all; return the leaves that could not be trained, each with the reason."""
        while self.running:
            done = self._done()
            for ref in done or self._trained_unsaid():
                number, leaf = self.running.pop(ref)
                reason = self._reason(ref, leaf) if ref in done else ""
                if reason and self._manifest(number, leaf) is not None:
                    reason = ""  # whatever became of its task, the leaf is trained
                self.ears[number].listen(folder=leaf.folder)
                if reason:
                    self._fail(number, leaf, reason)
                else:
                    self._submit(number, [o for o in self.left[number].values() if o.after == leaf.path])
            for ear in self.ears:
                ear.listen()
            self._check_heard()
        return self.failed

    def _done(self) -> list[Any]:
        """Return tasks of which Ray says that they are done; nothing while it does not answer."""
        if self._wait is None:
            refs = list(self.running)
            self._wait = Question(lambda: self.ray.wait(refs, num_returns=1, timeout=_PAUSE, fetch_local=False)[0])
            self._open = [*(question for question in self._open if not question.ended(0.0)), self._wait]
        try:
            found = self._wait.answer(2 * _PAUSE)
        except TimeoutError:
            return []
        self._wait, self._answered_at = None, time.monotonic()
        return [ref for ref in found if ref in self.running]

    def _trained_unsaid(self) -> list[Any]:
        """Return tasks whose leaves are trained though nothing was heard of it."""
        started = time.monotonic()
        if started < self._look_at:
            return []
        found = [ref for ref, (number, leaf) in self.running.items() if self._manifest(number, leaf) is not None]
        self._look_at = time.monotonic() + max(_LOOK, _SHARE * (time.monotonic() - started))
        return found

    def _check_heard(self) -> None:
        """Raise RunError if neither Ray nor any leaf has said anything for long."""
        silent = time.monotonic() - max(self._heard_at, self._answered_at)
        if self.running and silent > _SILENCE:
            paths = ", ".join(leaf.path for _, leaf in list(self.running.values())[:8])
            raise RunError(
                f"Ray has not answered for {silent:.0f} s, and no leaf has written anything (under way: {paths}); check the cluster, then run the "
                "same command again."
            )

    def _manifest(self, number: int, leaf: Leaf) -> Manifest | None:
        field = self.plots[number].field
        try:
            return read_manifest(field.objects, key_of(field.plan, leaf), leaf)
        except RunError:  # a store that does not answer just now
            return None

    def _fail(self, number: int, leaf: Leaf, reason: str) -> None:
        self.failed[f"{self.plots[number].run_dir} {leaf.path}"] = reason
        for other in [one for one in self.left[number].values() if one.after == leaf.path]:
            del self.left[number][other.path]
            self._fail(number, other, "")

    def _reason(self, ref: Any, leaf: Leaf) -> str:
        """Return why a task failed, nothing if it did not."""
        try:
            self._asked(lambda: self.ray.get(ref, timeout=_ANSWER / 2))
        except (TimeoutError, self.ray.exceptions.GetTimeoutError):
            return f"leaf '{leaf.path}': what its worker answered was lost; run the same command again"
        except self.ray.exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, ChoralError):
                return str(cause)
            said = (str(cause or error).strip().splitlines() or [type(error).__name__])[0]
            return f"leaf '{leaf.path}': {type(cause or error).__name__}: {said}"
        except self.ray.exceptions.RayError as error:
            said = (str(error).strip().splitlines() or [type(error).__name__])[0]
            return f"leaf '{leaf.path}': its worker or machine died, and it was not to be started again ({said})"
        return ""

    def cancel(self) -> None:
        """End all tasks; what they trained up to their checkpoints is kept."""

        def end() -> None:
            for ref in list(self.running):
                with contextlib.suppress(Exception):  # a cluster that is gone has ended them
                    self.ray.cancel(ref, force=True)

        self._open.append(Question(end))


def _packed(call: Any, ray: Any) -> bytes:
    """Return a call as bytes; InputError for a network or data that only this process can hold."""
    try:
        return bytes(ray.cloudpickle.dumps(call))
    except Exception as error:  # whatever the user's own objects raise
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"the network or data cannot be sent to other processes ({said}); give what can be pickled: open files, locks and connections in "
            "build or in __getitem__."
        ) from error


_UNDERSTOOD: dict[str, tuple[Any, Field]] = {}
"""What this worker has understood, by the reference of the call: one is enough, and data is not held twice."""


def _train(call: list[Any], run_dir: Any, path: str, key: str) -> tuple[str, str]:
    """Train a leaf in a worker; return its path and the digest of its members.

    Args:
        call: the reference of the run's arguments, in a list so that they are fetched only if they are needed.
        run_dir: where the run is.
        path: the leaf.
        key: its key, as whoever started the task sees it.
    """
    import ray

    name = call[0].hex()
    if name not in _UNDERSTOOD:
        made = ray.cloudpickle.loads(ray.get(call[0]))
        _UNDERSTOOD.clear()
        _UNDERSTOOD[name] = made, _understood(made, run_dir, path, key)
    _, field = _UNDERSTOOD[name]
    return path, train_leaf(field, path).digest


def _understood(call: Any, run_dir: Any, path: str, key: str) -> Field:
    """Return what the leaves of a run have in common, after a look at whether this machine sees the same run."""
    with opened(run_dir) as (folder, objects):
        plan = read_plan(folder)
        leaves = {} if plan is None or "leaves" not in plan else {leaf.path: leaf for leaf in leaves_of(plan)}
        if plan is None or path not in leaves or key_of(plan, leaves[path]) != key:
            raise RunError(
                f"leaf '{path}': {objects.where} is not the same place on this machine; give a run_dir that all machines see (a shared "
                "folder, or a URL such as s3://...)."
            )
        job = call.job()
        admit(objects, plan, job, seed=call["seed"], executor=call.compute.executor)
        leaves = {leaf.path: leaf for leaf in leaves_of(plan, job.recipe)}
        return Field(objects, plan, job, leaves, call.compute.checkpoint_seconds)


_LEAVING = 30.0  # seconds that Ray has to shut down
_ANSWERING = 10.0  # seconds that an address has to answer
_JOINING = 300.0  # seconds in which a machine that is large enough may join a cluster


@dataclass(frozen=True, kw_only=True)
class Ray(Value):
    """A Ray cluster that trains the leaves of a run.

    Args:
        address: 'auto', 'ray://host:10001' or 'host:6379' for a cluster that runs; None starts Ray on this machine, and stops it at the end.
        cpus: processors of one leaf, which are its threads unless `fit` is given another number.
        gpus: graphics processors of one leaf.
        retries: how often a leaf is started again because its worker or machine died.
        options: further ones of `ray.init`, such as runtime_env.

    >>> Ray(cpus=2)
    Ray(address=None, cpus=2, gpus=0, retries=50, options={})
    """

    address: str | None = None
    cpus: float = 1
    gpus: float = 0
    retries: int = 50
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.address is not None and not (isinstance(self.address, str) and self.address.strip()):
            raise InputError(
                f"Ray: address is {self.address!r}; give 'auto', 'ray://host:10001' or 'host:6379', or leave it out to start Ray here."
            )
        if not is_number(self.cpus, 0) or not self.cpus > 0 or not is_number(self.gpus, 0):
            raise InputError(f"Ray: cpus is {self.cpus!r}, gpus is {self.gpus!r}; give more than 0 and 0 or more.")
        if not is_whole(self.retries, 0):
            raise InputError(f"Ray: retries is {self.retries!r}; give a whole number of 0 or more.")

    @property
    def threads(self) -> int:
        """Threads of one leaf."""
        return max(1, int(self.cpus))

    @contextlib.contextmanager
    def connected(self) -> Iterator["RayWorkers"]:
        """Yield the workers of the cluster; one that was started or joined here is left at the end."""
        ray = _imported()
        ours = not ray.is_initialized()
        if ours:
            _refuse_silent(self.address)
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray's future default
            # 'local', since without an address Ray joins whatever cluster this machine last heard of
            start = {"address": self.address or "local"} | ({} if self.address else {"include_dashboard": False})
            try:
                ray.init(**({"logging_level": "error", "log_to_driver": False} | start | self.options))
            except Exception as error:  # a slow start raises nothing more precise
                said = (str(error).strip().splitlines() or [type(error).__name__])[0]
                raise RunError(
                    f"Ray at {self.address or 'this machine'} cannot be reached ({said}); check the address."
                ) from error
        workers = RayWorkers(self, ray)
        try:
            workers.await_room(_JOINING if self.address or not ours else 0.0)
            yield workers
        finally:
            if ours:
                _leave(ray, workers)


def _refuse_silent(address: str | None) -> None:
    """Raise RunError for an address where nobody answers: Ray would ask again for minutes."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWERING).close()
    except OSError as error:
        raise RunError(f"Ray at {address} cannot be reached ({error.strerror or error}); check the address.") from error


def _leave(ray: Any, workers: "RayWorkers") -> None:
    """Leave the cluster, or stop it if it was started here; one that does not let go is left behind."""
    leaving = None if workers.is_deaf else Question(ray.shutdown)
    if leaving is not None and leaving.ended(_LEAVING):
        return
    atexit.unregister(ray.shutdown)  # which would wait without an end when the process ends
    if leaving is not None:
        atexit.register(leaving.ended, _LEAVING)
    warnings.warn(
        "Ray does not let go of this process and is left as it is; nothing of the run depends on it.", stacklevel=2
    )


_FLOOD = (
    "RAY_DEDUP_LOGS_SKIP_REGEX",
    "Raylet is terminated|Task _train failed|marked dead because|worker died or was killed",
)
"""What Ray prints of every worker and machine that dies, 20 lines of logs each, on standard output: leaves go on elsewhere, and a pipe that nobody
reads would be full. Ray reads this when it is imported."""


def _imported() -> Any:
    os.environ.setdefault(*_FLOOD)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import ray
    except ImportError as error:
        raise InputError("cluster=choral.Ray() needs ray; install it: pip install 'choral[ray]'.") from error
    return ray


class RayWorkers:
    """The workers of a cluster that is connected."""

    def __init__(self, cluster: Ray, ray: Any):
        self.cluster, self.ray = cluster, ray
        self.is_deaf = False
        """Whether a call to Ray never came back."""

    @property
    def slots(self) -> int:
        """Leaves that can be trained at once."""
        have: dict[str, float] = self._answer(self.ray.cluster_resources)
        by_gpu = have.get("GPU", 0) / self.cluster.gpus if self.cluster.gpus else float("inf")
        return max(1, int(min(have.get("CPU", 0) / self.cluster.cpus, by_gpu)))

    def await_room(self, seconds: float) -> None:
        """Wait some seconds for a machine that a leaf fits on; RunError if there is none."""
        until, said = time.monotonic() + seconds, False
        while not (largest := self._largest())[0]:
            wants = f"a leaf wants {self.cluster.cpus:g} CPU and {self.cluster.gpus:g} GPU, and {largest[1]}"
            if time.monotonic() >= until:
                raise RunError(f"{wants}; give fewer (choral.Ray(cpus=..., gpus=...)), or another cluster.")
            if not said:
                warnings.warn(f"{wants}; waiting up to {seconds:.0f} s for one that joins.", stacklevel=3)
                said = True
            time.sleep(min(2.0, seconds))

    def _largest(self) -> tuple[bool, str]:
        """Return whether a leaf fits on a machine of the cluster, and what they have."""
        nodes = [node["Resources"] for node in self._answer(self.ray.nodes) if node.get("Alive", node.get("alive"))]
        have = [(node.get("CPU", 0.0), node.get("GPU", 0.0)) for node in nodes]
        fits = any(cpu >= self.cluster.cpus and gpu >= self.cluster.gpus for cpu, gpu in have)
        shown = "; ".join(f"{cpu:g} CPU and {gpu:g} GPU" for cpu, gpu in sorted(set(have), reverse=True)[:3])
        return fits, f"the machines of Ray have {shown or 'nothing'}"

    def _answer(self, act: Callable[[], Any]) -> Any:
        try:
            return Question(act).answer(_LEAVING)
        except TimeoutError as error:
            self.is_deaf = True
            raise RunError(f"Ray does not say what it has ({error}); check the cluster.") from error

    def train(self, plots: Sequence[Plot]) -> dict[str, str]:
        """Train the leaves of one or more runs side by side, each after the one it goes on from."""
        means = {"num_cpus": self.cluster.cpus, "num_gpus": self.cluster.gpus}
        tasks = Tasks(self.ray, plots, means=means, retries=self.cluster.retries)
        try:
            return tasks.finish()
        except BaseException:
            tasks.cancel()
            raise
        finally:
            self.is_deaf = self.is_deaf or not tasks.is_answered
