"""The contract of training data, points picked by index, batch by batch; and arrays in memory that fulfil it.

Inputs are batches as `choral.base.batches` has them: a tensor, or dicts, tuples and lists of tensors.
"""

import copy
import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from choral.base import batches, devices
from choral.base.arrays import tensor_of
from choral.base.batches import Batch
from choral.base.errors import InputError
from choral.data.frames import columns_in
from choral.data.sampling import Sampling
from choral.plan.cost import batches_in

_MISSING = ("NoneType", "NAType")  # the latter of pandas, which need not be there
_LOST = 1e-2  # share of the targets' deviation that rounding may take, at most
_WIDEST = 1e16  # deviation of targets in float32, at most; one over it, at least


def as_inputs(x: Any, floats: torch.dtype | None = None) -> Batch:
    """Return inputs as a batch: bytes, booleans and integers stay, real numbers take a type; refuses NaN and infinities.

    Args:
        x: an array, or a dict, tuple or list of arrays with equally many rows.
        floats: the type real numbers take, that of the network's parameters; each keeps its own if None.
    """
    if isinstance(x, Tensor):
        return _input(x, "x", floats)
    made = batches.gathered(x, lambda value, name: _input(value, name, floats))
    batches.check_rows(made)
    return made


def _input(value: Any, name: str, floats: torch.dtype | None) -> Tensor:
    given = _tensor(value, name)
    if given.dtype in (torch.uint8, torch.int64, torch.bool):
        return given
    if not given.dtype.is_floating_point:
        return given.long()
    cast = given if floats in (None, given.dtype) else given.to(floats)
    if math.isfinite(cast.sum().item()):  # cheap; a sum can overflow, so rows are looked at before anything is refused
        return cast
    bad = _unfinite_rows(given)
    if bad.any():
        raise InputError(
            f"{name} holds NaN or infinite values in {int(bad.sum())} row(s), the first at {_first(bad)}; "
            "fill or drop these rows before fitting."
        )
    bad = _unfinite_rows(cast)
    if bad.any():
        raise InputError(
            f"{name} holds numbers beyond the reach of the network's {str(cast.dtype).removeprefix('torch.')} "
            f"({torch.finfo(cast.dtype).max:.2g}) in {int(bad.sum())} row(s), the first at {_first(bad)}; scale them, or build the "
            "network in double precision."
        )
    return cast


def _unfinite_rows(x: Tensor) -> Tensor:
    return ~torch.isfinite(x).flatten(1).all(1) if x.dim() > 1 else ~torch.isfinite(x)


def _first(rows: Tensor) -> list[int]:
    return rows.nonzero().flatten()[:5].tolist()


def as_targets(y: Any) -> Tensor:
    """Return targets as a tensor: whole numbers as int64, reals as float32 or float64; what they mean the likelihood says."""
    y = _tensor(y, "y")
    if y.dtype.is_floating_point:
        if not torch.isfinite(y).all():
            rows = (~torch.isfinite(y)).flatten().nonzero().flatten()[:5].tolist()
            raise InputError(
                f"y holds NaN or infinite values, the first at {rows}; fill or drop these rows before fitting."
            )
        return y if y.dtype == torch.float64 else y.float()
    y = y.long()
    if y.dim() == 2 and y.shape[1] == 1:
        y = y[:, 0]
    return y


def as_weights(weights: Any, points: int) -> Tensor:
    """Return weights of so many points (point,) as float64; InputError for others than finite numbers of 0 or more."""
    found = _tensor(weights, "weights").double()
    found = found[:, 0] if found.dim() == 2 and found.shape[1] == 1 else found
    if tuple(found.shape) != (points,):
        raise InputError(f"weights has shape {tuple(found.shape)} for {points} points; give one number for each point.")
    if not bool((torch.isfinite(found) & (found >= 0)).all()) or not bool((found > 0).any()):
        raise InputError("weights must be finite numbers of 0 or more, at least one of them above 0.")
    return found


def _tensor(value: Any, name: str) -> Tensor:
    if isinstance(value, Tensor):
        if value.is_complex():
            raise InputError(f"{name} holds complex numbers; give their real and imaginary parts as two numbers.")
        if value.layout != torch.strided or value.is_meta:
            what = "is on the device meta, without numbers; give one with" if value.is_meta else "is sparse; give"
            raise InputError(f"{name} {what} {'numbers' if value.is_meta else f'{name}.to_dense()'}.")
        return value.detach().cpu()  # looked at here, and brought back by `placed`
    if value is None:
        raise InputError(f"{name} is None; give an array or tensor.")
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        masked = int(np.ma.getmaskarray(value).sum())
        raise InputError(
            f"{name} has {masked} masked values, whose numbers mean nothing; fill or drop them, then give a plain array."
        )
    array = np.asarray(value)
    if array.dtype.kind == "O":
        array = _plain_numbers(array, name)
    if array.dtype.kind not in "fiub":
        raise InputError(
            f"{name} holds values of type {array.dtype}, not numbers; "
            + ("encode labels as integers 0, 1, 2, ..." if name == "y" else "encode every column as numbers.")
        )
    return tensor_of(array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("=")))


def _plain_numbers(array: np.ndarray, name: str) -> np.ndarray:
    """Return objects that are all numbers, as those of nullable columns, as an array of numbers; any other array as it is."""
    kinds = {type(v) for v in array.flat}
    if not kinds or not all(issubclass(kind, Real | np.bool_) or kind.__name__ in _MISSING for kind in kinds):
        return array
    missing = [i for i, v in enumerate(array.reshape(len(array), -1)) if any(type(e).__name__ in _MISSING for e in v)]
    if missing:
        raise InputError(
            f"{name} has missing values in {len(missing)} row(s), the first at {missing[:5]}; fill or drop these rows before fitting."
        )
    if all(issubclass(kind, bool | np.bool_) for kind in kinds):
        return array.astype(bool)
    return array.astype(np.int64 if all(issubclass(kind, Integral) for kind in kinds) else np.float64)


class Source(ABC):
    """Training points by index.

    `points` says how many there are, `sampling` how an epoch draws from them; None takes each once, in a random order.
    """

    points: int
    weights: Tensor | None = None  # of the points (point,), float64; None counts all alike
    groups: Tensor | None = None  # number of the group of each point (point,), whose points are held out together
    folds: Tensor | None = None  # the part of cross-validation that each point belongs to (point,), from 0 on
    sampling: Sampling | None = None
    loader: DataLoader[Any] | None = None  # what the user gave, if it was one
    columns: dict[str, tuple[str, ...]] | None = None  # names of the columns of data frames, by x and y

    def drawn(self, subset: Tensor | None = None) -> int:
        """Return how many points one epoch of a network sees that is trained on all of them, or on some."""
        if self.sampling is not None:
            return self.sampling.count
        return self.points if subset is None else len(subset)

    def mass(self, subset: Tensor | None = None) -> float:
        """Return how many points all of them, or some, count as: the sum of their weights."""
        if self.weights is None:
            return self.points if subset is None else len(subset)
        return float((self.weights if subset is None else self.weights[subset]).sum())

    def weighing(self, weights: Any) -> "Source":
        """Return the same points with weights: 2 counts as the point twice, 0 as if it were not there."""
        checked = as_weights(weights, self.points)
        if bool((checked == 0).any()):
            kept = checked.nonzero().flatten()
            return self.piece(kept).weighing(checked[kept])
        twin = copy.copy(self)
        twin.weights = checked
        return twin

    def grouped(self, groups: Any) -> "Source":
        """Return the same points, those with equal values of `groups` belonging together."""
        values = np.asarray(groups)
        if values.shape != (self.points,):
            raise InputError(
                f"groups has shape {values.shape} for {self.points} points; give one value for each point."
            )
        missing = [i for i, v in enumerate(values) if type(v).__name__ in _MISSING or v != v]
        if missing:
            raise InputError(
                f"groups has no value for {len(missing)} point(s), the first at {missing[:5]}; give each one."
            )
        twin = copy.copy(self)
        twin.groups = torch.from_numpy(np.unique(values.astype(str), return_inverse=True)[1].reshape(-1))
        return twin

    def folded(self, folds: Tensor) -> "Source":
        """Return the same points, each with the part of cross-validation it belongs to."""
        twin = copy.copy(self)
        twin.folds = folds
        return twin

    def piece(self, rows: Tensor) -> "Source":
        """Return a source of some of the points with their weights and groups."""
        twin = self.part(rows)
        twin.weights = None if self.weights is None else self.weights[rows]
        twin.groups = None if self.groups is None else self.groups[rows]
        return twin

    @abstractmethod
    def part(self, rows: Tensor) -> "Source":
        """Return a source of some of the points."""

    @property
    @abstractmethod
    def is_ragged(self) -> bool:
        """Whether batches are made by code of the user's, so that equally many points may make batches of different shapes."""

    @abstractmethod
    def settle(self, floats: torch.dtype) -> None:
        """Give real numbers in the type of the network from now on; raises InputError for numbers it cannot hold.

        Targets stay as they were given until a likelihood reads them (`reading`), so that scaling them loses nothing.
        """

    @abstractmethod
    def example(self, count: int = 2) -> tuple[Batch, Tensor]:
        """Return the first points as one batch."""

    @abstractmethod
    def epoch(
        self,
        order: Tensor,
        batch_size: int,
        *,
        keys: Sequence[int] | None = None,
        among: tuple[int, int] = (0, 1),
    ) -> Iterator[tuple[Batch, Tensor]]:
        """Yield the batches of one epoch in an order given as indices.

        Args:
            order: which points, in which order.
            batch_size: points in a batch.
            keys: of what the items draw while they are read, one for each branch; None reads all under one key.
            among: number of this process and of all that share each batch: only its part is read.

        Shapes: order (point,) gives x (batch, ...); order (branch, point) gives x (branch, batch, ...).
        """

    def placed(self, device: torch.device) -> Self:
        """Return the same points where a device reads them fastest."""
        return self

    @abstractmethod
    def digest(self) -> str:
        """Return a short text that changes when the data changes."""

    @abstractmethod
    def targets(self) -> Tensor | None:
        """Return all targets when they are in memory."""

    @abstractmethod
    def reading(self, read: Callable[[Tensor], Tensor]) -> Self:
        """Return the same points with targets as a likelihood reads them, in the type of training; the digest stays that of the data.

        Real ones are then float64 for a network of double precision and float32 for all others.
        """


def bounds(points: int, batch_size: int, among: tuple[int, int] = (0, 1)) -> list[tuple[int, int]]:
    """Return where the batches of an epoch begin and end, or the parts of them that one of several processes takes.

    >>> bounds(10, 6), bounds(10, 6, (1, 2))
    ([(0, 6), (6, 10)], [(3, 6), (8, 10)])
    """
    whole = [(i * batch_size, min((i + 1) * batch_size, points)) for i in range(batches_in(points, batch_size))]
    rank, size = among
    return [(a + (b - a) * rank // size, a + (b - a) * (rank + 1) // size) for a, b in whole]


def _rows(values: Tensor, index: Tensor) -> Tensor:
    """Return values[index], several times faster for small rows.

    >>> _rows(torch.tensor([5, 6, 7]), torch.tensor([[2, 0], [1, 1]])).tolist()
    [[7, 5], [6, 6]]
    """
    return values.index_select(0, index.reshape(-1)).view(*index.shape, *values.shape[1:])


class TensorSource(Source):
    """Arrays in memory, indexed per batch; images are kept with their channels last, as convolutions like them."""

    def __init__(self, x: Any, y: Any):
        self.x, self.y = as_inputs(x), as_targets(y)
        self.columns = columns_in(x) | columns_in(y, "y") or None
        if not self.y.dim() or not all(t.dim() for t in batches.leaves(self.x)):
            raise InputError("x or y is a single number; give a first axis over rows.")
        self.points = batches.rows(self.x)
        if self.points != len(self.y):
            hint = "; a list of arrays is read as that many inputs" if isinstance(x, list) else ""
            raise InputError(f"x has {self.points} rows and y has {len(self.y)}; they must be equally long{hint}.")
        if not self.points:
            raise InputError("the training data is empty; give at least one row.")
        self._given: Tensor | None = None  # targets before a likelihood read them
        self._floats = torch.float32
        self.x = batches.mapped(lambda t: t.permute(0, 2, 3, 1).contiguous() if t.dim() == 4 else t, self.x)

    @property
    def is_ragged(self) -> bool:
        """No: rows are cut from arrays."""
        return False

    def settle(self, floats: torch.dtype) -> None:
        """Cast the inputs once."""
        self.x, self._floats = as_inputs(self.x, floats), floats

    def placed(self, device: torch.device) -> Self:
        """Return the same arrays on the device if it can keep them, else where it copies from fastest."""
        if devices.is_processor(device):
            return self
        size = sum(t.numel() * t.element_size() for t in (*batches.leaves(self.x), self.y))
        resident = devices.holds(device, size)
        twin = copy.copy(self)
        twin.x = batches.mapped(lambda t: devices.placed(t, device, resident=resident), self.x)
        twin.y = devices.placed(self.y, device, resident=resident)
        return twin

    def _pick(self, index: Tensor) -> Batch:
        return batches.mapped(lambda t: _rows(t, index).movedim(-1, -3) if t.dim() == 4 else _rows(t, index), self.x)

    def example(self, count: int = 2) -> tuple[Batch, Tensor]:
        """Return the first points."""
        index = torch.arange(min(count, self.points))
        return self._pick(index), self.y[index]

    def epoch(
        self,
        order: Tensor,
        batch_size: int,
        *,
        keys: Sequence[int] | None = None,
        among: tuple[int, int] = (0, 1),
    ) -> Iterator[tuple[Batch, Tensor]]:
        """Yield batches by indexing; arrays draw nothing."""
        for start, end in bounds(order.shape[-1], batch_size, among):
            index = devices.moved(order[..., start:end], self.y.device)
            yield self._pick(index), _rows(self.y, index)

    def targets(self) -> Tensor | None:
        """Return y."""
        return self.y

    def part(self, rows: Tensor) -> "Source":
        """Return some of the rows."""
        twin = copy.copy(self)
        twin.x, twin.y, twin.points = batches.mapped(lambda t: t[rows], self.x), self.y[rows], len(rows)
        twin.sampling = None if self.sampling is None else self.sampling.of_rows(rows)
        return twin

    def reading(self, read: Callable[[Tensor], Tensor]) -> Self:
        """Return the same inputs with targets that were read once."""
        twin = copy.copy(self)
        exact = read(self.y)
        twin._given, twin.y = self.y, cast_targets(exact, self._floats)
        _check_resolution(exact, twin.y)
        return twin

    def digest(self) -> str:
        """Return a hash over shapes, types and values."""
        arrays = arrays_of(self.x, self.y if self._given is None else self._given)
        return hashed(arrays if self.weights is None else [*arrays, self.weights.numpy()])


def cast_targets(y: Tensor, floats: torch.dtype) -> Tensor:
    """Return targets, the real ones in float64 for a network of double precision and in float32 for all others."""
    return y.to(torch.float64 if floats == torch.float64 else torch.float32) if y.is_floating_point() else y


def _check_resolution(given: Tensor, cast: Tensor) -> None:
    """Raise InputError for real targets whose differences, or whose variance, the type of training cannot hold."""
    if cast.dtype != torch.float32 or len(given) < 2:
        return
    exact = given.double().flatten(1) if given.dim() > 1 else given.double().unsqueeze(1)
    largest = exact.abs().amax(0).clamp_min(torch.finfo(torch.float64).tiny)  # squares of scaled numbers stay in range
    spread = (exact / largest).std(0, correction=0) * largest
    lost = ((cast.double().reshape(exact.shape) - exact) / largest).square().mean(0).sqrt() * largest
    varied = spread > 1e-12 * largest
    for i in (varied & (lost > _LOST * spread)).nonzero().flatten()[:1].tolist():
        raise InputError(
            f"y has numbers up to {float(largest[i]):.4g} that differ by about {float(spread[i]):.2g}, which float32 rounds away; subtract "
            "a constant, such as their mean, or build the network in double precision (.double())."
        )
    for i in (varied & ((spread > _WIDEST) | (spread < 1 / _WIDEST))).nonzero().flatten()[:1].tolist():
        raise InputError(
            f"y has the deviation {float(spread[i]):.2g}, whose square float32 cannot hold; rescale y, or build the network in double "
            "precision (.double())."
        )


def arrays_of(x: Batch, y: Tensor) -> list[np.ndarray]:
    """Return all values as arrays, and the names of several inputs as one more."""
    tensors = [t.view(torch.int16) if t.dtype == torch.bfloat16 else t for t in (*batches.leaves(x), y)]
    arrays = [t.cpu().numpy() for t in tensors]
    return arrays if isinstance(x, Tensor) else [*arrays, np.array([n for n, _ in batches.named_leaves(x)])]


def hashed(arrays: Sequence[np.ndarray]) -> str:
    """Return a hash over every byte, with shapes and types; 0.7 s for a gigabyte."""
    state = hashlib.sha256()
    for array in arrays:
        state.update(f"{array.shape}{array.dtype}".encode())
        state.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return state.hexdigest()[:24]
