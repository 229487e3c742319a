"""Sequential Bayesian Neural Subnetwork Ensembles: Jantre et al., 2022, arXiv:2206.00794."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from choral.plan import SGD, Steps
from choral.recipes.bnn import VARIATIONAL
from choral.recipes.sebays import schedules
from choral.recipes.training import Training

from .pat import ALL_CORRUPTIONS
from .protocol import Claim, Protocol, Row, Scale, figures

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "quick": {
        "network": "small_cnn", "silu": "small_cnn_silu", "points": 4_000, "batch": 32, "kl": 4_000 / 45_000,
        "explore": 7, "exploit": 3, "single": 10, "interval": 30, "draws": 1, "rates": 16,
    },
    "quick, few": {
        "network": "small_cnn", "silu": "small_cnn_silu", "points": 2_000, "batch": 32, "kl": 2_000 / 45_000,
        "explore": 7, "exploit": 3, "single": 10, "interval": 15, "draws": 1, "rates": 32,
    },
    "quick, fewest": {
        "network": "small_cnn", "silu": "small_cnn_silu", "points": 1_000, "batch": 32, "kl": 1_000 / 45_000,
        "explore": 7, "exploit": 3, "single": 10, "interval": 8, "draws": 1, "rates": 32,
    },
    "quick, long": {
        "network": "small_cnn", "silu": "small_cnn_silu", "points": 500, "batch": 32, "kl": 500 / 45_000,
        "explore": 60, "exploit": 40, "single": 100, "interval": 8, "draws": 1, "rates": 32, "augmented": False,
    },
    "quick, ResNet-8": {
        "network": "resnet8_narrow", "silu": "resnet8_narrow_silu", "points": 2_000, "batch": 32, "kl": 2_000 / 45_000,
        "explore": 7, "exploit": 3, "single": 10, "interval": 15, "draws": 1, "rates": 32,
    },
    "cpu": {
        "network": "resnet20_narrow", "silu": "resnet20_narrow_silu", "points": 15_000, "batch": 32, "kl": 15_000 / 45_000,
        "explore": 7, "exploit": 3, "single": 10, "interval": 100, "draws": 5, "rates": 16,
    },
    "paper": {
        "network": "resnet32", "silu": "resnet32_silu", "points": 45_000, "batch": 128, "kl": 1.0,
        "explore": 150, "exploit": 100, "single": 250, "interval": 1000, "draws": 5,
    },
}  # fmt: skip
"""All sizes at the paper's ratios: a single network has as many epochs as the exploration and one exploitation. The KL is that of
45,000 points; `rates` makes rho and gates faster in the lines that make up for a part of the missing steps. 'quick, long' has few images
without augmentation, so that a single network fits them all, as in the paper: 100 % of the training images (81 % with augmentation and
125 epochs; no test image was looked at)."""
PERCENTS = ("accuracy", "nll", "c_accuracy", "c_nll")
LABELS = (
    "SSBNN", "MIMO", "EDST", "SeBayS-Freeze", "SeBayS-No Freeze", "DST", "Deterministic", "BNN", "Rank-1 BNN",
    "BNN Sequential", "Dense Ensemble",
)  # fmt: skip
TABLE_1 = figures(
    LABELS,
    PERCENTS,
    """91.2 0.320 67.5 1.479
    89.1 0.333 65.9 1.118
    93.1 0.214 69.8 1.236
    92.5 0.273 70.4 1.344
    92.4 0.274 69.8 1.356
    93.3 0.206 71.9 1.018
    92.8 0.376 69.6 2.387
    91.9 0.353 71.3 1.422
    92.7 0.235 67.9 1.374
    93.8 0.265 73.3 1.341
    93.8 0.216 72.8 1.403""",
)
TABLE_2 = figures(
    LABELS,
    PERCENTS,
    """67.9 1.511 38.9 4.527
    69.2 1.671 44.5 2.584
    71.9 0.997 44.3 2.787
    69.4 1.393 42.4 3.855
    69.4 1.403 41.7 3.906
    74.0 0.914 46.7 2.529
    70.3 1.813 42.3 5.619
    70.4 1.335 43.2 3.774
    70.1 1.068 43.7 2.675
    72.2 1.250 44.9 3.537
    74.4 1.213 46.3 4.038""",
)
DIVERSITY = ("disagreement", "pairwise_kl")
DIVERSE = ("EDST", "BNN Sequential", "SeBayS-Freeze", "SeBayS-No Freeze", "DST")
TABLE_3 = figures(DIVERSE, DIVERSITY, "0.058 0.106\n0.061 0.201\n0.060 0.138\n0.106 0.346\n0.085 0.205")
TABLE_3_100 = figures(DIVERSE, DIVERSITY, "0.209 0.335\n0.208 0.493\n0.212 0.452\n0.241 0.597\n0.292 0.729")
TABLE_4 = figures(
    LABELS,
    ("ood_auroc",),
    "0.806\n0.842\n0.872\n0.864\n0.842\n0.879\n0.848\n0.841\n0.866\n0.863\n0.878",
)
AUTHORS: Mapping[str, Mapping[str, Any]] = {
    "bnn_sequential": {}, "sebays_freeze": {"frozen_kl": "gamma"}, "sebays_no_freeze": {"gates": "drawn"}, "ssbnn": {"gates": "drawn"},
}  # fmt: skip
"""What the authors' code does otherwise than our defaults; momentum is carried in all of them."""
SEQUENTIAL = {
    "BNN Sequential": "bnn_sequential",
    "SeBayS-Freeze": "sebays_freeze",
    "SeBayS-No Freeze": "sebays_no_freeze",
}
LONG = ("MIMO", "EDST", "DST", "Rank-1 BNN", "Dense Ensemble")
"""Lines that 'quick' leaves out."""


def _plain(of: Mapping[str, Any], network: str, data: str) -> dict[str, Any]:
    return {"network": of[network], "points": of["points"], "data": data, "augmented": of.get("augmented", True)}


def sequential(
    scale: str,
    label: str,
    paper: Mapping[str, float],
    *,
    name: str = "",
    draws: int = 1,
    data: str = "cifar10",
    **options: Any,
) -> Row:
    """Return one of the paper's three ensembles: an exploration, then members of one exploitation each."""
    of, method = SETTINGS[scale], SEQUENTIAL[label]
    given = {"members": 3, "explore_epochs": of["explore"], "exploit_epochs": of["exploit"], "kl_weight": of["kl"],
             "draws": of["draws"], "memory": "carried", **AUTHORS[method]}  # fmt: skip
    network = "network" if method == "bnn_sequential" else "silu"
    return Row(label=name or label, method=method, options=given | options, draws=draws, paper=paper,
               training=replace(VARIATIONAL, batch_size=of["batch"]), **_plain(of, network, data))  # fmt: skip


def bayesian(
    scale: str, label: str, paper: Mapping[str, float], *, name: str = "", draws: int = 1, data: str = "cifar10"
) -> Row:
    """Return a single Bayesian network, dense or with gates."""
    of, gated = SETTINGS[scale], label == "SSBNN"
    options = {"draws": of["draws"], "kl_weight": of["kl"], **(AUTHORS["ssbnn"] if gated else {})}
    return Row(label=name or label, method=label.lower(), options=options, epochs=of["single"], draws=draws, paper=paper,
               training=replace(VARIATIONAL, batch_size=of["batch"]),
               **_plain(of, "silu" if gated else "network", data))  # fmt: skip


def rivals(scale: str, paper: Mapping[str, Mapping[str, float]], data: str = "cifar10") -> dict[str, Row]:
    """Return the other lines of Table 1; epochs of ensembles in parallel are those of a single network for each member."""
    of, total = SETTINGS[scale], SETTINGS[scale]["explore"] + 3 * SETTINGS[scale]["exploit"]
    falls = Training(schedule=Steps(0.1, milestones=(0.6, 0.8)), batch_size=of["batch"],
                     optimizer=SGD(momentum=0.9, weight_decay=5e-4))  # fmt: skip
    sparse = {"members": 3, "sparsity": 0.8, "interval": of["interval"]}
    lines: dict[str, tuple[str, dict[str, Any], int]] = {
        "Deterministic": ("single", {}, of["single"]),
        "MIMO": ("mimo", {"members": 3}, of["single"]),
        "Rank-1 BNN": ("rank1_bnn", {"members": 3}, of["single"]),
        "Dense Ensemble": ("deep_ensemble", {"members": 3}, 3 * of["single"]),
        "DST": ("dst", sparse, 3 * of["single"]),
        "EDST": ("edst", sparse | {"explore_epochs": of["explore"]}, total),
    }
    return {
        label: Row(label=label, method=method, options=options, training=falls, epochs=epochs,
                   paper=paper.get(label, {}), **_plain(of, "network", data))
        for label, (method, options, epochs) in lines.items()
    }  # fmt: skip


def table(
    scale: str, paper: Mapping[str, Mapping[str, float]], labels: tuple[str, ...] = LABELS, data: str = "cifar10"
) -> tuple[Row, ...]:
    """Return the lines of a table by their labels."""
    made = rivals(scale, paper, data)
    for label in ("SSBNN", "BNN"):
        made[label] = bayesian(scale, label, paper.get(label, {}), data=data)
    for label in SEQUENTIAL:
        made[label] = sequential(scale, label, paper.get(label, {}), data=data)
    return tuple(made[label] for label in labels)


def varied(
    scale: str, option: str, values: Mapping[str, Any], paper: Mapping[str, Mapping[str, float]]
) -> tuple[Row, ...]:
    """Return the three ensembles under several values of an option, by name."""
    return tuple(
        sequential(scale, label, paper.get(f"{label}, {name}", {}), name=f"{label}, {name}", **{option: value})
        for label in SEQUENTIAL
        for name, value in values.items()
    )


def sized(scale: str) -> tuple[Row, ...]:
    """Return the lines of Table 5: members 3, 5 and 10."""
    labels = tuple(
        f"{label}, M = {m}" for label in ("SeBayS-Freeze", "SeBayS-No Freeze", "BNN Sequential") for m in (3, 5, 10)
    )
    paper = figures(
        labels,
        PERCENTS,
        """92.5 0.273 70.4 1.344
        92.5 0.273 70.9 1.359
        92.7 0.275 71.0 1.386
        92.4 0.274 69.8 1.356
        92.5 0.271 70.2 1.375
        92.7 0.272 70.8 1.375
        93.8 0.265 73.3 1.341
        94.1 0.253 73.7 1.318
        94.2 0.244 73.9 1.300""",
    )
    singles = tuple(bayesian(scale, label, TABLE_1[label]) for label in ("SSBNN", "BNN"))
    return singles + varied(scale, "members", {f"M = {m}": m for m in (3, 5, 10)}, paper)


def drawn(scale: str) -> tuple[Row, ...]:
    """Return the lines of Table 6: one pass and five; the same runs."""
    labels = ("SSBNN", "SeBayS-Freeze", "SeBayS-No Freeze", "BNN", "BNN Sequential")
    names = tuple(f"{label}, MC = {draws}" for label in labels for draws in (1, 5))
    text = "91.2 0.320\n92.3 0.270\n92.5 0.273\n92.5 0.270\n92.4 0.274\n92.6 0.268\n91.9 0.353\n93.2 0.271\n93.8 0.265\n93.9 0.254"
    paper = figures(names, ("accuracy", "nll"), text)
    return tuple(
        (sequential if label in SEQUENTIAL else bayesian)(
            scale, label, paper[f"{label}, MC = {n}"], name=f"{label}, MC = {n}", draws=n
        )
        for label in labels
        for n in (1, 5)
    )


FACTORS = {f"rho = {f}": float(f) for f in (2, 3, 5)}
RATES = {name: name.replace("-", "_") for name in ("stepwise", "cosine", "linear-fge", "linear-1")}
TABLE_7 = figures(
    tuple(f"{label}, {name}" for label in ("SeBayS-Freeze", "SeBayS-No Freeze", "BNN Sequential") for name in FACTORS),
    PERCENTS,
    """92.7 0.264 70.6 1.303
    92.5 0.273 70.4 1.344
    92.5 0.267 70.6 1.314
    92.7 0.268 70.4 1.331
    92.4 0.274 69.8 1.356
    92.4 0.272 70.1 1.353
    93.6 0.269 73.3 1.361
    93.8 0.265 73.3 1.341
    93.6 0.262 73.0 1.366""",
)
TABLE_8 = figures(
    tuple(f"{label}, {name}" for label in ("BNN Sequential", "SeBayS-Freeze", "SeBayS-No Freeze") for name in FACTORS),
    DIVERSITY,
    "0.062 0.205\n0.061 0.201\n0.063 0.211\n0.058 0.135\n0.060 0.138\n0.059 0.137\n0.082 0.222\n0.106 0.346\n0.083 0.228",
)
TABLE_9 = figures(
    tuple(f"{label}, {name}" for label in ("SeBayS-Freeze", "SeBayS-No Freeze", "BNN Sequential") for name in RATES),
    PERCENTS,
    """92.5 0.273 70.4 1.344
    92.3 0.301 69.8 1.462
    92.5 0.270 70.1 1.363
    92.1 0.310 69.8 1.454
    92.4 0.274 69.8 1.356
    92.2 0.294 69.9 1.403
    92.4 0.276 70.0 1.379
    92.2 0.296 69.7 1.412
    93.8 0.265 73.3 1.341
    93.7 0.279 72.7 1.440
    93.5 0.270 73.1 1.342
    93.4 0.287 72.2 1.430""",
)
TABLE_10 = figures(
    tuple(f"{label}, {name}" for label in ("BNN Sequential", "SeBayS-Freeze", "SeBayS-No Freeze") for name in RATES),
    DIVERSITY,
    """0.061 0.201
    0.068 0.256
    0.070 0.249
    0.071 0.275
    0.060 0.138
    0.072 0.204
    0.076 0.215
    0.074 0.209
    0.106 0.346
    0.078 0.222
    0.074 0.199
    0.077 0.217""",
)


def rates() -> list[dict[str, Any]]:
    """Return the rates of Figure 4 at the start, the middle and the end of the first and of a later exploitation."""
    wanted = {
        "stepwise": ((0.01, 0.001, 0.001), (0.01, 0.001, 0.001)),
        "cosine": ((0.01, 0.0055, 0.001), (0.01, 0.0055, 0.001)),
        "linear_fge": ((0.1, 0.01, 0.001), (0.001, 0.01, 0.001)),
        "linear_1": ((0.01, 0.0055, 0.001), (0.01, 0.0055, 0.001)),
    }
    return [
        {"label": f"{name}, {when} exploitation at {at:g}", "ours": schedule.at(at), "paper": rate}
        for name, both in wanted.items()
        for when, schedule, expected in zip(("first", "later"), schedules(name, 0.1), both)
        for at, rate in zip((0.0, 0.5, 1.0), expected)
    ]


def faster(scale: str) -> tuple[Row, ...]:
    """Return the gated ensembles with rates of rho and gates that make up for missing steps."""
    rates: dict[str, Any] = {f"{name}_rate": float(SETTINGS[scale]["rates"]) for name in ("rho", "gate")}
    return tuple(
        sequential(scale, label, {}, name=f"{label}, faster gates", **rates)
        for label in ("SeBayS-Freeze", "SeBayS-No Freeze")
    )


def trajectories(scale: str) -> tuple[Row, ...]:
    """Return the ensembles of Figure 1, with the networks after all epochs."""
    return tuple(replace(sequential(scale, label, {}), checkpoints=True) for label in SEQUENTIAL)


def compared(better: str, worse: str, labels: tuple[str, ...], measure: str = "accuracy") -> tuple[Claim, ...]:
    """Return what the paper says of two settings of some ensembles."""
    return tuple(Claim(better=f"{label}, {better}", worse=f"{label}, {worse}", measure=measure) for label in labels)


def _pair(
    hours: float,
    rows: Any,
    *,
    paper_hours: float = 200,
    block: Any = lambda _: (),
    sizes: tuple[str, ...] = ("quick",),
    seeds: int = 3,
    test_rows: int = 5_000,
    **options: Any,
) -> dict[str, Any]:
    """Return the same lines at all scales, at 'quick' those of some sizes."""
    few = {"corruptions": options.get("corruptions", ()), "severities": (1, 3, 5), "corrupted_rows": 500}
    shared = {n: v for n, v in options.items() if n != "corruptions"}
    quick = [r for s in sizes for r in (*rows(s), *block(s)) if r.label not in LONG]
    return {
        "quick": Scale(rows=tuple(quick), epochs=10, seeds=seeds, hours=0.3, test_rows=test_rows, ood="cifar100"),
        "cpu": Scale(rows=rows("cpu") + block("cpu"), epochs=10, hours=hours, **few, **shared),
        "paper": Scale(rows=rows("paper"), epochs=250, hours=paper_hours, gpu=True,
                       corruptions=options.get("corruptions", ()), **shared),
    }  # fmt: skip


ORDER = (
    Claim(better="BNN Sequential", worse="BNN"),
    Claim(better="SeBayS-Freeze", worse="BNN"),
    Claim(better="SeBayS-Freeze", worse="SSBNN"),
)
EIGHT: dict[str, Any] = {"sizes": ("quick", "quick, ResNet-8")}
LONG_ONES: dict[str, Any] = {"sizes": ("quick, long", "quick, ResNet-8")}
FEW: dict[str, Any] = {"sizes": ("quick, few",)}
FEWEST: dict[str, Any] = {"sizes": ("quick, fewest",), "test_rows": 2_000}
THREE = tuple(SEQUENTIAL)
"""BNN Sequential, SeBayS-Freeze, SeBayS-No Freeze."""
TRIED = (
    "small_cnn fits all of its 500 images, and members hardly move any more; before, on 4,000 images with 7, 3 and 10 epochs, the "
    "three differences were 0.86 ± 0.52, -1.82 ± 1.06 and 0.90 ± 0.76 (2 seeds); the paper's 450 epochs of 352 steps need a GPU"
)
PASSES = (
    "expected: five passes of one network have a better likelihood than one, and three networks of one pass beat one of five; both hold, "
    "the first by far less than in the paper, as few steps leave the deviations of weights near their start and passes nearly alike"
)
FACTORS_SEEN = (
    "expected: gated ensembles are best with a factor of 2, dense ones with 3, by a fifth of a percent; accuracies differ less than that between "
    "factors here, as few steps leave the deviations that a factor multiplies near their narrow start"
)
PROTOCOLS = (
    Protocol(id="sebays-t1", title="ResNet-32 on CIFAR-10", measures=PERCENTS, claims=ORDER, why=TRIED,
             **_pair(6, lambda s: table(s, TABLE_1), corruptions=ALL_CORRUPTIONS,
                     block=lambda s: () if s == "quick, long" else faster(s), **LONG_ONES)),
    Protocol(id="sebays-t2", title="ResNet-56 on CIFAR-100", measures=PERCENTS, claims=ORDER[:1] + ORDER[2:],
             paper=Scale(rows=tuple(replace(r, network=r.network.replace("32", "56")) for r in table("paper", TABLE_2, data="cifar100")),
                         epochs=250, hours=400, gpu=True, corruptions=ALL_CORRUPTIONS)),
    Protocol(id="sebays-t3", title="Diversity of members", measures=(*DIVERSITY, "accuracy"),
             claims=(Claim(better="SeBayS-No Freeze", worse="SeBayS-Freeze", measure="disagreement"),),
             why="gates of no freeze are drawn at prediction",
             **_pair(0.2, lambda s: table(s, TABLE_3, DIVERSE), block=faster, **EIGHT)),
    Protocol(id="sebays-t4", title="AUROC against CIFAR-100", measures=("ood_auroc",), **_pair(0.3, lambda s: table(s, TABLE_4), ood="cifar100"),
             claims=(Claim(better="SeBayS-Freeze", worse="SSBNN", measure="ood_auroc"),
                     Claim(better="BNN Sequential", worse="BNN", measure="ood_auroc"))),
    Protocol(id="sebays-t5", title="Ensembles of 3, 5 and 10", measures=PERCENTS,
             why="expected: ten members are better than three; means rise with members in all three ensembles, by more than in the paper, as each "
             "member adds epochs to a network that is far from trained",
             **_pair(5, sized, corruptions=ALL_CORRUPTIONS, **FEWEST),
             claims=(Claim(better="BNN Sequential, M = 10", worse="BNN Sequential, M = 3"),)),
    Protocol(id="sebays-t6", title="One pass and five", **_pair(0.3, drawn, **FEW), why=PASSES,
             claims=(Claim(better="BNN, MC = 5", worse="BNN, MC = 1", measure="nll"),
                     Claim(better="SSBNN, MC = 5", worse="SSBNN, MC = 1", measure="nll"),
                     Claim(better="BNN Sequential, MC = 1", worse="BNN, MC = 5"))),
    Protocol(id="sebays-t7", title="Perturbation factors", measures=PERCENTS, why=FACTORS_SEEN,
             claims=(*compared("rho = 2", "rho = 3", THREE[1:]), *compared("rho = 3", "rho = 2", THREE[:1])),
             **_pair(3, lambda s: varied(s, "factor", FACTORS, TABLE_7), corruptions=ALL_CORRUPTIONS, **FEW)),
    Protocol(id="sebays-t8", title="Diversity by perturbation factor", measures=(*DIVERSITY, "accuracy"),
             claims=(*compared("rho = 3", "rho = 2", THREE[1:], "disagreement"), *compared("rho = 5", "rho = 3", THREE[:1], "disagreement")),
             **_pair(0.2, lambda s: varied(s, "factor", FACTORS, TABLE_8), **FEW), why="from the runs of sebays-t7"),
    Protocol(id="sebays-t9", title="Cyclic learning rates", measures=PERCENTS,
             why="expected: steps are better than a cosine and than linear-1, by tenths of a percent; differences here are that small too, and within "
             "two standard errors of none: an exploitation has too few steps for its schedule to show; linear-fge, whose first rates are the "
             "highest, is ahead in gated ensembles",
             claims=(*compared("stepwise", "cosine", THREE), *compared("stepwise", "linear-1", THREE)),
             **_pair(4, lambda s: varied(s, "schedule", RATES, TABLE_9), corruptions=ALL_CORRUPTIONS, **FEWEST)),
    Protocol(id="sebays-t10", title="Diversity by learning rate", measures=(*DIVERSITY, "accuracy"),
             claims=(*compared("stepwise", "cosine", THREE[2:], "disagreement"), *compared("cosine", "stepwise", THREE[:2], "disagreement")),
             **_pair(0.2, lambda s: varied(s, "schedule", RATES, TABLE_10), **FEWEST), why="expected: the cosine makes dense and frozen ensembles more diverse; here steps do, of which the reason is not known; "
             "from the runs of sebays-t9"),
    Protocol(id="sebays-f1", title="Trajectories of members", measures=("separation", "trajectory"), **_pair(1, trajectories, **FEWEST),
             why="the figure has no numbers: distance of predictions between members, over that of an epoch in an exploitation"),
    Protocol(id="sebays-f2", title="Parameters and operations left by epoch", measures=("parameters_remaining", "flops_remaining", "parameters_by_epoch", "flops_by_epoch"), why="from the runs of sebays-t1; the paper's figure has no numbers but 50 % and 65 %",
             **_pair(0.1, lambda s: tuple(sequential(s, label, {"parameters_remaining": 0.5, "flops_remaining": 0.65})
                                          for label in ("SeBayS-Freeze", "SeBayS-No Freeze")), block=faster, **EIGHT)),
    Protocol(id="sebays-f3", title="Accuracy by ensemble size", measures=("accuracy", "member_accuracy", "curve"),
             why="from the runs of sebays-t5", **_pair(0.2, lambda s: tuple(
                 sequential(s, label, {}, name=f"{label}, M = 10", members=10) for label in THREE), **FEW)),
    Protocol(id="sebays-f4", title="Cyclic learning rates, drawn", compute=rates),
)  # fmt: skip
