"""What a run says while it goes: one typed dict for each kind of event, as callbacks get them and `log.jsonl` keeps them.

A place is the path of a phase in the plan, as text. New kinds and fields may come; those here keep their meaning.
"""

from collections.abc import Callable
from typing import Any, Literal, NotRequired, TypedDict


class Counted(TypedDict):
    """What all networks together have taken so far."""

    epochs: float
    steps: float
    points: float
    train_flops: float
    train_seconds: float
    validation_seconds: NotRequired[float]
    setup_seconds: NotRequired[float]


class Epoch(TypedDict):
    """An epoch of one network, or of several that are trained as one stack, has ended."""

    kind: Literal["epoch"]
    places: list[str]
    epoch: int
    epochs: int
    losses: list[float]
    rate: float
    seconds: float
    counted: Counted
    remaining: NotRequired[list[dict[str, float]]]
    validation: NotRequired[list[float | None]]
    measure: NotRequired[str]


class Operated(TypedDict):
    """An operator has changed a state."""

    kind: Literal["operator"]
    name: str
    place: str
    density: NotRequired[float]


class Collected(TypedDict):
    """A network has become a member."""

    kind: Literal["collected"]
    place: str


class Resumed(TypedDict):
    """A run goes on from a checkpoint."""

    kind: Literal["resumed"]
    position: int
    epoch: int
    counted: Counted


class Diverged(TypedDict):
    """A branch was lost; the others go on."""

    kind: Literal["diverged"]
    place: str
    message: str


class Stopped(TypedDict):
    """A branch stopped training before its budget: its patience or the time was up."""

    kind: Literal["stopped"]
    place: str
    epoch: int
    epochs: int
    best_epoch: int
    best: float | None
    reason: Literal["patience", "time_limit"]


class Warned(TypedDict):
    """Something was repaired or passed over."""

    kind: Literal["warning"]
    message: str


EVENTS: tuple[type, ...] = (Epoch, Operated, Collected, Resumed, Diverged, Stopped, Warned)
Callback = Callable[[dict[str, Any]], None]
