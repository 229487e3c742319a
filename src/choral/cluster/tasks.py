"""Leaves as tasks of a Ray cluster, seen from the process that started them, and what a worker does.

What counts is the manifest of a leaf, not what Ray says of its task: an answer may die with a machine, or Ray may stop answering at all. Ray is
asked, each time with a limit, and manifests are looked at meanwhile.
"""

import contextlib
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from choral.base.errors import ChoralError, InputError, RunError
from choral.cluster.asking import Question
from choral.cluster.leaf import Field, admit, train_leaf
from choral.cluster.leaves import Leaf, leaves_of
from choral.cluster.listening import Ear
from choral.cluster.manifest import Manifest, key_of, read_manifest
from choral.cluster.run import Plot
from choral.cluster.sites import opened
from choral.engine.folder import read_plan

R = TypeVar("R")
_PAUSE = 0.5  # seconds between two looks at what is done
_LOOK = 3.0  # seconds between two looks at manifests, at least
_SHARE = 20  # of the time, at most, that these looks take: one in so many
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
        admit(objects, plan, job, seed=call["seed"], executor=call["executor"])
        leaves = {leaf.path: leaf for leaf in leaves_of(plan, job.recipe)}
        return Field(objects, plan, job, leaves, call["checkpoint_seconds"])
