"""Ray: leaves as tasks on a cluster, or on this machine. The extra `choral[ray]` installs it.

A task trains one leaf and returns its path and digest; members go to the run's place. When a worker or its machine dies, Ray starts the
leaf elsewhere, where it goes on from its newest checkpoint. What a leaf itself raises is not tried again.
"""

import atexit
import contextlib
import os
import socket
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from choral.base.arguments import is_number, is_whole
from choral.base.errors import InputError, RunError
from choral.base.values import Value
from choral.cluster.asking import Question
from choral.cluster.run import Plot
from choral.cluster.tasks import Tasks

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
