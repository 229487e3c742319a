"""Pictures of all methods at once: cost against loss, curves, and the map of function space.

A line or point belongs to the group "series:PLACE" of its method, so that the page can bring one method forward in all of them. A
method's color follows its place in the order of all methods, so it is the same in every picture.
"""

import itertools
import math
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from choral.base.text import short
from choral.report.theme import SERIES, Theme

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
