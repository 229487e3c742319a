"""Prune and Tune Ensembles: Whitaker & Whitley, AAAI 2022, arXiv:2202.11782."""

from dataclasses import replace
from typing import Any

from choral.plan import Adam
from choral.recipes.training import Training

from .protocol import Claim, Protocol, Row, Scale, figures

ADAM = Training(lr=0.001, optimizer=Adam(), batch_size=128, schedule="constant")
SGD = Training(lr=0.1, optimizer="sgd", batch_size=128, schedule="linear_drop")
CHILDREN = {"members": 8, "tuning": "constant"}
COMMON_CORRUPTIONS = (
    "gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur",
    "snow", "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression",
)  # fmt: skip
ALL_CORRUPTIONS = (*COMMON_CORRUPTIONS, "speckle_noise", "gaussian_blur", "spatter", "saturate")

LABELS = ("Independent", "Dropout", "Bagged", "PAT (R)", "PAT (AR)")
ACCURACY = {
    ("lenet_l", "cifar10"): "70.29 70.06 70.97 75.51 75.75",
    ("lenet_l", "cifar100"): "34.39 28.98 32.40 41.68 41.85",
    ("resnet18", "cifar10"): "80.99 72.97 79.88 84.61 84.68",
    ("resnet18", "cifar100"): "49.26 37.69 46.18 57.08 57.26",
}


def small_budget(
    network: str, data: str = "cifar10", points: int | None = None, batch_size: int = 128
) -> tuple[Row, ...]:
    """Return the five lines of Table 1 for a network: 16 epochs, Adam at 0.001, ensembles of eight."""
    text = ACCURACY.get((network, data), "- - - - -").replace(" ", "\n")
    found = figures(LABELS, ("accuracy",), text)
    methods: tuple[tuple[str, dict[str, Any]], ...] = (
        ("single", {}),
        ("mc_dropout", {"rate": 0.5}),
        ("bagged", {"members": 8, "fraction": 0.9}),
        ("prune_and_tune", {"pruning": "random", **CHILDREN}),
        ("prune_and_tune", {"pruning": "anti_random", **CHILDREN}),
    )
    return tuple(
        Row(label=label, method=method, options=options, training=replace(ADAM, batch_size=batch_size), epochs=16, network=network,
            data=data, points=points, paper=found[label])
        for label, (method, options) in zip(LABELS, methods)
    )  # fmt: skip


def children() -> tuple[Row, ...]:
    """Return the two lines of children of LeNet-S, and that of anti-random ones with one cycle, which the paper's Figure 1 is about."""
    own = tuple(row for row in small_budget("lenet_s") if row.method == "prune_and_tune")
    cycled = replace(own[-1], label="PAT (AR + 1C)", options={**own[-1].options, "tuning": "one_cycle"}, paper={})
    return (*own, cycled)


def few(rows: tuple[Row, ...], points: int) -> tuple[Row, ...]:
    """Return lines on few images in batches of 32, for 'quick'."""
    return tuple(replace(r, points=points, training=replace(r.training or ADAM, batch_size=32)) for r in rows)


def pruned(label: str, network: str, sparsity: float, *, child: int = 3, **options: object) -> Row:
    """Return a line of Figure 3: a parent of 8 epochs, eight children of a sparsity."""
    given = {"pruning": "random", "sparsity": sparsity, "parent_epochs": 8, **CHILDREN, **options}
    return Row(label=label, method="prune_and_tune", options=given, training=ADAM, epochs=8 + 8 * child, network=network)  # fmt: skip


SPARSITIES = (0.1, 0.3, 0.5, 0.7, 0.9)


def ablations(
    networks: tuple[str, ...], sizes: int, large: str, medium: str, sparsities: tuple[float, ...] = SPARSITIES
) -> tuple[Row, ...]:
    """Return the four panels of Figure 3."""
    by_sparsity = tuple(
        pruned(f"a: sparsity {s}, {child} epochs", network, s, child=child, scope="global")
        for network in networks
        for s in sparsities
        for child in (1, 3)
    )
    by_unit = tuple(
        pruned(f"b: {unit}, sparsity {s}", large, s, unit=unit) for unit in ("connection", "neuron") for s in sparsities
    )
    pairs = tuple(
        Row(label=f"c: {short} + {tuned}", method="prune_and_tune", training=SGD, epochs=26, network=large,
            options={"members": 2, "parent_epochs": 16, "pruning": pruning, **tuning})
        for short, pruning in (("R", "random"), ("AR", "anti_random"))
        for tuned, tuning in (("FT", {"tuning": "constant", "tuning_lr": 0.01}), ("1C", {"tuning": "one_cycle"}))
    )  # fmt: skip
    growing = Row(label=f"d: up to {sizes} members", method="prune_and_tune", training=ADAM, epochs=8 + sizes, network=medium,
                  options={"members": sizes, "parent_epochs": 8, "pruning": "random", "tuning": "constant"})  # fmt: skip
    return (*by_sparsity, *by_unit, *pairs, growing)


LARGE = (
    "Independent",
    "MC Dropout",
    "TreeNet",
    "SSE",
    "FGE",
    "PAT (AR + 1C)",
    "BatchEnsemble",
    "MIMO",
    "EDST",
    "DST",
    "Dense",
)
LARGE_MEASURES = ("accuracy", "nll", "ece", "c_accuracy", "c_nll", "c_ece")
LARGE_FIGURES = {
    "cifar10": """96.0 0.159 0.023 76.1 1.050 0.153
        95.9 0.160 0.024 68.8 1.270 0.166
        95.9 0.258 0.018 75.5 0.969 0.137
        96.3 0.131 0.015 76.0 1.060 0.121
        96.3 0.126 0.015 75.4 1.157 0.122
        96.48 0.113 0.005 76.23 0.972 0.081
        96.2 0.143 0.021 77.5 1.020 0.129
        96.4 0.123 0.010 76.6 0.927 0.112
        96.4 0.127 0.012 76.7 0.880 0.100
        96.4 0.124 0.011 77.6 0.840 0.090
        96.6 0.114 0.010 77.9 0.810 0.087""",
    "cifar100": """79.8 0.875 0.086 51.4 2.700 0.239
        79.6 0.830 0.050 42.6 2.900 0.202
        80.8 0.777 0.047 53.5 2.295 0.176
        82.1 0.661 0.040 52.2 2.595 0.145
        82.3 0.653 0.038 51.7 2.638 0.137
        82.67 0.634 0.013 52.70 2.487 0.131
        81.5 0.740 0.056 54.1 2.490 0.191
        82.0 0.690 0.022 53.7 2.284 0.129
        82.6 0.653 0.036 52.7 2.410 0.170
        82.8 0.633 0.026 54.3 2.280 0.140
        82.7 0.666 0.021 54.1 2.270 0.138""",
}


def large_budget(data: str) -> tuple[Row, ...]:
    """Return the lines of Table 2 on a data set: WideResNet-28-10, 200 epochs and more."""
    found = figures(LARGE, LARGE_MEASURES, LARGE_FIGURES[data])
    methods: tuple[tuple[str, dict[str, Any], int], ...] = (
        ("single", {}, 200),
        ("mc_dropout", {"rate": None}, 200),
        ("treenet", {"members": 3, "start": "layer3"}, 250),
        ("snapshot", {"members": 5}, 200),
        ("fge", {"members": 12, "cycle": 4, "starts": 2}, 200),
        ("prune_and_tune", {"members": 6, "tuning": "one_cycle"}, 200),
        ("batch_ensemble", {"members": 4}, 250),
        ("mimo", {"members": 3, "batch_repetition": 4}, 250),
        ("edst", {"members": 7, "sparsity": 0.9, "explore_epochs": 150}, 850),
        ("dst", {"members": 3, "sparsity": 0.8}, 750),
        ("deep_ensemble", {"members": 4}, 800),
    )
    return tuple(
        Row(label=label, method=method, options=options, training=SGD, epochs=epochs, augmented=True, data=data,
            network="wide_resnet_dropout" if label == "MC Dropout" else "wide_resnet", paper=found[label])
        for label, (method, options, epochs) in zip(LARGE, methods)
    )  # fmt: skip


PROTOCOLS = (
    Protocol(
        id="pat-t1",
        title="Accuracy after 16 epochs",
        measures=("accuracy",),
        quick=Scale(
            rows=tuple(
                row
                for n, points in (("lenet_s", 5_000), ("lenet_m", 5_000), ("lenet_l", 1_000))
                for row in small_budget(n, points=points, batch_size=32)
            ),
            epochs=16,
            hours=1.5,
        ),
        cpu=Scale(
            rows=tuple(r for n in ("lenet_s", "lenet_m", "lenet_l") for r in small_budget(n)), epochs=16, hours=14
        ),
        paper=Scale(
            rows=tuple(
                row
                for n in ("lenet_l", "resnet18")
                for data in ("cifar10", "cifar100")
                for row in small_budget(n, data)
            ),
            epochs=16,
            seeds=10,
            hours=60,
            gpu=True,
        ),
        claims=(
            Claim(better="PAT (AR)", worse="Independent"),
            Claim(better="PAT (R)", worse="Independent"),
            Claim(better="PAT (AR)", worse="Bagged"),
            Claim(better="PAT (AR)", worse="Dropout"),
            Claim(better="PAT (AR)", worse="PAT (R)"),
        ),
        why="expected: pruned children are better than one network, dropout and bagging, and anti-random ones at least as good as "
        "random ones; the first three hold, as bagged members share the same epochs and children inherit a trained parent; "
        "between the two prunings the paper has at most a quarter of a percent, as small as the noise here; "
        "LeNet-S and LeNet-M have 5,000 images, LeNet-L 1,000; DenseNet-121 is not in the zoo",
    ),
    Protocol(
        id="pat-t2",
        title="WideResNet-28-10, 200 epochs and more",
        measures=LARGE_MEASURES,
        cpu=None,
        paper=Scale(
            rows=(*large_budget("cifar10"), *large_budget("cifar100")),
            epochs=200,
            seeds=10,
            hours=2000,
            gpu=True,
            corruptions=ALL_CORRUPTIONS,
        ),
        claims=(Claim(better="PAT (AR + 1C)", worse="Independent"), Claim(better="PAT (AR + 1C)", worse="SSE")),
    ),
    Protocol(
        id="pat-f1",
        title="Loss landscapes of children",
        measures=("barrier", "surface", "accuracy"),
        quick=Scale(rows=few(children(), 2_000), epochs=16, hours=0.1, test_rows=1_000),
        cpu=Scale(rows=children(), epochs=16, seeds=1, hours=1),
        claims=(Claim(better="PAT (AR + 1C)", measure="barrier"),),
        why="expected: the loss rises between children that were tuned with one cycle; it does not rise here, as each has one epoch of few "
        "steps and stays in the parent's basin; a drawing in the paper; ours has the rise of the loss between two children, and the losses in the plane of three",
    ),
    Protocol(id="pat-f2", title="Anti-random sampling", why="a diagram; the masks are `pruning='anti_random'`"),
    Protocol(
        id="pat-f3",
        title="Sparsity, units, masks and schedules, ensemble size",
        measures=("accuracy", "curve"),
        quick=Scale(
            rows=few(ablations(("lenet_s",), 16, "lenet_s", "lenet_s", (0.1, 0.5, 0.9)), 1_000),
            epochs=8,
            hours=0.5,
            test_rows=5_000,
        ),
        cpu=Scale(rows=ablations(("lenet_s",), 32, "lenet_s", "lenet_s"), epochs=8, seeds=1, hours=12),
        paper=Scale(
            rows=ablations(("lenet_s", "lenet_m", "lenet_l"), 128, "lenet_l", "lenet_m"),
            epochs=8,
            seeds=10,
            hours=100,
            gpu=True,
        ),
        claims=(
            Claim(better="c: AR + 1C", worse="c: R + FT"),
            Claim(better="a: sparsity 0.5, 3 epochs", worse="a: sparsity 0.9, 3 epochs"),
            Claim(better="b: connection, sparsity 0.9", worse="b: neuron, sparsity 0.9"),
        ),
    ),
)
