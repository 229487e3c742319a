"""Training data in memory: arrays and data frames, and the contract of a source.

Values that are not numbers, not finite or too fine for single precision raise an error. Columns of data frames are matched by name and
read in the order of the first frame. Inputs are batches (`choral.base.batches`): a tensor, or dicts, tuples and lists of tensors.
"""

import copy
import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from choral.base import batches, devices
from choral.base.batches import Batch, tensor_of
from choral.base.errors import InputError
from choral.base.text import short
from choral.plan.cost import batches_in

LARGEST = 1e30  # of a number in a table; beyond it float32 cannot square what a network sees
_LOST = 1e-2  # share of the targets' deviation that rounding may take, at most


def as_inputs(x: Any, floats: torch.dtype | None = None) -> Batch:
    """Return inputs as a batch; bytes, booleans and integers keep their dtype. InputError for NaN and infinities.

    Args:
        x: an array, or a dict, tuple or list of arrays with equally many rows.
        floats: the dtype of real numbers, that of the network's parameters; None keeps that of each.
    """
    made = gathered(x, lambda value, name: _input(value, name, floats))
    check_rows(made)
    return made


def gathered(value: Any, leaf: Callable[[Any, str], Any], name: str = "x") -> Any:
    """Return the user's inputs as a batch; `leaf` makes a tensor of an array and its name. Mappings, tuples and lists of arrays are trees."""
    if isinstance(value, Mapping):
        found: Any = {key: gathered(inner, leaf, f"{name}[{key!r}]") for key, inner in value.items()}
    elif isinstance(value, tuple) or (isinstance(value, list) and any(map(_is_array, value))):
        parts = [gathered(inner, leaf, f"{name}[{i}]") for i, inner in enumerate(value)]
        found = parts if isinstance(value, list) else tuple(parts)
    else:
        return leaf(value, name)
    if not found:
        raise InputError(f"{name} is an empty {type(value).__name__}; give at least one array of inputs.")
    return found


def _is_array(value: Any) -> bool:
    return isinstance(value, Mapping | tuple) or len(getattr(value, "shape", ())) > 0


def check_rows(batch: Batch) -> int:
    """Return the number of rows; raises InputError if leaves disagree or one has no batch axis."""
    lengths = {}
    for name, leaf in batches.named_leaves(batch):
        if not leaf.dim():
            raise InputError(f"{name} is a single number; every input needs a first axis over rows.")
        lengths[name] = len(leaf)
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{name} has {count}" for name, count in lengths.items())
        raise InputError(
            f"the inputs have different numbers of rows: {said}; a list of arrays is read as that many inputs: stack rows into one array."
        )
    return next(iter(lengths.values()))


def _input(value: Any, name: str, floats: torch.dtype | None) -> Tensor:
    given = _tensor(value, name)
    if given.dtype == torch.uint8 and names_of(value):
        return given.long()  # columns that happen to be small, not the bytes of an image
    if not given.dtype.is_floating_point:
        return given if given.dtype in (torch.uint8, torch.bool) else given.long()
    cast = given if floats is None else given.to(floats)
    if math.isfinite(cast.sum().item()):  # cheap; a sum can overflow, so rows are looked at before anything is refused
        return cast
    reach = f"numbers beyond the reach of the network's {str(cast.dtype).removeprefix('torch.')}"
    for found, what, advice in (
        (given, "NaN or infinite values", "fill or drop these rows first"),
        (cast, reach, "scale them, or build the network in double precision"),
    ):
        rows = torch.atleast_1d(found)
        bad = (~torch.isfinite(rows.reshape(len(rows), -1)).all(1)).nonzero().flatten().tolist()
        if bad:
            raise InputError(f"{name} holds {what} in {len(bad)} row(s), the first at {bad[:5]}; {advice}.")
    return cast


def as_targets(y: Any) -> Tensor:
    """Return targets as a tensor: integers as int64, reals as float32 or float64."""
    y = _tensor(y, "y")
    if y.dtype.is_floating_point:
        if not torch.isfinite(y).all():
            rows = (~torch.isfinite(y)).flatten().nonzero().flatten()[:5].tolist()
            raise InputError(f"y holds NaN or infinite values, the first at {rows}; fill or drop these rows first.")
        return y if y.dtype == torch.float64 else y.float()
    return y.long()[:, 0] if y.dim() == 2 and y.shape[1] == 1 else y.long()


def as_weights(weights: Any, points: int) -> Tensor:
    """Return weights of rows (row,) as float64; InputError unless they are finite and 0 or more."""
    found = _tensor(weights, "weights").double()
    found = found[:, 0] if found.dim() == 2 and found.shape[1] == 1 else found
    if tuple(found.shape) != (points,):
        raise InputError(f"weights has shape {tuple(found.shape)} for {points} points; give one number for each point.")
    if not bool((torch.isfinite(found) & (found >= 0)).all()) or not bool((found > 0).any()):
        raise InputError("weights must be finite numbers of 0 or more, at least one of them above 0.")
    return found


def _tensor(value: Any, name: str) -> Tensor:
    if isinstance(value, Tensor) and not value.is_complex():
        return value.detach().cpu()  # looked at here, and brought back by `placed`
    if np.ma.is_masked(value):
        masked = int(np.ma.getmaskarray(value).sum())
        raise InputError(
            f"{name} has {masked} masked values, whose numbers mean nothing; fill or drop them, then give a plain array."
        )
    array = np.asarray(value)
    if array.dtype.kind == "O" and array.ndim:  # nullable columns, say
        array = np.array(array.tolist())
    if array.dtype.kind not in "fiub":
        raise InputError(
            f"{name} holds values of type {array.dtype}, not numbers; fill or drop missing values, encode labels as integers 0, 1, 2, ..., or leave it out."
        )
    return tensor_of(array)


def cast_targets(y: Tensor, floats: torch.dtype) -> Tensor:
    """Return targets with real ones in float64 for a network of double precision, else float32."""
    return y.to(torch.float64 if floats == torch.float64 else torch.float32) if y.is_floating_point() else y


def _check_resolution(given: Tensor, cast: Tensor) -> None:
    """Raise InputError for real targets whose differences the type of training cannot hold."""
    if cast.dtype != torch.float32 or len(given) < 2:
        return
    exact = given.double().reshape(len(given), -1)
    largest = exact.abs().amax(0).clamp_min(torch.finfo(torch.float64).tiny)  # squares of scaled numbers stay in range
    spread = (exact / largest).std(0, correction=0) * largest
    lost = ((cast.double().reshape(exact.shape) - exact) / largest).square().mean(0).sqrt() * largest
    varied = spread > 1e-12 * largest
    for i in (varied & (lost > _LOST * spread)).nonzero().flatten()[:1].tolist():
        raise InputError(
            f"y has numbers up to {float(largest[i]):.4g} that differ by {float(spread[i]):.2g}, which float32 rounds away; subtract a constant, or use .double()."
        )


def names_of(value: Any) -> tuple[str, ...]:
    """Return the column names of a data frame (pandas, Polars or Arrow); none for arrays and for columns without names.

    >>> import pandas as pd
    >>> names_of(pd.DataFrame({"a": [1.0], "b": [2.0]})), names_of(pd.DataFrame([[1.0, 2.0]]))
    (('a', 'b'), ())
    """
    found = getattr(value, "column_names", None)
    found = getattr(value, "columns", None) if found is None else found
    if found is None or callable(found) or getattr(value, "shape", ())[1:] != (len(found),):
        return ()
    names = list(found)
    return () if names == list(range(len(names))) else tuple(map(str, names))


def columns_in(value: Any, name: str = "x") -> dict[str, tuple[str, ...]]:
    """Return the column names of all data frames among inputs or targets."""
    found = dict[str, tuple[str, ...]]()
    gathered(value, lambda part, own: found.setdefault(own, names_of(part)), name)
    return {own: names for own, names in found.items() if names}


def arranged(value: Any, columns: Mapping[str, tuple[str, ...]] | None, name: str = "x") -> Any:
    """Return inputs or targets with the columns of every data frame in the order of `fit`; arrays are not changed.

    >>> import pandas as pd
    >>> arranged(pd.DataFrame({"b": [2.0], "a": [1.0]}), {"x": ("a", "b")})
    array([[1., 2.]])
    """
    if not columns:
        return value
    return gathered(value, lambda part, own: _in_order(part, columns.get(own, ()), own), name)


def _in_order(value: Any, wanted: tuple[str, ...], name: str) -> Any:
    own = names_of(value)
    if not own or not wanted or own == wanted:
        return value
    if len(set(own)) < len(own) or sorted(own) != sorted(wanted):
        apart = ("lacks", set(wanted) - set(own)), ("adds", set(own) - set(wanted))
        said = [f"{word} {', '.join(short(n, 20) for n in sorted(some)[:4])}" for word, some in apart if some]
        raise InputError(
            f"{name} has the columns {short(', '.join(own), 160)}, but the networks were fitted on {short(', '.join(wanted), 160)}: "
            f"it {' and '.join(said) or 'has a name twice'}; give those columns, in any order."
        )
    found = np.asarray(value)[:, [own.index(column) for column in wanted]]
    return found.astype(np.int64) if found.dtype == np.uint8 else found  # no bytes of an image


def check_same_order(x: Any, y: Any) -> None:
    """Raise InputError for a data frame and targets with the same index in another order: rows are paired by position."""
    ours: Any = getattr(x, "index", None)
    theirs: Any = getattr(y, "index", None)
    framed = hasattr(ours, "equals") and hasattr(theirs, "equals")  # of pandas; a list has a method of that name
    if framed and len(ours) == len(theirs) and not ours.equals(theirs) and set(ours) == set(theirs):
        raise InputError(
            "x and y have the same index in another order, but rows are paired by position; give y.loc[x.index], or arrays without an index."
        )


def hashes(values: np.ndarray, number: int = 0) -> np.ndarray:
    """Return a 64-bit hash of each row; equal rows have equal ones.

    It is the sum of the row's words times random odd factors, which depend on `number`.
    """
    rows = values.reshape(len(values), -1)
    found = np.empty(len(rows), np.uint64)
    for start in range(0, len(rows), 4096):
        some = np.ascontiguousarray(rows[start : start + 4096]) + rows.dtype.type(0)  # -0.0 is 0.0
        words = some.view(np.uint8) if some.itemsize % 4 else some.view(np.uint32)
        factors = np.random.default_rng(number).integers(1 << 62, size=words.shape[1], dtype=np.uint64) * np.uint64(2)
        found[start : start + 4096] = words.astype(np.uint64) @ (factors + np.uint64(1))
    return found


def _rows(values: Tensor, index: Tensor) -> Tensor:
    """Return values[index], several times faster for small rows.

    >>> _rows(torch.tensor([5, 6, 7]), torch.tensor([[2, 0], [1, 1]])).tolist()
    [[7, 5], [6, 6]]
    """
    return values.index_select(0, index.reshape(-1)).view(*index.shape, *values.shape[1:])


def arrays_of(x: Batch, y: Tensor) -> list[np.ndarray]:
    """Return all leaves as arrays, and the names of several inputs as another array."""
    tensors = [t.view(torch.int16) if t.dtype == torch.bfloat16 else t for t in (*batches.leaves(x), y)]
    names = [] if isinstance(x, Tensor) else [np.array([n for n, _ in batches.named_leaves(x)])]
    return [t.cpu().numpy() for t in tensors] + names


def hashed(arrays: Sequence[np.ndarray], weights: Tensor | None = None) -> str:
    """Return a hash of all bytes, shapes and dtypes, and of weights; 0.7 s for a gigabyte."""
    state = hashlib.sha256()
    for array in arrays if weights is None else [*arrays, weights.numpy()]:
        state.update(f"{array.shape}{array.dtype}".encode())
        state.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return state.hexdigest()[:24]


@dataclass(frozen=True, eq=False)
class Sampling:
    """A rule by which epochs draw rows.

    Args:
        weights: weights of all rows, in float64; they need not sum to 1.
        count: rows in an epoch.
        replacement: whether to draw with replacement.
    """

    weights: Tensor
    count: int
    replacement: bool

    def order(self, generator: torch.Generator, subset: Tensor | None = None) -> Tensor:
        """Return the rows of one epoch, as positions in the subset if there is one."""
        weights = self.weights if subset is None else self.weights[subset]
        return torch.multinomial(weights, self.count, self.replacement, generator=generator)

    def of_rows(self, rows: Tensor) -> "Sampling":
        """Return the rule for some of the rows, with their share of the epoch."""
        count = max(1, round(self.count * len(rows) / len(self.weights)))
        return Sampling(self.weights[rows], count, self.replacement)

    @property
    def digest(self) -> str:
        """A digest of the rule."""
        return hashed([np.array([self.count, self.replacement])], self.weights)


Keys: TypeAlias = Sequence[int] | None
Share: TypeAlias = tuple[int, int]
Batches: TypeAlias = Iterator[tuple[Batch, Tensor]]


class Source(ABC):
    """Training rows by index.

    `points` is their number, `sampling` how an epoch draws from them; None takes each once, in a random order.
    """

    points: int
    weights: Tensor | None = None  # of the points (point,), float64; None counts all alike
    groups: Tensor | None = None  # number of the group of each point (point,), whose points are held out together
    folds: Tensor | None = None  # the part of cross-validation that each point belongs to (point,), from 0 on
    sampling: Sampling | None = None
    loader: DataLoader[Any] | None = None  # what the user gave, if it was one
    is_ragged: bool = False  # whether the user's code makes batches, whose shapes may differ for equally many points
    columns: dict[str, tuple[str, ...]] | None = None  # names of the columns of data frames, by x and y

    def drawn(self, subset: Tensor | None = None) -> int:
        """Return the number of rows in an epoch of a network that is trained on all rows, or on some."""
        if self.sampling is not None:
            return self.sampling.count
        return self.points if subset is None else len(subset)

    def mass(self, subset: Tensor | None = None) -> float:
        """Return the sum of the weights of all rows, or of some."""
        if self.weights is None:
            return self.points if subset is None else len(subset)
        return float((self.weights if subset is None else self.weights[subset]).sum())

    def weighing(self, weights: Any) -> "Source":
        """Return the same rows with weights: 2 repeats the row, 0 removes it."""
        checked = as_weights(weights, self.points)
        kept = checked.nonzero().flatten()
        whole = self if len(kept) == self.points else self.piece(kept)
        return whole.having(weights=checked[kept])

    def grouped(self, groups: Any) -> "Source":
        """Return the same rows in groups, by equal values of `groups`."""
        values = np.asarray(groups)
        if values.shape != (self.points,):
            raise InputError(
                f"groups has shape {values.shape} for {self.points} points; give one value for each point."
            )
        return self.having(groups=torch.from_numpy(np.unique(values.astype(str), return_inverse=True)[1].reshape(-1)))

    def piece(self, rows: Tensor) -> "Source":
        """Return a source of some of the rows with their weights, groups and sampling."""
        weights, groups = (None if t is None else t[rows] for t in (self.weights, self.groups))
        sampling = None if self.sampling is None else self.sampling.of_rows(rows)
        return self.part(rows).having(sampling=sampling, weights=weights, groups=groups)

    def having(self, **changes: Any) -> Self:
        """Return a copy with other attributes."""
        twin = copy.copy(self)
        vars(twin).update(changes)
        return twin

    @abstractmethod
    def part(self, rows: Tensor) -> "Source":
        """Return a source of some of the rows, without weights, groups and sampling."""

    @abstractmethod
    def settle(self, floats: torch.dtype) -> None:
        """Use the network's dtype for real numbers from now on; InputError for numbers it cannot represent.

        Targets are not changed until a likelihood reads them (`reading`), so that scaling them loses no digits.
        """

    @abstractmethod
    def example(self, count: int = 2) -> tuple[Batch, Tensor]:
        """Return the first rows as one batch."""

    @abstractmethod
    def epoch(self, order: Tensor, batch_size: int, *, keys: Keys = None, among: Share = (0, 1)) -> Batches:
        """Yield the batches of one epoch in an order given as indices.

        Args:
            order: indices of the rows.
            batch_size: rows in a batch.
            keys: keys of the random draws in items, one for each branch; None reads all under one key.
            among: rank of this process and number of processes that share each batch: only its part is read.

        Shapes: order (row,) gives x (batch, ...); order (branch, row) gives x (branch, batch, ...).
        """

    def placed(self, device: torch.device) -> Self:
        """Return the same rows in the memory from which a device reads them fastest."""
        return self

    @abstractmethod
    def digest(self) -> str:
        """Return a digest of the data."""

    def targets(self) -> Tensor | None:
        """Return all targets if they are in memory."""
        return None

    def row_hashes(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Return a 64-bit hash of each row's input and of its target if they are in memory."""
        return None

    @abstractmethod
    def reading(self, read: Callable[[Tensor], Tensor]) -> Self:
        """Return the same rows with targets as a likelihood reads them, in the dtype of training; the digest does not change."""


def bounds(points: int, batch_size: int, among: Share = (0, 1)) -> list[tuple[int, int]]:
    """Return the bounds of the batches of an epoch, or of one process's part of each.

    >>> bounds(10, 6), bounds(10, 6, (1, 2))
    ([(0, 6), (6, 10)], [(3, 6), (8, 10)])
    """
    whole = [(i * batch_size, min((i + 1) * batch_size, points)) for i in range(batches_in(points, batch_size))]
    rank, size = among
    return [(a + (b - a) * rank // size, a + (b - a) * (rank + 1) // size) for a, b in whole]


class TensorSource(Source):
    """Arrays in memory, indexed per batch; images are in channels-last format, which is faster for convolutions."""

    def __init__(self, x: Any, y: Any):
        check_same_order(x, y)
        self.x, self.y = as_inputs(x), as_targets(y)
        self.columns = columns_in(x) | columns_in(y, "y") or None
        self.points = batches.rows(self.x)
        if not self.points or self.y.shape[:1] != (self.points,):
            hint = "; a list of arrays is read as that many inputs" if isinstance(x, list) else ""
            raise InputError(
                f"x has {self.points} rows and y has shape {tuple(self.y.shape)}; give equally many of both, at least one{hint}."
            )
        self._given: Tensor | None = None  # targets before a likelihood read them
        self._floats = torch.float32
        self.x = batches.mapped(lambda t: t.permute(0, 2, 3, 1).contiguous() if t.dim() == 4 else t, self.x)

    def settle(self, floats: torch.dtype) -> None:
        self.x, self._floats = as_inputs(self.x, floats), floats

    def placed(self, device: torch.device) -> Self:
        if devices.is_processor(device):
            return self
        resident = devices.holds(device, sum(t.nbytes for t in (*batches.leaves(self.x), self.y)))
        x, y = batches.mapped(lambda t: devices.placed(t, device, resident=resident), (self.x, self.y))
        return self.having(x=x, y=y)

    def _pick(self, index: Tensor) -> Batch:
        def picked(t: Tensor) -> Tensor:
            return _rows(t, index).movedim(-1, -3) if t.dim() == 4 else _rows(t, index)

        return picked(self.x) if isinstance(self.x, Tensor) else batches.mapped(picked, self.x)

    def example(self, count: int = 2) -> tuple[Batch, Tensor]:
        index = torch.arange(min(count, self.points))
        return self._pick(index), self.y[index]

    def epoch(self, order: Tensor, batch_size: int, *, keys: Keys = None, among: Share = (0, 1)) -> Batches:
        order = devices.moved(order, self.y.device)
        for start, end in bounds(order.shape[-1], batch_size, among):
            index = order[..., start:end]
            yield self._pick(index), _rows(self.y, index)

    def targets(self) -> Tensor | None:
        return self.y

    def row_hashes(self) -> tuple[np.ndarray, np.ndarray] | None:
        arrays = arrays_of(self.x, self.y)[: len(batches.leaves(self.x)) + 1]
        *x, y = [hashes(array, number) for number, array in enumerate(arrays)]
        return np.asarray(np.sum(x, 0, dtype=np.uint64)), y

    def part(self, rows: Tensor) -> "Source":
        return self.having(x=batches.part(self.x, rows), y=self.y[rows], points=len(rows))

    def reading(self, read: Callable[[Tensor], Tensor]) -> Self:
        exact = read(self.y)
        y = cast_targets(exact, self._floats)
        _check_resolution(exact, y)
        return self.having(_given=self.y, y=y)

    def digest(self) -> str:
        return hashed(arrays_of(self.x, self.y if self._given is None else self._given), self.weights)
