"""Say in one sentence where training stopped, and what to do, when the code of a network or a loss raises an error on the way."""

from collections.abc import Iterator
from contextlib import contextmanager

from choral.base import batches
from choral.base.batches import Batch
from choral.base.errors import ChoralError, InputError, RunError

_MAPPED = ("vmap", "functorch")
_GROUP = ("gloo/", "Connection closed by peer", "NCCL", "ProcessGroup")  # in what torch says of processes that are gone
_JOINT = "members of this method are mapped by torch.func.vmap, which such code does not allow; use a method whose members are networks of their own"
_STACKED = "members are trained together here, which such code may not allow; use executor='sequential'"
_OWN = "mend it and give the same call again; finished parts of a run folder are kept"


@contextmanager
def telling(where: str, x: Batch, *, stacked: bool = False) -> Iterator[None]:
    """Raise InputError for any error of a block that is not choral's own.

    Args:
        where: in the training.
        x: what the network reads there.
        stacked: whether members are trained together.
    """
    try:
        yield
    except ChoralError:
        raise
    except Exception as error:  # code of the user's may fail in any way
        said = (str(error).strip().splitlines() or [""])[0]
        if any(word in str(error) for word in _GROUP):
            raise RunError(
                f"training stopped {where} where another process of the group was no longer heard of ({said}): it died, or stopped with an error of its "
                "own; start all of them again, and the run goes on from its last checkpoint."
            ) from error
        advice = _STACKED if stacked else _JOINT if any(word in str(error) for word in _MAPPED) else _OWN
        raise InputError(
            f"training stopped {where} where the network or the loss gave {type(error).__name__} {said!r} for a batch {batches.in_words(x)}; "
            f"{advice}."
        ) from error
