"""Figures of a report: those of all methods at once, and panels of one method each.

Pictures of all methods at once: cost against loss, curves, and the map of function space.

A line or point belongs to the group "series:PLACE" of its method, so that the page can bring one method forward in all of them. A
method's color follows its place in the order of all methods, so it is the same in every picture.
"""

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree.ElementTree import Element

from choral.base.text import short
from choral.report import panels
from choral.report.content import COSTS, SCORES, Content
from choral.report.markup import label as named
from choral.report.reading import is_number
from choral.report.theme import SERIES, Draw, Theme, inline_svg, standing_files

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Curves = dict[str, list[tuple[float, float]]]  # method -> points
Points = dict[str, tuple[float, float]]
WIDE = (360.0, 250.0)
PLACES = (  # of a name around its point, in points, the best first
    (7, 0, "left", "center"),
    (-7, 0, "right", "center"),
    (0, 7, "center", "bottom"),
    (0, -7, "center", "top"),
    (5, 4, "left", "bottom"),
    (5, -4, "left", "top"),
    (-5, 4, "right", "bottom"),
    (-5, -4, "right", "top"),
)


def one(figure: "Figure", theme: Theme, *, xlabel: str, ylabel: str, names: Sequence[str] = ()) -> "Axes":
    """Return the axes of a picture with fixed margins; if it stands alone, it has a title and room for a legend."""
    width, height = figure.get_size_inches() * 72
    room = 118 if theme.alone and names else 0
    top = 26 if theme.alone else 8
    axes = figure.add_axes((46 / width, 38 / height, (width - 58 - room) / width, (height - 38 - top) / height))
    axes.set(xlabel=xlabel, ylabel="")
    if theme.alone:
        axes.set_title(ylabel, loc="left", color=theme["ink"])
    return axes


def _worst_first(order: Sequence[str], shown: Collection[str]) -> list[tuple[int, str]]:
    """Return the shown methods with their places in the order, the best last, so that it is drawn on top."""
    return [(i, m) for i, m in reversed(list(enumerate(order))) if m in shown]


def _legend(axes: "Axes", theme: Theme, order: Sequence[str], shown: Collection[str]) -> None:
    from matplotlib.lines import Line2D

    if theme.alone:
        best_first = _worst_first(order, shown)[::-1]
        own = [(i, m) for i, m in best_first if i < SERIES]
        others = [m for i, m in best_first if i >= SERIES]
        handles = [Line2D([], [], color=theme.series(i), label=m) for i, m in own]
        if others:
            text = others[0] if len(others) == 1 else f"{len(others)} others"
            handles.append(Line2D([], [], color=theme["other"], label=text))
        axes.legend(
            handles=handles, loc="upper left", bbox_to_anchor=(1.02, 1.02), frameon=False, labelcolor=theme["ink"]
        )


def pareto(
    rows: Points, order: Sequence[str], on_front: Sequence[str], *, xlabel: str, score: str = "NLL"
) -> Callable[["Figure", Theme], None]:
    """Return the picture of cost against loss; methods that no other beats in both are joined and ringed.

    Args:
        rows: method -> (cost, loss).
        order: all methods, best first.
        on_front: the methods on the front.
        xlabel: what the cost is.
        score: what the loss is called.
    """

    def draw(figure: "Figure", theme: Theme) -> None:
        from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullLocator

        axes = one(figure, theme, xlabel=xlabel, ylabel=f"{score} (lower is better)")
        costs = [c for c, _ in rows.values()]
        wide = min(costs) > 0 and max(costs) / min(costs) > 3
        if wide:
            axes.set_xscale("log")
        joined = sorted(rows[m] for m in on_front)
        steps = [(b[0], a[1]) for a, b in itertools.pairwise(joined)]
        path = [p for pair in zip(joined, [*steps, joined[-1]]) for p in pair] if joined else []
        axes.plot([x for x, _ in path], [y for _, y in path], color=theme["muted"], linewidth=1, dashes=(3, 2))
        for i, method in _worst_first(order, rows):
            cost, loss = rows[method]
            ring = theme["ink"] if method in on_front else theme["surface"]
            (point,) = axes.plot(cost, loss, "o", color=theme.series(i), markersize=8, markeredgecolor=ring)
            point.set_gid(f"series:{i}")
        axes.margins(0.12)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        if wide:
            low, high = min(costs), max(costs)
            decades = math.log10(high / low)
            parts = (1.0,) if decades > 3 else (1.0, 3.0) if decades > 1.2 else (1.0, 2.0, 5.0)
            axes.xaxis.set_major_locator(LogLocator(subs=parts))
            axes.xaxis.set_minor_locator(NullLocator())
        else:
            axes.xaxis.set_major_locator(MaxNLocator(4))
        first = [i for i, m in enumerate(order) if m in on_front]
        served = [*first, *(i for i, m in enumerate(order) if m in rows and m not in on_front)]
        _name_points(axes, theme, {i: (order[i], rows[order[i]]) for i in served}, path)

    return draw


def _name_points(
    axes: "Axes",
    theme: Theme,
    points: dict[int, tuple[str, tuple[float, float]]],
    path: Sequence[tuple[float, float]],
) -> None:
    """Write names beside points where there is room for them: not over points, the path or other names.

    Args:
        axes: where the points are drawn.
        theme: colors.
        points: series -> name and place, those named first in front.
        path: a line that names avoid.
    """
    from matplotlib.transforms import Bbox

    axes.get_xlim(), axes.get_ylim()  # settles the limits
    frame = axes.get_window_extent()
    taken = []
    for _, place in points.values():
        x, y = axes.transData.transform(place)
        taken.append(Bbox([[x - 4, y - 4], [x + 4, y + 4]]))
    for start, end in itertools.pairwise(axes.transData.transform(path) if path else ()):
        for part in range(41):
            x, y = start + (end - start) * part / 40
            taken.append(Bbox([[x - 1, y - 1], [x + 1, y + 1]]))
    for series, (name, place) in points.items():
        for dx, dy, ha, va in PLACES:
            label = axes.annotate(
                short(name), place, (dx, dy), textcoords="offset points", ha=ha, va=va, fontsize=8, color=theme["ink"]
            )
            box = label.get_window_extent()
            inside = frame.x0 <= box.x0 and box.x1 <= frame.x1 + 8 and frame.y0 <= box.y0 and box.y1 <= frame.y1 + 4
            if inside and not any(box.overlaps(other) for other in taken):
                taken.append(box)
                label.set_gid(f"series:{series}")
                break
            label.remove()


def curves(
    lines: Curves,
    order: Sequence[str],
    *,
    xlabel: str,
    ylabel: str,
    diagonal: bool = False,
    log: bool = False,
    whole: bool = False,
    from_zero: bool = False,
) -> Callable[["Figure", Theme], None]:
    """Return the picture of one line for each method.

    Args:
        lines: method -> points.
        order: all methods, best first.
        xlabel: below the axis.
        ylabel: above the axis.
        diagonal: draw the line y = x.
        log: logarithmic x.
        whole: only whole numbers on x.
        from_zero: y begins at 0.
    """

    def draw(figure: "Figure", theme: Theme) -> None:
        from matplotlib.ticker import EngFormatter, MaxNLocator, NullLocator

        axes = one(figure, theme, xlabel=xlabel, ylabel=ylabel, names=list(lines))
        if diagonal:
            axes.plot([0, 1], [0, 1], color=theme["muted"], linewidth=1, dashes=(3, 2))
        for i, method in _worst_first(order, lines):
            points = lines[method]
            x, y = zip(*points)
            width = 1.8 if i < SERIES else 1.1
            marker = "o" if len(points) < 25 else None
            (line,) = axes.plot(x, y, color=theme.series(i), linewidth=width, marker=marker, markersize=3.2)
            line.set_gid(f"series:{i}")
        if log:
            axes.set_xscale("log")
            ticks = [v for v in (1, 2, 4, 8, 16, 32, 64, 128, 256) if v <= max(x for p in lines.values() for x, _ in p)]
            axes.set_xticks(ticks, [str(t) for t in ticks])
            axes.xaxis.set_minor_locator(NullLocator())
        elif whole:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        values = [abs(y) for p in lines.values() for _, y in p]
        if max(values) >= 1e4:
            axes.yaxis.set_major_formatter(EngFormatter(sep=""))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        if from_zero:
            axes.set_ylim(0, 1.08 * max(values) or 1)
        _legend(axes, theme, order, lines)

    return draw


def function_map(
    points: dict[str, list[list[float]]],
    chains: dict[str, list[list[int]]],
    order: Sequence[str],
    *,
    xlabel: str,
    ylabel: str,
) -> Callable[["Figure", Theme], None]:
    """Return the map of members: a point for each, a path where members follow each other in one training.

    Args:
        points: method -> places of its members.
        chains: method -> paths, as lists of members.
        order: all methods, best first.
        xlabel: of the first axis.
        ylabel: of the second axis.
    """

    def draw(figure: "Figure", theme: Theme) -> None:
        axes = one(figure, theme, xlabel=xlabel, ylabel=ylabel, names=list(points))
        for i, method in _worst_first(order, points):
            places = points[method]
            for path in chains.get(method, []):
                xs, ys = [places[j][0] for j in path], [places[j][1] for j in path]
                (line,) = axes.plot(xs, ys, color=theme.series(i), linewidth=1, alpha=0.7)
                line.set_gid(f"series:{i}")
                (start,) = axes.plot(xs[0], ys[0], "s", color=theme.series(i), markersize=6)
                start.set_gid(f"series:{i}")
            (dots,) = axes.plot(
                *zip(*places), "o", color=theme.series(i), markersize=5, markeredgecolor=theme["surface"]
            )
            dots.set_gid(f"series:{i}")
        axes.set(xticks=[], yticks=[])
        axes.margins(0.07)
        _legend(axes, theme, order, points)

    return draw


def series_of(rows: Sequence[dict[str, Any]], x: str, y: str) -> list[tuple[float, float]]:
    """Return the points of a curve from a list of dicts.

    >>> series_of([{"members": 1, "nll": 0.5}, {"members": 2, "nll": 0.4}], "members", "nll")
    [(1, 0.5), (2, 0.4)]
    """
    return [(row[x], row[y]) for row in rows]


_CURVES = 6  # columns whose dependence is drawn, at most
PanelDraw = Callable[["Axes", Theme, dict[str, Any]], None]


@dataclass(frozen=True)
class Picture:
    """A picture of all methods.

    Attributes:
        name: of its files.
        section: where on the page it belongs.
        title: what it shows.
        draw: draws it.
        size: width and height in points.
    """

    name: str
    section: str
    title: str
    draw: Draw
    size: tuple[float, float] = WIDE

    def inline(self, methods: Sequence[str]) -> Element:
        """Return the SVG element for the page; methods are all, best first."""
        return inline_svg(self.draw, self.size, name=self.name, title=self.title, methods=methods)

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Yield the files of the picture: name and bytes; they stand alone, with a legend."""
        size = (self.size[0] + 118, self.size[1])
        yield from _files(self.name, self.draw, size)


@dataclass(frozen=True)
class Panels:
    """The same small picture for each method.

    Attributes:
        name: of the files, and the place on the page.
        draw: draws one on axes.
        data: method -> what it draws, best first.
        size: width and height of one in points.
        left: room for labels at the left.
    """

    name: str
    draw: PanelDraw
    data: dict[str, dict[str, Any]]
    size: tuple[float, float]
    left: float = 22

    def _on(self, figure: "Figure", theme: Theme, method: str, x: float, y: float) -> None:
        """Draw one with its lower left corner at (x, y) points."""
        width, height = figure.get_size_inches() * 72
        top = 18 if theme.alone else 6
        box = (x + self.left, y + 32, self.size[0] - self.left - 8, self.size[1] - 32 - top)
        axes = figure.add_axes((box[0] / width, box[1] / height, box[2] / width, box[3] / height))
        self.draw(axes, theme, self.data[method])
        if theme.alone:
            axes.set_title(short(method, most=30), fontsize=9)

    def inline(self, method: str) -> Element:
        """Return the SVG element of one method for the page."""
        name = f"{self.name}-{list(self.data).index(method)}"
        draw: Draw = lambda figure, theme: self._on(figure, theme, method, 0, 0)  # noqa: E731  # typed, as a def could not be in one line
        return inline_svg(draw, self.size, name=name, title=f"{self.name} of {short(method)}")

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Yield the files of one picture that holds the frames of all methods."""
        columns = min(5, len(self.data))
        rows = math.ceil(len(self.data) / columns)
        size = (columns * self.size[0], rows * (self.size[1] + 8))

        def draw(figure: "Figure", theme: Theme) -> None:
            for i, method in enumerate(self.data):
                across, down = i % columns, i // columns
                self._on(figure, theme, method, across * self.size[0], size[1] - (down + 1) * (self.size[1] + 8))

        yield from _files(self.name, draw, size)


def _files(name: str, draw: Draw, size: tuple[float, float]) -> Iterator[tuple[str, bytes]]:
    svg, png = standing_files(draw, size)
    yield f"{name}.svg", svg.encode()
    yield f"{name}.png", png


def pictures(content: Content) -> list[Picture]:
    """Return the pictures of all methods that the content has numbers for."""
    return [*_costs(content), *_sizes(content), *_shifts(content), *_maps(content), *_histories(content)]


def _costs(content: Content) -> Iterator[Picture]:
    for cost, label in COSTS.items():
        rows = {m: (content.row(m).get(cost), content.row(m).get(content.score)) for m in content.methods}
        usable = {m: (float(c), float(n)) for m, (c, n) in rows.items() if is_number(c) and is_number(n)}
        if len(usable) > 1:
            front = [e["method"] for e in content.results["ranking"] if cost in e["pareto"]]
            yield Picture(
                f"pareto-{cost}",
                "cost",
                f"{named(content.score)} against {label}",
                pareto(usable, content.methods, front, xlabel=f"{label} (FLOPs)", score=named(content.score)),
            )


def _sizes(content: Content) -> Iterator[Picture]:
    grown = {m: content.evaluation(m)["sizes"] for m in content.evaluated("sizes")}
    if not any(len(s) > 1 for s in grown.values()):
        return
    largest = max(s[-1]["members"] for s in grown.values())
    for measure in ("accuracy", "rmse", *SCORES):
        lines = {m: series_of(s, "members", measure) for m, s in grown.items() if measure in s[0]}
        if lines:
            draw = curves(
                lines, content.methods, xlabel="members used", ylabel=named(measure), log=largest > 8, whole=True
            )
            yield Picture(f"size-{measure}", "size", f"{named(measure)} as members are added", draw)


def _shifts(content: Content) -> Iterator[Picture]:
    shifted = content.evaluated("corruptions")
    for measure in ("accuracy", "nll", "ece") if shifted else ():
        lines = {}
        for m in shifted:
            found = content.evaluation(m)
            clean = [(0.0, found["scores"][measure])] if is_number(found["scores"].get(measure)) else []
            lines[m] = [*clean, *series_of(found["corruptions"]["levels"], "severity", measure)]
        draw = curves(lines, content.methods, xlabel="severity (0 = clean)", ylabel=named(measure), whole=True)
        yield Picture(f"corruption-{measure}", "corruption", f"{named(measure)} under corruption", draw)
    covered = content.evaluated("coverage")
    if covered:
        lines = {m: series_of(content.evaluation(m)["coverage"], "level", "coverage") for m in covered}
        draw = curves(lines, content.methods, xlabel="promised", ylabel="share of targets inside", diagonal=True)
        yield Picture("coverage", "calibration", "coverage of central intervals", draw)


def _maps(content: Content) -> Iterator[Picture]:
    chains = {m: content.evaluation(m)["map"]["chains"] for m in content.evaluated("map")}
    found = content.results.get("map")
    if found is None and len(chains) == 1:
        (method,) = chains
        own = content.evaluation(method)["map"]
        found = {"pca": {"points": {method: own["points"]["members"]}, "explained": own["explained"]}}
    size = (WIDE[0], 300.0)
    if found and sum(len(p) for p in found["pca"]["points"].values()) > 2:
        points, shares = found["pca"]["points"], found["pca"]["explained"]
        chains = _within(chains, points)
        labels = {
            "xlabel": f"{shares[0]:.0%} of all variance",
            "ylabel": f"principal components (second: {shares[1]:.0%})",
        }
        yield Picture(
            "map-pca",
            "map",
            "members by what they predict (PCA)",
            function_map(points, chains, content.methods, **labels),
            size,
        )
    if found and found.get("tsne"):
        points = found["tsne"]["points"]
        draw = function_map(
            points, _within(chains, points), content.methods, xlabel="", ylabel="t-SNE: near means alike"
        )
        yield Picture("map-tsne", "map", "members by what they predict (t-SNE)", draw, size)


def _within(chains: dict[str, list[list[int]]], points: dict[str, list[list[float]]]) -> dict[str, list[list[int]]]:
    """Return the paths whose members are all on a map."""
    return {m: [p for p in paths if max(p) < len(points.get(m, ()))] for m, paths in chains.items()}


def _histories(content: Content) -> Iterator[Picture]:
    kept = {m: content.results["history"][m] for m in content.methods if m in content.results["history"]}
    labels = {
        "flops": "operations of one epoch (FLOPs)",
        "sparsity": "share of weights that are gone",
        "working": "share of operations still at work",
    }
    for name, label in labels.items():
        lines = {m: [(e, v) for e, v in h[name]] for m, h in kept.items() if h[name]}
        if lines:
            draw = curves(lines, content.methods, xlabel="epochs spent", ylabel=label, whole=True, from_zero=True)
            yield Picture(f"training-{name}", "training", label, draw)


def all_panels(content: Content) -> list[Panels]:
    """Return the frames of one method each that the content has numbers for."""
    square = (168.0, 172.0)
    found = [
        Panels("reliability", panels.reliability, _evaluations(content, "reliability"), square),
        Panels("confidence", panels.confidence, _evaluations(content, "histograms"), (168.0, 138.0), left=8),
        Panels("diversity", panels.diversity, _diverse(content), square, left=8),
        Panels("intervals", panels.intervals, _evaluations(content, "intervals"), (330.0, 210.0), left=40),
    ]
    told = {m: e for m, e in _evaluations(content, "classes").items() if panels.rarest(e["classes"]) is not None}
    found.append(Panels("precision", panels.precision, told, square))
    weighed = _evaluations(content, "importance")
    rows = max((len(e["importance"]["columns"]) for e in weighed.values()), default=0)
    tall = 50.0 + 17 * min(rows, panels.BARS)
    found.append(Panels("importance", panels.importance, weighed, (330.0, tall), left=112))
    for i in range(_CURVES):
        curves = {m: e["importance"]["dependence"][i:] for m, e in weighed.items()}
        shown = {m: c[0] for m, c in curves.items() if c}
        found.append(Panels(f"dependence-{i}", panels.dependence, shown, (220.0, 150.0), left=44))
    kept = {m: content.results["history"][m] for m in content.methods if m in content.results["history"]}
    found.append(Panels("rate", panels.rate, {m: h for m, h in kept.items() if h["rate"]}, (250.0, 120.0), left=40))
    found.append(Panels("loss", panels.loss, {m: h for m, h in kept.items() if h["loss"]}, (250.0, 120.0), left=40))
    return [p for p in found if p.data]


def _evaluations(content: Content, part: str) -> dict[str, dict[str, Any]]:
    return {m: content.evaluation(m) for m in content.evaluated(part)}


def _diverse(content: Content) -> dict[str, dict[str, Any]]:
    found = _evaluations(content, "diversity")
    return {m: e for m, e in found.items() if len(e["diversity"]["matrix"]) > 1}
