"""Which pictures a report has: those of all methods, and frames of one method each, from the content alone."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree.ElementTree import Element

from choral.base.text import short
from choral.report import panels
from choral.report.content import COSTS, SCORES, Content
from choral.report.overlays import WIDE, curves, function_map, pareto, series_of
from choral.report.reading import is_number
from choral.report.tables import label as named
from choral.report.theme import Draw, Theme, inline_svg, standing_files

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
