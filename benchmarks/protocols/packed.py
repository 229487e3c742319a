"""Packed-Ensembles: Laurent et al., ICLR 2023, arXiv:2210.09184.

Tables and figures of the supplement; those of the main text are not covered.
"""

import math
from dataclasses import replace
from typing import Any

import torch

from choral import models
from choral.data import Mixup, RandAugment
from choral.plan import SGD, Steps
from choral.recipes import make
from choral.recipes.training import Training

from .pat import COMMON_CORRUPTIONS
from .protocol import Claim, Protocol, Row, Scale, figures


def settings(rate: float, decay: float, factor: float, *falls: float) -> Training:
    """Return a line of Table 4; falls are shares of the training."""
    schedule = Steps(rate, milestones=falls, factor=factor)
    return Training(schedule=schedule, optimizer=SGD(momentum=0.9, weight_decay=decay), batch_size=128)


LONG = (60 / 200, 120 / 200, 160 / 200)
SHORT = (25 / 75, 50 / 75)
TABLE_4 = {
    ("cifar10", "resnet18"): (settings(0.05, 5e-4, 0.1, *SHORT), 75),
    ("cifar10", "resnet50"): (settings(0.1, 5e-4, 0.2, *LONG), 200),
    ("cifar10", "wide_resnet"): (settings(0.1, 5e-4, 0.2, *LONG), 200),
    ("cifar100", "resnet18"): (settings(0.05, 1e-4, 0.2, *SHORT), 75),
    ("cifar100", "resnet50"): (settings(0.1, 5e-4, 0.2, *LONG), 200),
}
"""Training and epochs."""
MEDIUM = (RandAugment(), Mixup())
"""The augmentation of WideResNet on CIFAR-100; mixup or cutmix."""


def rates() -> list[dict[str, Any]]:
    """Return the last rate and the epochs of each line of Table 4."""
    last = {"resnet50": 0.1 * 0.2**3, "wide_resnet": 0.1 * 0.2**3}
    lines = []
    for (data, network), (training, epochs) in TABLE_4.items():
        wanted = last.get(network, 0.05 * (0.1 if data == "cifar10" else 0.2) ** 2)
        name = f"{data}, {network}"
        lines += [
            {"label": f"{name}: last rate", "ours": training.full().at(1.0), "paper": wanted},
            {"label": f"{name}: epochs", "ours": make("packed", budget=epochs, training=training).epochs,
             "paper": 75 if network == "resnet18" else 200},
        ]  # fmt: skip
    return [
        *lines,
        {"label": "cifar100, wide_resnet: augmentation", "ours": "medium" if MEDIUM else "", "paper": "medium"},
    ]


SCALES: dict[str, dict[str, Any]] = {
    "quick": {"network": "small_cnn", "data": "cifar10", "points": 2_000, "epochs": 20, "minimum": 4, "batch": 32},
    "cpu": {"network": "resnet18_quarter", "data": "cifar10", "points": 15_000, "epochs": 10, "minimum": 8},
    "paper": {"network": "resnet50", "data": "cifar100", "points": None, "epochs": 200, "minimum": 64},
}
"""At 'cpu' and 'quick' groups may be as narrow as the network is: a quarter of 64 channels, of which members have a fourth. Batches of
32 at 'quick' give 63 steps an epoch: with 128 packed members had too few, and were behind one network on held-out training images."""


def line(scale: str, label: str, method: str, paper: Any = None, *, network: str = "", **options: Any) -> Row:
    """Return a line trained as Table 4 says."""
    of = SCALES[scale]
    chosen = network or of["network"]
    training, epochs = TABLE_4.get((of["data"], chosen), (TABLE_4["cifar10", "resnet18"][0], of["epochs"]))
    training = replace(training, batch_size=of.get("batch", training.batch_size))
    members = options.get("members", 4) if method == "deep_ensemble" else 1
    return Row(label=label, method=method, options=options, training=training, epochs=members * epochs,
               network=chosen, data=of["data"], points=of["points"], augmented="flip", paper=paper or {})  # fmt: skip


def packed(scale: str, width: float, members: int = 4, subgroups: int = 1, paper: Any = None, **options: Any) -> Row:
    """Return Packed-Ensembles PE-(alpha, M, gamma)."""
    label = f"PE-({width:g}, {members}, {subgroups})"
    return line(scale, label, "packed", paper, width=float(width), members=members, subgroups=subgroups,
                minimum_channels=SCALES[scale]["minimum"], **options)  # fmt: skip


MEASURES = ("accuracy", "ece", "ood_aupr")
TABLE_5 = """78.72 0.0165 0.8969\n81.16 0.0203 0.8966\n81.87 0.0201 0.8825\n81.83 0.0230 0.8939
78.57 0.0185 0.9024\n81.03 0.0295 0.9115\n81.86 0.0197 0.9127\n82.42 0.0190 0.9088
- - -\n81.19 0.0180 0.9066\n81.82 0.0236 0.9140\n82.25 0.0226 0.9229"""
PAIRS = tuple((width, gamma) for gamma in (1, 2, 4) for width in (1, 2, 3, 4))
FIGURES_5 = figures(tuple(f"{w}-{g}" for w, g in PAIRS), MEASURES, TABLE_5)
CHOSEN = ((2, 4, 1), (3, 8, 1), (4, 8, 2), (6, 8, 4), (8, 16, 1))
CRITERIA = ("max_probability", "max_logit", "entropy", "mutual_information", "variation_ratio")
OOD = tuple(f"{m}_{c}" for m in ("ood_aupr", "ood_auroc") for c in CRITERIA)
TABLE_6 = figures(
    tuple(f"{a}-{m}-{g}" for a, m, g in CHOSEN),
    OOD,
    """0.8952 0.9183 0.9105 0.8649 0.8404 0.8056 0.8562 0.8361 0.7711 0.7305
    0.9055 0.9175 0.9152 0.9139 0.8746 0.8204 0.8421 0.8427 0.8312 0.7799
    0.9153 0.9285 0.9260 0.9157 0.8827 0.8408 0.8665 0.8662 0.8402 0.7943
    0.9149 0.9265 0.9237 0.9196 0.8842 0.8432 0.8621 0.8617 0.8468 0.7999
    0.9141 0.9268 0.9252 0.9245 0.8931 0.8387 0.8607 0.8614 0.8513 0.8092""",
)


def grid(scale: str) -> tuple[Row, ...]:
    """Return the lines of Table 5: alpha and gamma, four members; below the paper's scale alpha up to 3, at 'quick' gamma up to 2."""
    return tuple(
        packed(scale, w, 4, g, FIGURES_5[f"{w}-{g}"])
        for w, g in PAIRS
        if (w, g) != (1, 4) and (scale == "paper" or w < 4) and (scale != "quick" or g < 4)
    )


TABLE_7 = figures(
    ("none", "starts", "batches", "starts and batches"),
    (*MEASURES, "mutual_information"),
    """77.63 0.0825 0.8919 0
    81.01 0.0202 0.9110 0.1524
    80.87 0.0178 0.9080 0.1505
    81.10 0.0186 0.9085 0.1521""",
)
"""ResNet-50 with deterministic kernels."""


def stochasticity(scale: str) -> tuple[Row, ...]:
    """Return Table 7: what makes members differ."""
    return tuple(
        replace(
            packed(scale, 2, paper=TABLE_7[label], equal_starts="starts" not in label, own_batches="batches" in label),
            label=label,
        )
        for label in TABLE_7
    )


def criteria(scale: str) -> tuple[Row, ...]:
    """Return the lines of Table 6; below the paper's scale the first three."""
    return tuple(packed(scale, a, m, g, TABLE_6[f"{a}-{m}-{g}"]) for a, m, g in CHOSEN[: 5 if scale == "paper" else 3])


def by_width(scale: str) -> tuple[Row, ...]:
    """Return the lines of Figure 8: plain networks of several widths, ResNet-18 but at 'quick'."""
    names = {
        "quick": ("small_cnn", "small_cnn_double"),
        "cpu": ("resnet18_quarter", "resnet18_half"),
        "paper": ("resnet18_quarter", "resnet18_half", "resnet18", "resnet18_double"),
    }[scale]
    return tuple(line(scale, "Single", "single", network=name) for name in names)


def shifted(scale: str) -> tuple[Row, ...]:
    """Return the lines of Figure 9."""
    return (
        line(scale, "Single", "single"),
        packed(scale, 2),
        line(scale, "Deep Ensembles", "deep_ensemble", members=4),
    )


def efficiency() -> list[dict[str, Any]]:
    """Return the parameters of Table 10, in millions; networks on torch's meta device hold no numbers."""
    single = {"R50": 64, "R50x4": 256}
    wanted = {
        ("R50", "single"): 25.6, ("R50", "batch_ensemble"): 25.7, ("R50", "packed"): 59.1, ("R50", "mimo"): 31.7,
        ("R50", "deep_ensemble"): 102.4, ("R50x4", "single"): 383.6, ("R50x4", "packed"): 392.0,
        ("R50x4", "batch_ensemble"): 384.4, ("R50x4", "mimo"): 408.3, ("R50x4", "deep_ensemble"): 1534.4,
    }  # fmt: skip
    lines = []
    for (name, method), paper in wanted.items():
        with torch.device("meta"):
            network = models.resnet50(width=single[name])
        times = 4 if method == "deep_ensemble" else 1
        if method not in ("single", "deep_ensemble"):
            options = {"width": 3.0 if name == "R50" else 2.0} if method == "packed" else {}
            structure = make(method, members=4, **options).structure
            network = structure.convert(network, torch.Generator().manual_seed(0))
        found = times * sum(p.numel() for p in network.parameters()) / 1e6
        lines.append({"label": f"{name}, {method}: millions", "ours": found, "paper": paper, "tolerance": 0.004})
    return lines


def divergence(
    p: float, std: float, *, mean: float = 0.1, weight: float = 0.1, inputs: int = 64
) -> tuple[float, float]:
    """Return the KL divergence of a layer from its masked approximation, and the bound of Proposition C.1.

    All means and weights are those of Figure 5; `std` is the standard deviation of the layer's output. A mask keeps each weight
    with probability p, so the masked output has the mean p mu and the variance p std^2 + p (1 - p) sum (w mu)^2.
    """
    total, squares = inputs * weight * mean, inputs * (weight * mean) ** 2
    masked = p * std**2 + p * (1 - p) * squares
    moved = ((1 - p) * total) ** 2
    exact = 0.5 * (math.log(masked / std**2) + (std**2 + moved) / masked - 1)
    return exact, 0.5 * (p + 1 / p - 2 + p * (1 - p) * squares / std**2 + moved / (p * std**2))


def bound() -> list[dict[str, Any]]:
    """Return whether the divergence is below the bound, for the values of Figure 5."""
    lines = []
    for p in (0.1, 0.25, 0.5, 0.75, 1.0):
        for std in (0.5, 1.0, 2.0):
            exact, most = divergence(p, std)
            said = "below" if exact <= most + 1e-12 else "above"
            lines.append(
                {"label": f"p = {p:g}, sigma = {std:g}: {exact:.3g} and {most:.3g}", "ours": said, "paper": "below"}
            )
    return lines


SETS = ("boston", "concrete", "energy", "power", "protein", "wine", "yacht")
REGRESSION = ("packed_rmse", "deep_rmse", "packed_nll", "deep_nll")
TABLE_11 = figures(
    SETS,
    REGRESSION,
    """2.218 2.219 2.028 2.047
    5.092 5.167 2.854 2.885
    1.675 1.712 1.543 1.553
    3.127 3.097 2.607 2.600
    3.476 3.412 2.472 2.442
    0.482 0.483 0.622 0.611
    1.949 2.511 2.023 2.023""",
)


def _both(hours: float, rows: Any, *, paper_hours: float = 300, **options: Any) -> dict[str, Any]:
    small = {n: v for n, v in options.items() if n not in ("ood", "corruptions")}
    return {
        "quick": Scale(
            rows=rows("quick"),
            epochs=20,
            seeds=3,
            hours=0.1,
            test_rows=2_000,
            ood="cifar100",
            severities=(1, 3, 5),
            corruptions=options.get("corruptions", ())[::3],
            **small,
        ),
        "cpu": Scale(
            rows=rows("cpu"), epochs=10, hours=hours, **options | ({"ood": "cifar100"} if "ood" in options else {})
        ),
        "paper": Scale(rows=rows("paper"), epochs=200, seeds=5, hours=paper_hours, gpu=True, **options),
    }


UCI: dict[str, Any] = {"splits": "packed", "seeds": 20, "epochs": 40}
SVHN = "the paper's second set is SVHN, which is not read; CIFAR-100 (for CIFAR-10) or CIFAR-10 takes its place"
PROTOCOLS = (
    Protocol(id="packed-t3", title="Notation", why="a list of symbols"),
    Protocol(id="packed-t4", title="Hyperparameters", compute=rates, why="medium augmentation is RandAugment with mixup or cutmix"),
    Protocol(id="packed-t5", title="alpha and gamma, four members", measures=MEASURES, **_both(8, grid, ood="cifar10"), why=SVHN,
             claims=(Claim(better="PE-(3, 4, 1)", worse="PE-(1, 4, 1)"),)),
    Protocol(id="packed-t6", title="Criteria of strangeness", measures=OOD, **_both(3, criteria, ood="cifar10"), why="digits: `ood_digits.json`; " + SVHN),
    Protocol(id="packed-t7", title="Sources of stochasticity", measures=(*MEASURES, "mutual_information"),
             why="non-deterministic kernels are not used; " + SVHN, **_both(3, stochasticity, ood="cifar10"),
             claims=(Claim(better="starts", worse="none", measure="mutual_information"),
                     Claim(better="batches", worse="none", measure="mutual_information"))),
    Protocol(id="packed-t8", title="Training and prediction speed", why="on CPUs; `prediction.json` has predictions; on a GPU `gpu.py --device cuda`",
             elsewhere="shared_speed.json"),
    Protocol(id="packed-t9", title="Packed ResNet-50 and ResNeXt-50 on CIFAR-10", measures=("accuracy", "nll", "ece", "ood_aupr", "ood_auroc"),
             paper=Scale(epochs=200, seeds=5, hours=150, gpu=True, ood="cifar100", rows=tuple(
                 replace(row, data="cifar10") for row in (
                     packed("paper", 2, paper={"accuracy": 96.0, "nll": 0.1367, "ece": 0.0087, "ood_aupr": 0.971, "ood_auroc": 0.949}),
                     line("paper", "ResNeXt-50", "single", network="resnext50",
                          paper={"accuracy": 90.4, "nll": 0.4604, "ece": 0.0709, "ood_aupr": 0.904, "ood_auroc": 0.825})))),
             why=SVHN),
    Protocol(id="packed-t10", title="Parameters on ImageNet", compute=efficiency, why="Masksembles left out: the paper counts masks"),
    Protocol(id="packed-t11", title="UCI regression", measures=("rmse", "mae", "nll"),
             figures={name: {"Packed-Ensembles": {"rmse": f["packed_rmse"], "nll": f["packed_nll"]},
                             "Deep Ensembles": {"rmse": f["deep_rmse"], "nll": f["deep_nll"]}} for name, f in TABLE_11.items()},
             cpu=Scale(names=tuple(n for n in SETS if n != "protein"), hours=2, **UCI),
             paper=Scale(names=SETS, hours=4, **UCI),
             why="expected: packed members err about as much as a deep ensemble; they do, but on concrete, where they err more; "
             "kin8nm and naval are not run; the RMSE printed fits a mean absolute error"),
    Protocol(id="packed-f5", title="Bound of Proposition C.1", compute=bound,
             why="the figure has no numbers; the divergence of the masked layer stays below the bound on a grid"),
    Protocol(id="packed-f6", title="Accuracy and AUPR by alpha", measures=("accuracy", "ood_aupr"), why="from the runs of packed-t5; " + SVHN,
             **_both(0.1, lambda s: tuple(r for r in grid(s) if r.options["subgroups"] == 1), ood="cifar10")),
    Protocol(id="packed-f7", title="Accuracy and AUPR by gamma", measures=("accuracy", "ood_aupr"), why="from the runs of packed-t5; " + SVHN,
             **_both(0.1, lambda s: tuple(r for r in grid(s) if r.options["width"] == 2), ood="cifar10")),
    Protocol(id="packed-f8", title="Accuracy and AUPR by width", measures=("accuracy", "ood_aupr"),
             why="expected: accuracy rises with the width, as it does from one small network to one twice as wide; " + SVHN,
             **_both(3, by_width, ood="cifar10")),
    Protocol(id="packed-f9", title="Accuracy and ECE by severity", measures=("accuracy", "levels"),
             **_both(3, shifted, corruptions=COMMON_CORRUPTIONS, corrupted_rows=500),
             claims=(Claim(better="PE-(2, 4, 1)", worse="Single", measure="c_accuracy"),)),
)  # fmt: skip
