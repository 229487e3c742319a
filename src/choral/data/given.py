"""Inputs, targets and weights as users give them, as tensors: what is no number, not finite or too fine for single precision is refused."""

import math
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from choral.base import batches
from choral.base.batches import Batch, tensor_of
from choral.base.errors import InputError
from choral.data.frames import names_of

MISSING = ("NoneType", "NAType")  # the latter of pandas, which need not be there
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
    if given.dtype == torch.uint8 and names_of(value):
        return given.long()  # columns that happen to be small, not the bytes of an image
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
            "fill or drop these rows first."
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
            raise InputError(f"y holds NaN or infinite values, the first at {rows}; fill or drop these rows first.")
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
    if not kinds or not all(issubclass(kind, Real | np.bool_) or kind.__name__ in MISSING for kind in kinds):
        return array
    missing = [i for i, v in enumerate(array.reshape(len(array), -1)) if any(type(e).__name__ in MISSING for e in v)]
    if missing:
        raise InputError(
            f"{name} has missing values in {len(missing)} row(s), the first at {missing[:5]}; fill or drop these rows first."
        )
    if all(issubclass(kind, bool | np.bool_) for kind in kinds):
        return array.astype(bool)
    return array.astype(np.int64 if all(issubclass(kind, Integral) for kind in kinds) else np.float64)


def cast_targets(y: Tensor, floats: torch.dtype) -> Tensor:
    """Return targets, the real ones in float64 for a network of double precision and in float32 for all others."""
    return y.to(torch.float64 if floats == torch.float64 else torch.float32) if y.is_floating_point() else y


def check_resolution(given: Tensor, cast: Tensor) -> None:
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
