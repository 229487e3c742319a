"""The process of a command: errors become one sentence and an exit code; torchrun's processes share batches.

Of the processes that torchrun starts, only the first prints and writes.

0    done
2    an error of the user or the machine (no space, no memory, no permission): one sentence
1    an error of choral: the traceback and a sentence
130  interrupted by the keyboard
143  ended by SIGTERM

With CHORAL_DEBUG=1 in the environment the traceback is always shown.
"""

import contextlib
import gc
import io
import os
import signal
import sys
import traceback
import warnings
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import typer

from choral.base.errors import ChoralError
from choral.cli.output import note

_Usage: Any = typer.BadParameter.__mro__[2]  # the base of every error about words of the command line
_LONGEST = 1000  # characters of a sentence
_AGAIN = "run the same command again to continue from the last checkpoint."


def guarded(run: Callable[[], int]) -> int:
    """Run a command and return its exit code; errors are printed on standard error as one sentence."""
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.filterwarnings("ignore", category=DeprecationWarning)  # for programmers, not for users
            warnings.filterwarnings("ignore", category=FutureWarning)
            warnings.showwarning = lambda message, *place, **more: note(f"choral: {_line(str(message))}")
            code = run()
            if code == 130:  # typer has caught it
                raise KeyboardInterrupt
            sys.stdout.flush()
            return code
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException as error:  # whatever ends a command is said in one line
        code, text = said(error)
        if code == 1 or os.environ.get("CHORAL_DEBUG", "") not in ("", "0"):
            traceback.print_exc()
        if text:
            note(f"choral: {text}")
        return code
    finally:
        signal.signal(signal.SIGTERM, before)
        try:
            sys.stdout.flush()
        except (OSError, ValueError):  # said above; the interpreter is not to try once more as it ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _terminate(number: int, frame: Any) -> None:
    note(f"choral: terminated; {_AGAIN}")
    raise SystemExit(128 + number)


def said(error: BaseException) -> tuple[int, str]:
    """Return the exit code of an error and its sentence.

    >>> said(FileNotFoundError(2, "No such file or directory", "a.csv"))
    (2, 'a.csv cannot be used (No such file or directory); check the path, its permissions and the space left.')
    """
    text = _line(str(error)) or type(error).__name__
    if any(isinstance(e, KeyboardInterrupt) for e in (error, error.__cause__, error.__context__)):
        return 130, f"interrupted; {_AGAIN}"  # an import that is cut short raises an ImportError from it
    if "not enough memory" in text or "out of memory" in text:
        error = MemoryError()
    match error:
        case ChoralError():
            return 2, text
        case _Usage():
            where = error.ctx.command_path if getattr(error, "ctx", None) is not None else "choral"
            return 2, f"{_line(error.format_message()).rstrip('.')}; see {where} --help."
        case BrokenPipeError():
            return 0, ""
        case OSError():
            names = " and ".join(str(n) for n in (error.filename, error.filename2) if n is not None) or "a file"
            reason = error.strerror or text
            return 2, f"{names} cannot be used ({reason}); check the path, its permissions and the space left."
        case MemoryError():
            less = "give fewer rows or a smaller network, --members or --batch-size"
            return 2, f"there is not enough memory for this; {less}."
        case ValueError() | RuntimeError() | ImportError() | EOFError() | zipfile.BadZipFile():
            return 2, f"{text.rstrip('.')} (CHORAL_DEBUG=1 shows where)."
    return 1, _line(f"unexpected {type(error).__name__}: {error}; this is a bug in choral; please report it.")


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 3] + "..."


def place() -> tuple[int, int]:
    """Return the rank of this process and the number of processes that torchrun started; (0, 1) without torchrun."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return 0, 1
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


@contextlib.contextmanager
def processes() -> Iterator[None]:
    """Join the processes that torchrun started, for a block of code; only the first prints."""
    rank, size = place()
    if size == 1:
        yield
        return
    import torch
    import torch.distributed as dist

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    quiet = io.StringIO() if rank else None
    try:
        with contextlib.redirect_stdout(quiet or sys.stdout), contextlib.redirect_stderr(quiet or sys.stderr):
            yield
        # Leave together: gloo's threads still release tensors of the last exchange, which a process that ends meanwhile does not survive.
        with contextlib.suppress(RuntimeError):  # another process failed, and torchrun says so
            dist.barrier()
    finally:
        dist.destroy_process_group()
        gc.collect()  # what still refers to the group keeps its threads
