"""Pictures of one method each: they fill small frames that stand side by side on the page.

Every function draws on empty axes from a method's evaluation or history.
"""

from typing import TYPE_CHECKING, Any

from choral.base.text import short
from choral.report.markup import label
from choral.report.theme import Theme

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def reliability(axes: "Axes", theme: Theme, found: dict[str, Any]) -> None:
    """Draw accuracy by confidence; what a bin is too sure of, or not sure enough of, has a color of its own."""
    from matplotlib.colors import to_rgba

    table = found["reliability"]
    total = sum(table["counts"])
    bins = [b for b in zip(table["edges"], table["counts"], table["confidence"], table["accuracy"]) if b[1]]
    left, counts, sure, right = zip(*bins)
    width = 0.9 * (table["edges"][1] - table["edges"][0])
    shades = [to_rgba(theme["accent"], 0.35 + 0.65 * min(1.0, 4 * c / total)) for c in counts]  # few rows: pale
    lower = [min(s, r) for s, r in zip(sure, right)]
    axes.bar(left, lower, width, align="edge", color=shades)
    for name, gaps in (
        ("outside", [max(s - r, 0) for s, r in zip(sure, right)]),
        ("s2", [max(r - s, 0) for s, r in zip(sure, right)]),
    ):
        axes.bar(left, gaps, width, bottom=lower, align="edge", color=theme[name], alpha=0.75)
    axes.plot([0, 1], [0, 1], color=theme["muted"], linewidth=1, dashes=(3, 2))
    _unit_square(axes)
    axes.set_xlabel("confidence")


def _unit_square(axes: "Axes") -> None:
    axes.set(xlim=(0, 1), ylim=(0, 1), xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
    axes.set_xticklabels(["0", ".5", "1"])
    axes.set_yticklabels(["0", ".5", "1"])


def confidence(axes: "Axes", theme: Theme, found: dict[str, Any]) -> None:
    """Draw the shares of rows by confidence (or predicted deviation), familiar above the line and strange below."""
    shown = found["histograms"]
    edges = shown["edges"]
    axes.stairs(shown["in"], edges, fill=True, color=theme["accent"])
    if "out" in shown:
        axes.stairs([-v for v in shown["out"]], edges, fill=True, color=theme["outside"])
    axes.axhline(0, color=theme["muted"], linewidth=0.8)
    top = max([*shown["in"], *shown.get("out", [])])
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(-1.08 * top if "out" in shown else 0, 1.08 * top)
    if shown["of"] == "confidence":
        axes.set_xticks([0, 0.5, 1], ["0", ".5", "1"])
    axes.set_yticks([])
    axes.set_xlabel(shown["of"])


def diversity(axes: "Axes", theme: Theme, found: dict[str, Any]) -> None:
    """Draw the matrix between members: the stronger the color, the larger the value."""
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import to_rgba

    matrix = found["diversity"]["matrix"]
    size = len(matrix)
    cells = [(i, j, v) for i, row in enumerate(matrix) for j, v in enumerate(row) if i != j]
    scale = max(abs(v) for _, _, v in cells) or 1.0
    corners = [
        [(j, y), (j + 0.94, y), (j + 0.94, y + 0.94), (j, y + 0.94)] for i, j, _ in cells for y in [size - 1 - i]
    ]
    shades = [to_rgba(theme["accent" if v >= 0 else "outside"], 0.06 + 0.94 * abs(v) / scale) for _, _, v in cells]
    axes.add_collection(PolyCollection(corners, facecolors=shades, edgecolors="none"))
    axes.set(xlim=(-0.03, size), ylim=(-0.03, size), xticks=[], yticks=[])
    axes.set_aspect("equal")
    axes.spines[:].set_visible(False)
    total = found["members"]
    axes.set_xlabel(f"{size} members" if size == total else f"{size} of {total} members")


def rate(axes: "Axes", theme: Theme, history: dict[str, Any]) -> None:
    """Draw the learning rate along one branch of the plan, and where members are kept."""
    from matplotlib.ticker import MaxNLocator

    for segment in history["rate"]:
        epochs, rates = zip(*segment)
        axes.plot(epochs, rates, color=theme["accent"])
    highest = max((r for s in history["rate"] for _, r in s), default=1.0)
    kept = sorted(set(history["collected"]))
    axes.plot(kept, [-0.09 * highest] * len(kept), "^", color=theme["outside"], markersize=4.5, clip_on=False)
    axes.set_ylim(-0.16 * highest, 1.08 * highest)
    axes.set_yticks([0, highest], ["0", f"{highest:.3g}"])
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set_xlabel("epoch")


def loss(axes: "Axes", theme: Theme, history: dict[str, Any]) -> None:
    """Draw the training loss over all epochs spent, on a logarithmic axis; each phase is a line, validation nll a broken one."""
    from matplotlib.ticker import MaxNLocator, NullFormatter, NullLocator

    segments = [[p for p in s if p[1] > 0] for s in history["loss"]]
    for segment in segments:
        if segment:
            epochs, losses = zip(*segment)
            axes.plot(epochs, losses, color=theme["s2"], marker="." if len(segment) < 4 else None)
    watched = history.get("validation", []) if history.get("measure") == "nll" else []
    for segment in [[p for p in s if p[1] > 0] for s in watched]:
        if segment:
            axes.plot(*zip(*segment), color=theme["s1"], linestyle="--", marker="." if len(segment) < 4 else None)
            segments.append(segment)
    values = [v for s in segments for _, v in s]
    if values:
        axes.set_yscale("log")
        ends = [min(values), max(values)] if max(values) > 1.3 * min(values) else [max(values)]
        axes.set_yticks(ends, [f"{v:.2g}" for v in ends])
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set_xlabel("epochs spent")


def intervals(axes: "Axes", theme: Theme, found: dict[str, Any]) -> None:
    """Draw predicted intervals of some rows in order of their means, and the targets: filled inside, open outside."""
    rows = found["intervals"]["rows"]
    for i, row in enumerate(rows):
        axes.plot([i, i], [row["low"], row["high"]], color=theme["accent"], alpha=0.45, linewidth=2)
    inside = [row["low"] <= row["target"] <= row["high"] for row in rows]
    for held, color in ((True, theme["ink"]), (False, theme["outside"])):
        places = [i for i, h in enumerate(inside) if h is held]
        axes.plot(places, [rows[i]["target"] for i in places], "o", color=color, markersize=2.6)
    axes.plot(range(len(rows)), [row["mean"] for row in rows], color=theme["accent"], linewidth=1.2)
    axes.set_xticks([])
    axes.set_xlabel("rows by predicted mean")


def rarest(told: dict[str, Any]) -> int | None:
    """Return the class with a curve that has fewest rows; None if none has one."""
    known = [i for i, curve in enumerate(told.get("curves") or ()) if curve]
    return min(known, key=lambda i: told["counts"][i]) if known else None


def precision(axes: "Axes", theme: Theme, found: dict[str, Any]) -> None:
    """Draw precision by recall of each class, the rarest strongest, and the share of its rows, which chance would reach."""
    told = found["classes"]
    main = rarest(told)
    assert main is not None
    for i, curve in enumerate(told["curves"]):
        if curve and i != main:
            axes.step(*zip(*curve), where="pre", color=theme["muted"], linewidth=0.8, alpha=0.6)
    axes.step(*zip(*told["curves"][main]), where="pre", color=theme["accent"], linewidth=1.8)
    share = told["counts"][main] / max(sum(told["counts"]), 1)
    axes.plot([0, 1], [share, share], color=theme["muted"], linewidth=1, dashes=(3, 2))
    _unit_square(axes)
    axes.set_xlabel("recall")


BARS = 10  # columns of a picture of importance, at most


def importance(axes: "Axes", theme: Theme, found: dict[str, Any]) -> None:
    """Draw how much worse a measure gets without each column; lines reach from the lowest to the highest member."""
    rows, measure = found["importance"]["columns"][:BARS], found["importance"]["measure"]
    places = [-i for i in range(len(rows))]
    axes.barh(places, [r["worse"][measure] for r in rows], height=0.7, color=theme["accent"], alpha=0.55)
    for place, row in zip(places, rows):
        alone = row["members"][measure]
        axes.plot([min(alone), max(alone)], [place, place], color=theme["ink"], linewidth=1.2)
    axes.axvline(0, color=theme["muted"], linewidth=0.8)
    axes.set_yticks(places, [short(r["column"], most=18) for r in rows])
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"{label(measure)} worse by")


def dependence(axes: "Axes", theme: Theme, curve: dict[str, Any]) -> None:
    """Draw the mean prediction by the value of a column, each member as a pale line behind it.

    Of several outputs the one that moves most is drawn, of two the second.
    """
    from matplotlib.ticker import MaxNLocator

    output = output_of(curve)
    places = curve["at"] or list(range(len(curve["values"])))
    marker = None if curve["at"] and len(places) > 8 else "o"
    for member in curve["members"]:
        axes.plot(places, [row[output] for row in member], color=theme["accent"], alpha=0.3, linewidth=0.8)
    means = [row[output] for row in curve["mean"]]
    axes.plot(places, means, color=theme["accent"], linewidth=1.8, marker=marker, markersize=3)
    if curve["at"] is None or _words(curve["values"]):
        shown = range(0, len(places), -(-len(places) // 4))
        axes.set_xticks([places[i] for i in shown], [short(curve["values"][i], most=10) for i in shown])
        axes.margins(x=0.16)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(3))
    axes.yaxis.set_major_locator(MaxNLocator(4))


def output_of(curve: dict[str, Any]) -> int:
    """Return the output that is drawn."""
    count = len(curve["outputs"])
    if count <= 2:
        return count - 1
    moved = [[row[i] for row in curve["mean"]] for i in range(count)]
    return max(range(count), key=lambda i: max(moved[i]) - min(moved[i]))


def _words(values: list[str]) -> bool:
    """Return whether values are no numbers: ordered words, or dates."""
    try:
        [float(v) for v in values]
    except ValueError:
        return True
    return False
