"""Training: optimizer, learning rate, batch size and schedule, shared by the phases of a recipe."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from choral.base.errors import InputError, did_you_mean
from choral.base.values import Count, NotNegative, Positive, Value
from choral.plan.cost import steps_of
from choral.plan.optimizers import SGD, Adam, AdamW, Optimizer, OwnOptimizer
from choral.plan.phases import Phase, Train, fork, seq
from choral.plan.schedules import Constant, Cosine, Linear, OwnRate, Relative, Schedule, Steps
from choral.plan.walk import Visitor, mapped, trainings, walk

OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": SGD(momentum=0.9, nesterov=True, weight_decay=5e-4),
    "adam": Adam(),
    "adamw": AdamW(),
}
DEFAULT = AdamW(weight_decay=0.1, clip=1.0)
"""The optimizer where none is given; the decay holds noisy tables of a few hundred rows back from learning them by heart."""
Paper = Literal["paper"]
SCHEDULES = ("cosine", "constant", "steps", "linear_drop")
LEAST_STEPS = 500
"""Steps that a network needs from its first weights on; with fewer, ensembles of several are behind one on small tables."""
FEW_STEPS = 100
"""Steps that a network needs to settle again from weights that were trained."""


@dataclass(frozen=True, kw_only=True)
class Training(Value):
    """Optimizer, learning rate, batch size and schedule of training.

    Settings that are None are chosen for the data and the network. `training="paper"` uses the settings of a recipe's paper instead.

    Args:
        lr: peak learning rate; chosen if None.
        optimizer: a value of `choral.plan`, 'sgd', 'adam' or 'adamw', a class of torch.optim, or a function of the parameters that
            returns a torch optimizer. The schedule always sets its learning rate.
        batch_size: rows in a batch; chosen if None.
        schedule: learning rate schedule of a full training (snapshot, fge, swa, swag, edst, bnn_sequential and SeBayS have their own):
            'cosine' down to `end`, 'constant', 'steps' (a tenth at 50 % and 75 %), 'linear_drop' (constant for 50 %, linearly down to a
            hundredth at 90 %, constant to the end), `choral.plan.Steps(lr, ...)`, or a function of the step, or of the step and the
            number of steps, that returns the rate.
        end: learning rate at the end of 'cosine'.
    """

    lr: Positive | None = None
    optimizer: Any = DEFAULT  # an Optimizer once it is made
    batch_size: Count | None = None
    schedule: Literal["cosine", "constant", "steps", "linear_drop"] | Steps | Callable[..., float] | OwnRate = "cosine"
    end: NotNegative = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "optimizer", optimizer_of(self.optimizer))
        if callable(self.schedule):
            object.__setattr__(self, "schedule", OwnRate.of(self.schedule))
        steps = self.schedule if isinstance(self.schedule, Steps) else None
        if self.lr is None:
            object.__setattr__(self, "lr", steps.value if steps else self.optimizer.own_rate)
        if steps and steps.value != self.lr:
            raise InputError(f"lr is {self.lr}, but schedule is {steps!r}; leave lr out, or make them agree.")
        if self.end and (self.schedule != "cosine" or self.lr is None or self.end > self.lr):
            raise InputError(
                f"end is {self.end} with lr {self.lr} and schedule {self.schedule!r}; give a rate from 0 to lr, for 'cosine'."
            )

    @property
    def peak(self) -> float:
        """The peak learning rate of schedules: 1 while it is not chosen yet."""
        return 1.0 if self.lr is None else self.lr

    def full(self) -> Schedule:
        """Return the schedule of a full training."""
        if isinstance(self.schedule, OwnRate | Steps):
            return self.schedule
        peak = self.peak
        return {
            "cosine": Cosine(peak, self.end),
            "constant": Constant(peak),
            "steps": Steps(peak),
            "linear_drop": Linear(((0.0, peak), (0.5, peak), (0.9, peak / 100))),
        }[str(self.schedule)]

    def phase(self, epochs: int, schedule: Schedule | None = None, **changes: Any) -> Train:
        """Return a training phase with these settings, by default with the schedule of a full training."""
        shape = schedule or self.full()
        shape = Relative(shape) if self.lr is None and not isinstance(shape, OwnRate) else shape
        own: dict[str, Any] = {
            "optimizer": self.optimizer,
            "batch_size": self.batch_size or 0,
            "least_steps": LEAST_STEPS,
        }
        return Train(epochs=epochs, schedule=shape, **own | changes)

    def without_decay(self) -> "Training":
        """Return the same settings without weight decay, for objectives that contain the prior."""
        return replace(self, optimizer=self.optimizer.without_decay())

    def clipped(self, norm: float) -> "Training":
        """Return the same settings with gradient clipping, unless gradients are clipped already."""
        return self if self.optimizer.clip is not None else replace(self, optimizer=replace(self.optimizer, clip=norm))

    def clipped_apart(self, *patterns: str) -> "Training":
        """Return the same settings, with the parameters that match a pattern clipped by their own norm."""
        apart = (*self.optimizer.apart, *(p for p in patterns if p not in self.optimizer.apart))
        return replace(self, optimizer=replace(self.optimizer, apart=apart))

    def with_rates(self, **factors: float) -> "Training":
        """Return the same settings, with factors of the learning rate for parameters whose names end as given."""
        own = tuple((f"*{ending}", factor) for ending, factor in factors.items() if factor != 1.0)
        return replace(self, optimizer=replace(self.optimizer, rates=(*own, *self.optimizer.rates))) if own else self


def optimizer_of(given: Any) -> Optimizer:
    """Return an optimizer value from a value, a name, a class of torch.optim or a factory.

    >>> optimizer_of("adam")
    Adam(weight_decay=0.0, decay_vectors=True, clip=None, apart=(), rates=(), betas=(0.9, 0.999), eps=1e-08)
    """
    match given:
        case Optimizer():
            return given
        case str() if given.lower() in OPTIMIZERS:
            return OPTIMIZERS[given.lower()]
    if callable(given):
        return OwnOptimizer.of(given)
    raise InputError(
        f"optimizer is {given!r}; give {', '.join(map(repr, OPTIMIZERS))}, a value such as choral.Adam(), a class of torch.optim, or a "
        "function of the parameters that returns a torch optimizer." + did_you_mean(str(given), OPTIMIZERS)
    )


def settings_of(given: Training | Paper, own: Training = Training()) -> Training:
    """Return the training settings of a recipe: those given, or the paper's for 'paper'.

    Args:
        given: the user's settings.
        own: the recipe's defaults; settings that these leave open are SGD at 0.1 in batches of 128, as for CIFAR-10.

    >>> settings_of("paper").lr, settings_of("paper").batch_size, type(settings_of("paper").optimizer).__name__
    (0.1, 128, 'SGD')
    """
    if isinstance(given, Training):
        return given
    chosen = OPTIMIZERS["sgd"] if own.lr is None else own.optimizer
    return replace(own, lr=own.lr or 0.1, optimizer=chosen, batch_size=own.batch_size or 128)


def default_rate(optimizer: Optimizer, steps: int, parameters: int, *, given: bool = False) -> float:
    """Return the default peak learning rate.

    Adam moves a weight by at most the learning rate in a step, so a short training needs a larger one: 0.4 / sqrt(steps), between 2 and 20
    times 1e-3. Wide networks need smaller steps: above 200,000 parameters it falls with their fourth root, to a half at 3 million. SGD keeps
    its usual rate. Chosen with `benchmarks/defaults.py --part choose`.

    Args:
        optimizer: the optimizer.
        steps: steps of the longest training phase.
        parameters: parameters of the trained network, for each member.
        given: whether training starts from trained weights, with a tenth of the rate.

    >>> [default_rate(AdamW(), steps, 10_000) for steps in (500, 2_500, 100_000)]
    [0.018, 0.008, 0.002]
    """
    short = min(max(0.4 / max(steps, 1) ** 0.5, 2e-3), 2e-2) / 1e-3 if optimizer.adaptive else 1.0
    wide = min(1.0, (200_000 / max(parameters, 1)) ** 0.25)
    return float(f"{optimizer.usual_rate * short * wide * (0.1 if given else 1.0):.2g}")


def is_open(plan: Phase) -> bool:
    """Return whether a training phase of a plan has no batch size or learning rate yet."""
    return any(
        not phase.batch_size or (isinstance(phase.schedule, Relative) and phase.schedule.peak is None)
        for phase in trainings(plan)
        if phase.epochs
    )


def settled(plan: Phase, points: int, parameters: int | None = None, batch_size: int | None = None) -> Phase:
    """Return a plan with all training settings chosen; given settings are kept.

    Args:
        plan: the plan.
        points: number of training rows.
        parameters: parameters of the network; None leaves learning rates open.
        batch_size: that of the user's DataLoader, if there is one.
    """
    phases = trainings(plan)

    def sized(phase: Train) -> Train:
        return replace(phase, batch_size=phase.batch_size or batch_size or (32 if points < 5_000 else 128))

    longest = max((steps_of(sized(phase), points) for phase in phases), default=0)
    starts: list[bool] = []
    walk(plan, None, Visitor(start=lambda phase, _, __: starts.append(phase.takes_given)))

    def choose(phase: Train) -> Train:
        phase = sized(phase)
        if parameters is None or not isinstance(phase.schedule, Relative) or phase.schedule.peak is not None:
            return phase
        rate = default_rate(phase.optimizer, longest, parameters, given=any(starts))
        return replace(phase, schedule=Relative(phase.schedule.shape, rate))

    return mapped(plan, choose)


def total_epochs(epochs: int | None, budget: int | None, *, trainings: int = 1, usual: int = 200) -> int:
    """Return the epochs of a recipe in all.

    Args:
        epochs: epochs of each training, as given by the user.
        budget: epochs of all trainings together, instead.
        trainings: number of separately trained networks.
        usual: epochs of a training if neither is given; `fit` then chooses by the data.

    >>> total_epochs(60, None, trainings=5), total_epochs(None, 60, trainings=5)
    (300, 60)
    """
    if epochs is not None and budget is not None:
        raise InputError(
            f"epochs is {epochs} and budget {budget}; epochs is the length of one training, budget the total: give one of them."
        )
    return (usual if epochs is None else epochs) * trainings if budget is None else budget


def too_few(epochs: int, what: str, least: int) -> InputError:
    """Return the error for a recipe that needs more epochs."""
    return InputError(f"{epochs} epochs in all are too few for {what}; give at least {least} epochs or fewer members.")


def shares(epochs: int, members: int) -> tuple[tuple[int, int], ...]:
    """Return how many of `members` members get how many epochs, so that all epochs are used; longer shares come first.

    >>> shares(200, 4), shares(24, 5)
    (((4, 50),), ((4, 5), (1, 4)))
    """
    if epochs < members:
        raise too_few(epochs, f"{members} members of at least 1 epoch each", members)
    each, longer = divmod(epochs, members)
    return tuple((n, length) for n, length in ((longer, each + 1), (members - longer, each)) if n)


def forked(epochs: int, members: int, body: Callable[[int], Sequence[Phase]]) -> Phase:
    """Return branches that share a budget and use all of it: one fork, or two if some branches have an epoch more.

    Args:
        epochs: the budget.
        members: number of branches.
        body: returns the phases of a branch for its epochs.

    >>> from choral.plan import Collect, cost
    >>> cost(forked(11, 4, lambda each: (Train(epochs=each), Collect())))
    Cost(epochs=11, networks=4, phases=4)
    """
    parts = [fork(count, *body(each)) for count, each in shares(epochs, members)]
    return parts[0] if len(parts) == 1 else seq(*parts)
