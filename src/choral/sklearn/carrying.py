"""What a pickle of an estimator holds: its parameters, the ensemble as the bytes of a saved file, and plain values.

Nothing of torch and no class of choral but the estimator's own is ever named in it; bytes are checked, as those of any file, before they
become an ensemble.
"""

from typing import Any

import numpy as np

from choral.ensemble.ensemble import Ensemble, ensemble_from
from choral.ensemble.saving import load_bytes

_LISTED = "OUbiuf"  # kinds of arrays that lists say in full


def laid_open(state: dict[str, Any]) -> dict[str, Any]:
    """Return an estimator's attributes with the ensemble and arrays as bytes and plain values."""
    return {name: _plain(value) for name, value in state.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Ensemble):
        return {"choral": "ensemble", "bytes": value._to_bytes()}
    if isinstance(value, np.ndarray) and value.dtype.kind in _LISTED:
        return {"choral": "array", "type": value.dtype.str, "values": value.tolist()}
    return value


def taken_up(state: dict[str, Any]) -> dict[str, Any]:
    """Return attributes from what `laid_open` made of them."""
    return {name: _restored(value) for name, value in state.items()}


def _restored(value: Any) -> Any:
    kind = value.get("choral") if isinstance(value, dict) else None
    if kind == "ensemble":
        return ensemble_from(load_bytes(value["bytes"], "the pickled estimator"), "the pickled estimator")
    if kind == "array":
        return np.array(value["values"], dtype=value["type"])
    return value
