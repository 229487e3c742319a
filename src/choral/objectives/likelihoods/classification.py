"""Likelihoods of classes: categorical, multi-label, ordinal."""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from choral.base import devices
from choral.base.errors import InputError
from choral.base.values import BelowOne, Limit, NotNegative
from choral.calibration import fit_temperature
from choral.metrics.classification import nll_rows
from choral.objectives.likelihoods.base import About, Known, Likelihood, aligned, columns, summed
from choral.predictions import Classification, MultiLabel, Predictive

_MOST_CLASSES = 10_000  # of which those without a training point are kept
_GAIN, _LEAST_GAIN = 0.1, 0.05  # of the NLL, and in nats: what a temperature gains where it is worth a warning


_AXIS = Limit(lambda axis: axis != 0, "the axis of the classes, 1 for pixels, -1 for tokens; 0 is the batch")


@dataclass(frozen=True, kw_only=True)
class Categorical(Likelihood):
    """Class labels; outputs are logits (member, batch, class), or dense logits with the classes on one axis.

    Targets are integers or one-hot rows. Dense targets have the shape of the outputs without the axis of classes: pixels (batch, height,
    width) for (batch, class, height, width), tokens (batch, time) for (batch, time, class).

    Args:
        axis: axis of the classes in the network's outputs, whose axis 0 is the batch; None infers it from the shapes.
        ignore: a label that is ignored in training and in scores; None for no such label.
        smoothing: share of each label that is spread over all classes in training, from 0 to below 1.
        class_weights: weight of each class in training; empty for 1. The loss is the plain mean of weighted losses, so weights that average
            1 over the training rows keep its scale.
        unseen: classes without training rows; set by `settled`, named in messages about targets.
    """

    prediction: ClassVar[type[Predictive]] = Classification
    link: ClassVar[str] = "Softmax"

    axis: Annotated[int, _AXIS] | None = None
    ignore: int | None = None
    smoothing: BelowOne = 0.0
    class_weights: tuple[NotNegative, ...] = ()
    unseen: tuple[int, ...] = ()

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        logits = outputs.flatten(0, 1)
        if logits.dim() > 2:
            logits = logits.movedim(-1 if self.axis is None else self.axis, 1)
        weights = self.class_weights
        each = F.cross_entropy(
            logits,
            targets.flatten(0, 1),
            weight=devices.constant(weights, logits.dtype, logits.device) if weights else None,
            reduction="none",
            ignore_index=-100 if self.ignore is None else self.ignore,
            label_smoothing=self.smoothing,
        )
        return each.unflatten(0, outputs.shape[:2])

    def mean_nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.class_weights or outputs.dim() > 3:
            return self.nll(outputs, targets).mean()
        return F.cross_entropy(outputs.flatten(0, 1), targets.flatten(0, 1), label_smoothing=self.smoothing)

    def smoothed(self, share: float) -> "Categorical":
        return replace(self, smoothing=share)

    def classes(self, outputs: Tensor) -> int | None:
        return outputs.shape[-1 if self.axis is None else self.axis]

    def outputs_for(self, targets: Tensor) -> int:
        return int(targets.max()) + 1

    def counted(self, targets: Tensor) -> Tensor | None:
        return None if self.ignore is None else targets != self.ignore

    def read(self, targets: Tensor) -> Tensor:
        """Return labels as integers; one-hot rows as indices."""
        if self.axis is None and targets.dim() == 2:
            targets = targets[:, 0] if targets.shape[1] == 1 else targets.argmax(1)
        return targets.long()

    def check(self, targets: Tensor, outputs: tuple[int, ...]) -> None:
        classes = outputs[self._place(targets, outputs)] if outputs else 1
        one_hot = len(outputs) == 1 and targets.dim() == 2 and targets.shape[1] > 1
        labels = targets if self.ignore is None else targets[targets != self.ignore]
        if one_hot and not (is_one_hot(targets) and targets.shape[1] == classes):
            found = f"rows of {targets.shape[1]} numbers that are not one-hot"
        elif not is_whole(targets):
            found = "real numbers"
        elif targets.numel() and not labels.numel():
            found = f"the ignored label {self.ignore} alone"
        elif labels.numel() and int(labels.min()) < 0:
            found = f"the negative label {int(labels.min())}"
        elif classes < 2 or (not one_hot and labels.numel() and int(labels.max()) >= classes):
            found = f"the class label {int(labels.max())}"
        else:
            return
        raise InputError(
            f"y holds {found} but the network gives {classes} outputs, one for each of the classes 0 to {classes - 1}; widen its last layer, "
            "renumber the labels from 0, or give likelihood='bernoulli' for one output or several labels at once, 'gaussian' for real numbers."
        )

    def constant(self, outputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> str:
        """Compare accuracy and log score, of weighted rows, with those of the class frequencies."""
        if targets.dim() != 1 or outputs.dim() != 3:
            return ""
        kept = targets != self.ignore if self.ignore is not None else slice(None)
        counts = (torch.ones(len(targets)) if weights is None else weights)[kept].double()
        targets, probs = targets[kept], outputs[:, kept].double().softmax(-1).mean(0)
        shares = torch.bincount(targets, counts, minlength=probs.shape[1]) / counts.sum()
        score = probs[torch.arange(len(targets)), targets].clamp_min(1e-30).log() @ counts / counts.sum()
        best = torch.special.xlogy(shares, shares).sum()
        accuracy = (probs.argmax(1) == targets).double() @ counts / counts.sum()
        return "the most frequent class" if accuracy <= shares.max() and score <= best else ""

    def miscalibrated(self, outputs: Tensor, targets: Tensor) -> str:
        """Compare the members' mixture with itself at the best temperature for the rows."""
        if targets.dim() != 1 or outputs.dim() != 3 or self.ignore is not None or self.class_weights:
            return ""
        found = fit_temperature(outputs, targets)
        before, after = (nll_rows(o.double().softmax(-1).mean(0), targets) for o in (outputs, found.apply(outputs)))
        gain, nll = before - after, float(before.mean())
        least = 3 * float(gain.std()) / len(gain) ** 0.5
        if float(gain.mean()) <= max(_LEAST_GAIN, _GAIN * nll, least):
            return ""
        flat = "flat (members disagree, or learned too little)" if max(found.temperatures) < 1 else "sharp"
        rows = f"the NLL of the {len(targets)} held-out rows falls from {nll:.3f} to {float(after.mean()):.3f}"
        return f"probabilities are too {flat}: with a temperature {rows}"

    def settled(self, known: Known) -> Self:
        """Return it with the axis of dense classes, counted from the end, and the classes without rows."""
        outputs, place = known.outputs, self._place(known.targets, known.outputs)
        settled = self if len(outputs) < 2 else replace(self, axis=place - len(outputs))
        if not known.whole or outputs[place] > _MOST_CLASSES:
            return settled
        seen = set(settled.read(known.targets).unique().tolist())
        return replace(settled, unseen=tuple(c for c in range(outputs[place]) if c not in seen))

    def _place(self, targets: Tensor, outputs: tuple[int, ...]) -> int:
        """Return the axis of the classes in the shape of one row's outputs; InputError if it is wrong or ambiguous."""
        if len(outputs) < 2:
            return 0
        shape = tuple(targets.shape[1:])
        fitting = [i for i in range(len(outputs)) if outputs[:i] + outputs[i + 1 :] == shape]
        if self.axis is not None:
            place = self.axis - 1 if self.axis > 0 else len(outputs) + self.axis
            fitting = [place] if place in fitting else []
        if len(fitting) == 1:
            return fitting[0]
        raise InputError(
            f"the network gives (batch, ...) = {outputs} for labels (batch, ...) = {shape}, and {len(fitting)} axes could be that of the classes; "
            "give labels of the shape of the outputs without the axis of classes: (batch, height, width) for (batch, class, height, width), "
            "(batch, time) for (batch, time, class). Of several axes say which: likelihood=Categorical(axis=1) for pixels, Categorical(axis=-1) for "
            "tokens."
        )

    def understood(self) -> dict[str, str]:
        dense = {} if self.axis is None else {"classes": f"on axis {self.axis} of the outputs"}
        return super().understood() | dense | ({} if self.ignore is None else {"ignored label": str(self.ignore)})

    def predict(self, outputs: Tensor, about: About) -> Predictive:
        axis = -1 if self.axis is None else self.axis
        kept = {"axis": axis, "ignore": self.ignore, "unseen": self.unseen}
        return Classification(outputs, about.combine, about.names, learners=about.learners, **kept)  # type: ignore[arg-type]  # of the types of the fields


def is_whole(targets: Tensor) -> bool:
    """Return whether all numbers are whole."""
    return not targets.is_floating_point() or bool((targets == targets.round()).all())


def is_binary(targets: Tensor) -> bool:
    """Return whether all numbers are 0 or 1."""
    return bool(((targets == 0) | (targets == 1)).all())


def is_one_hot(targets: Tensor) -> bool:
    """Return whether every row holds a single 1 among zeros."""
    return targets.dim() == 2 and targets.shape[1] > 1 and is_binary(targets) and bool((targets.sum(1) == 1).all())


@dataclass(frozen=True, kw_only=True)
class Bernoulli(Likelihood):
    """Yes or no, for one label (binary) or several; outputs are one logit for each label (member, batch, label).

    Dense outputs (batch, label, height, width) go with targets of the same shape, or without the label axis for one label.
    """

    prediction: ClassVar[type[Predictive]] = MultiLabel
    link: ClassVar[str] = "Sigmoid"
    outputs_each: ClassVar[int] = 1

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        logits = columns(outputs)
        return summed(F.binary_cross_entropy_with_logits(logits, aligned(targets, logits), reduction="none"))

    def classes(self, outputs: Tensor) -> int | None:
        return 2 if columns(outputs).shape[2] == 1 else None

    def check(self, targets: Tensor, outputs: tuple[int, ...]) -> None:
        if not is_binary(targets):
            raise InputError(
                "y holds other numbers than 0 and 1, but the likelihood is Bernoulli; give 0 or 1, or likelihood='categorical' for class numbers."
            )
        super().check(targets, outputs)

    def predict(self, outputs: Tensor, about: About) -> Predictive:
        return MultiLabel(columns(outputs), about.names, learners=about.learners)


@dataclass(frozen=True, kw_only=True)
class Ordinal(Likelihood):
    """Ordered classes 0 < 1 < ... < K - 1; outputs are K - 1 numbers that define cumulative logits (member, batch, K - 1).

    P(y > k) = sigmoid(c_k) with c_0 the first output and c_k = c_(k-1) - softplus(output k). The c_k decrease, so every class has a
    positive probability.

    Reference: McCullagh, "Regression Models for Ordinal Data", 1980, section 2 (proportional odds), with thresholds that the
    network predicts.
    """

    prediction: ClassVar[type[Predictive]] = Classification

    def classes(self, outputs: Tensor) -> int | None:
        return outputs.shape[-1] + 1

    def outputs_for(self, targets: Tensor) -> int:
        return int(targets.max())

    def log_probs(self, outputs: Tensor) -> Tensor:
        """Return the log probability of each class (member, batch, class)."""
        first, gaps = outputs[..., :1], F.softplus(outputs[..., 1:])
        above = torch.cat([first, first - gaps.cumsum(-1)], -1)  # logit of P(y > k)
        inner = F.logsigmoid(above[..., :-1]) + F.logsigmoid(-above[..., 1:]) + torch.log(-torch.expm1(-gaps))
        return torch.cat([F.logsigmoid(-above[..., :1]), inner, F.logsigmoid(above[..., -1:])], -1)

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return -self.log_probs(outputs).gather(-1, targets.unsqueeze(-1)).squeeze(-1)

    def read(self, targets: Tensor) -> Tensor:
        return (targets[:, 0] if targets.dim() == 2 else targets).long()

    def check(self, targets: Tensor, outputs: tuple[int, ...]) -> None:
        classes = outputs[0] + 1 if len(outputs) == 1 else 0
        fits = targets.dim() == 1 or (targets.dim() == 2 and targets.shape[1] == 1)
        if not classes or not fits or not is_whole(targets) or int(targets.min()) < 0 or int(targets.max()) >= classes:
            raise InputError(
                f"y must hold one whole number from 0 to K - 1 a point and the network K - 1 outputs for K ordered classes; y is "
                f"(batch, ...) = {tuple(targets.shape[1:])} from {float(targets.min()):g} to {float(targets.max()):g} and the "
                f"outputs are {outputs}."
            )

    def predict(self, outputs: Tensor, about: About) -> Predictive:
        return Classification(
            self.log_probs(outputs), about.combine, about.names, ordered=True, learners=about.learners
        )
