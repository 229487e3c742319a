"""The process of a command: the one place where errors become a sentence and an exit code, and what torchrun starts.

Of the processes that torchrun starts, which share every batch of training, the first one speaks and writes.

0    done
2    a mistake of the user, or something the machine refused (no space, no memory, no permission): one sentence
1    a mistake of choral: the traceback and a sentence
130  interrupted by the keyboard
143  ended by SIGTERM

With CHORAL_DEBUG=1 in the environment the traceback is shown as well.
"""

import contextlib
import gc
import os
import signal
import sys
import traceback
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import typer

from choral.base.errors import ChoralError
from choral.cli.output import note

_USAGE: Any = typer.BadParameter.__mro__[2]  # the base of every error about words of the command line
_LONGEST = 1000  # characters of a sentence
_INTERRUPTED = 130
_AGAIN = "run the same command again to go on from the last checkpoint."
_MISTAKES = (ValueError, RuntimeError, ImportError, EOFError, zipfile.BadZipFile)


def guarded(run: Callable[[], int]) -> int:
    """Return the exit code of a command; every error is said in one sentence on standard error."""
    with _ended_by_signals() as interrupts, _warnings_said():
        try:
            code = run()
            if code == _INTERRUPTED:  # typer has caught it
                raise KeyboardInterrupt
            sys.stdout.flush()
            return code
        except BaseException as error:
            if isinstance(error, SystemExit):
                return error.code if isinstance(error.code, int) else int(bool(error.code))
            code, text = said(KeyboardInterrupt() if interrupts else error)  # an import cut short may raise anything
            if code == 1 or os.environ.get("CHORAL_DEBUG", "") not in ("", "0"):
                traceback.print_exc()
            if text:
                note(f"choral: {text}")
            return code
        finally:
            _leave_no_output()


def said(error: BaseException) -> tuple[int, str]:
    """Return the exit code of an error and its sentence.

    >>> said(FileNotFoundError(2, "No such file or directory", "a.csv"))
    (2, 'a.csv cannot be used (No such file or directory); check the path, its permissions and the space left.')
    """
    if any(isinstance(e, KeyboardInterrupt) for e in _chain(error)):
        return _INTERRUPTED, f"interrupted; {_AGAIN}"
    if isinstance(error, ChoralError):
        return 2, _line(str(error))
    if isinstance(error, _USAGE):
        where = error.ctx.command_path if getattr(error, "ctx", None) is not None else "choral"
        return 2, f"{_line(error.format_message()).rstrip('.')}; see {where} --help."
    if isinstance(error, BrokenPipeError):
        return 0, ""
    if isinstance(error, OSError):
        names = " and ".join(str(n) for n in (error.filename, error.filename2) if n is not None)
        reason = error.strerror or _line(str(error)) or type(error).__name__
        return 2, f"{names or 'a file'} cannot be used ({reason}); check the path, its permissions and the space left."
    if isinstance(error, MemoryError) or "not enough memory" in str(error) or "out of memory" in str(error):
        return (
            2,
            "there is not enough memory for this; give fewer rows or a smaller network, --members or --batch-size.",
        )
    if isinstance(error, _MISTAKES):
        reason = _line(str(error)) or type(error).__name__
        return 2, f"{reason.rstrip('.')} (CHORAL_DEBUG=1 shows where)."
    return 1, _line(f"unexpected {type(error).__name__}: {error}; it is a mistake of choral, please report it.")


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 3] + "..."


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[list[int]]:
    """Let SIGTERM end a command as the keyboard does: with a sentence, after files are closed; yield the interrupts seen."""
    interrupts: list[int] = []

    def interrupt(number: int, frame: Any) -> None:
        interrupts.append(number)
        raise KeyboardInterrupt

    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, _terminate)}
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not in the background of a shell
        before[signal.SIGINT] = signal.signal(signal.SIGINT, interrupt)
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _terminate(number: int, frame: Any) -> None:
    note(f"choral: terminated; {_AGAIN}")
    raise SystemExit(128 + number)


@contextlib.contextmanager
def _warnings_said() -> Iterator[None]:
    """Say warnings as sentences, without the line of code they come from."""

    def show(message: Warning | str, *place: Any, **more: Any) -> None:
        note(f"choral: {_line(str(message))}")

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", category=DeprecationWarning)  # for programmers, not for users
        warnings.filterwarnings("ignore", category=FutureWarning)
        warnings.showwarning = show
        yield


def _leave_no_output() -> None:
    """Let nothing be written when the interpreter ends: what cannot be written by then has been said."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@dataclass(frozen=True)
class Processes:
    """Number of this process, and how many there are."""

    rank: int = 0
    size: int = 1

    @property
    def several(self) -> bool:
        """Whether batches are shared."""
        return self.size > 1

    @property
    def speaks(self) -> bool:
        """Whether this one says and writes what comes out."""
        return self.rank == 0


def started_by_torchrun() -> bool:
    """Return whether this process is one of several that torchrun started."""
    return "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def joined() -> Processes:
    """Return the processes that this one has joined."""
    if not started_by_torchrun():
        return Processes()
    import torch.distributed as dist

    return Processes(dist.get_rank(), dist.get_world_size())


@contextlib.contextmanager
def processes() -> Iterator[None]:
    """Join the processes that torchrun started, for a block of code; all but the first are silent in it."""
    if not started_by_torchrun():
        yield
        return
    import torch
    import torch.distributed as dist

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        with contextlib.ExitStack() as stack:
            if dist.get_rank():
                nowhere = stack.enter_context(open(os.devnull, "w"))
                stack.enter_context(contextlib.redirect_stdout(nowhere))
                stack.enter_context(contextlib.redirect_stderr(nowhere))
            yield
        # Leave together: gloo's threads still release tensors of the last exchange, which a process that ends meanwhile does not survive.
        with contextlib.suppress(RuntimeError):  # another process failed, and torchrun says so
            dist.barrier()
    finally:
        dist.destroy_process_group()
        gc.collect()  # what still refers to the group keeps its threads
