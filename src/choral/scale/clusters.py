"""Ray: leaves as tasks on a cluster, or on this machine. The extra `choral[ray]` installs it.

A task trains one leaf and returns its path and digest; members go to the run's place. When a worker or its machine dies, Ray starts the
leaf elsewhere, where it goes on from its newest checkpoint. What a leaf itself raises is not tried again.
"""

import contextlib
import os
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from choral.base.border import is_number, is_whole
from choral.base.errors import ChoralError, InputError, RunError
from choral.engine.folder import read_plan
from choral.engine.process import settled_process
from choral.scale.cutting import Leaf, leaves_of
from choral.scale.farm import Plot
from choral.scale.leaf import Field, admit, train_leaf
from choral.scale.listening import Ear
from choral.scale.manifest import Manifest, key_of, read_manifest
from choral.scale.sites import opened

_PAUSE = 0.5  # seconds between two looks at what is done
_LOOK = 20.0  # seconds between two looks at manifests


@dataclass(frozen=True, kw_only=True)
class Ray:
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
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray's future default
            # 'local', since without an address Ray joins whatever cluster this machine last heard of
            start = {"address": self.address or "local"} | ({} if self.address else {"include_dashboard": False})
            try:
                ray.init(**({"logging_level": "error", "log_to_driver": False} | start | self.options))
            except (ConnectionError, RuntimeError, ValueError) as error:
                said = (str(error).strip().splitlines() or [type(error).__name__])[0]
                raise RunError(
                    f"Ray at {self.address or 'this machine'} cannot be reached ({said}); check the address."
                ) from error
        try:
            yield RayWorkers(self, ray)
        finally:
            if ours:
                ray.shutdown()


def _imported() -> Any:
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

    @property
    def slots(self) -> int:
        """Leaves that can be trained at once."""
        have = self.ray.cluster_resources()
        by_gpu = have.get("GPU", 0) / self.cluster.gpus if self.cluster.gpus else float("inf")
        return max(1, int(min(have.get("CPU", 0) / self.cluster.cpus, by_gpu)))

    def train(self, plots: Sequence[Plot]) -> dict[str, str]:
        """Train the leaves of one or more runs side by side, each after the one it goes on from."""
        field = _Tasks(self.cluster, self.ray, plots)
        try:
            return field.finish()
        except BaseException:
            field.cancel()
            raise


class _Tasks:
    """Tasks of leaves that are under way."""

    def __init__(self, cluster: Ray, ray: Any, plots: Sequence[Plot]):
        self.ray, self.plots, self.failed = ray, plots, dict[str, str]()
        means = {"num_cpus": cluster.cpus, "num_gpus": cluster.gpus}
        self.remote = ray.remote(_train)
        self.how = means | {"max_retries": cluster.retries, "retry_exceptions": False}
        self.retries = cluster.retries
        # in a list, so that a worker fetches a call only if it does not have it
        self.calls = [[ray.put(_packed(plot.call, ray))] for plot in plots]
        self.ears = [Ear(plot.field.objects, plot.waiting, plot.hear) for plot in plots]
        self.left = [{leaf.path: leaf for leaf in plot.waiting} for plot in plots]
        self.running: dict[Any, tuple[int, Leaf]] = {}
        self._look_at = time.monotonic() + _LOOK
        for number, left in enumerate(self.left):
            self._submit(number, [leaf for leaf in left.values() if leaf.after not in left])

    def _submit(self, number: int, leaves: Sequence[Leaf]) -> None:
        plot = self.plots[number]
        for leaf in leaves:
            del self.left[number][leaf.path]
            key = key_of(plot.field.plan, leaf)
            ref = self.remote.options(name=f"{plot.call.recipe.name} {leaf.path}", **self.how).remote(
                self.calls[number], plot.run_dir, leaf.path, key
            )
            self.running[ref] = number, leaf

    def finish(self) -> dict[str, str]:
        """Wait for all; return the leaves that could not be trained, each with the reason."""
        while self.running:
            done, _ = self.ray.wait(list(self.running), num_returns=1, timeout=_PAUSE)
            trained = [] if done else self._trained_unsaid()
            for ref in done or trained:
                number, leaf = self.running.pop(ref)
                reason = "" if ref in trained else self._reason(ref, number, leaf)
                self.ears[number].listen(folder=leaf.folder)
                behind = [other for other in self.left[number].values() if other.after == leaf.path]
                if reason:
                    self._fail(number, leaf, reason)
                else:
                    self._submit(number, behind)
            for ear in self.ears:
                ear.listen()
        return self.failed

    def _trained_unsaid(self) -> list[Any]:
        """Return tasks whose leaves are trained though nothing was heard of it: an answer may die with a machine, a manifest does not."""
        if time.monotonic() < self._look_at:
            return []
        self._look_at = time.monotonic() + _LOOK
        return [ref for ref, (number, leaf) in self.running.items() if self._manifest(number, leaf) is not None]

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

    def _reason(self, ref: Any, number: int, leaf: Leaf) -> str:
        """Return why a task failed, nothing if it did not."""
        try:
            self.ray.get(ref, timeout=_LOOK)
        except self.ray.exceptions.GetTimeoutError:
            found = self._manifest(number, leaf)
            return "" if found else f"leaf '{leaf.path}': what its worker answered was lost; run the same command again"
        except self.ray.exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, ChoralError):
                return str(cause)
            said = (str(cause or error).strip().splitlines() or [type(error).__name__])[0]
            return f"leaf '{leaf.path}': {type(cause or error).__name__}: {said}"
        except self.ray.exceptions.RayError as error:
            said = (str(error).strip().splitlines() or [type(error).__name__])[0]
            return f"leaf '{leaf.path}': its worker or machine died {self.retries + 1} times ({said})"
        return ""

    def cancel(self) -> None:
        """End all tasks; what they trained up to their checkpoints is kept."""
        for ref in self.running:
            with contextlib.suppress(Exception):  # a cluster that is gone has ended them
                self.ray.cancel(ref, force=True)


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
        with settled_process(made.process_wide):
            _UNDERSTOOD[name] = made, _understood(made, run_dir, path, key)
    made, field = _UNDERSTOOD[name]
    with settled_process(made.process_wide):
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
        admit(objects, plan, job, seed=call["seed"], executor=call["executor"])
        return Field(objects, plan, job, leaves, call["checkpoint_seconds"])
