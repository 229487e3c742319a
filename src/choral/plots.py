"""Plots of predictions and evaluations as matplotlib axes; pip install 'choral[plots]'.

All functions share their arguments: `found` is a prediction (`ensemble.predict(x)`), an array, or the part of an evaluation for the plot;
`y` are the targets; `ax` are axes to draw on, by default new ones; `unit` is that of the target; other keywords are passed to the line,
such as label and color. All return the axes. Reports use these functions.

>>> import numpy as np
>>> probs = np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]])
>>> [cell.get_text() for cell in confusion(probs, np.array([0, 1, 1])).texts]
['1', '1', '1']
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import torch

from choral.base.errors import needed
from choral.base.text import short
from choral.comparison import evaluation
from choral.comparison.comparison import Comparison
from choral.predictions import Classification, Prediction, Predictive

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "agreement", "confusion", "cost_vs_score", "dependence", "ensemble_size", "entropy_histograms", "history",
    "importance", "intervals", "pit", "predicted_vs_actual", "reliability", "residuals", "risk_coverage",
    "training_curves",
]  # fmt: skip

Ax: TypeAlias = "Axes | None"
_WORDS = {n: n.upper() for n in ("nll", "ece", "mce", "kl", "rmse", "mae", "crps", "ood", "auroc")} | {
    "brier": "Brier score"
}
_WORDS |= {"train": "training", "predict": "prediction", "flops": "FLOPs", "c": "corrupted", "95": "95%"}
MUTED = "#808080"  # diagonals, baselines and other marks that are not data


def label(name: str) -> str:
    """Return the display name of a score.

    >>> label("c_nll"), label("coverage_95")
    ('corrupted NLL', 'coverage 95%')
    """
    return " ".join(_WORDS.get(word, word) for word in name.split("_"))


def _axes(ax: Ax) -> "Axes":
    return needed("matplotlib.pyplot", "plots").subplots(layout="constrained")[1] if ax is None else ax


def _log(ax: "Axes", form: Any) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    ax.set_xscale("log")
    low, high = ax.get_xlim()
    ax.xaxis.set_major_locator(LogLocator(numticks=4, subs=(1,) if high > 30 * low else (1, 2, 5)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(form)


def _shades(color: str = "C0") -> Any:
    from matplotlib.colors import ListedColormap, to_rgba

    return ListedColormap([to_rgba(color, a) for a in np.linspace(0.04, 1, 16)])


def _thousands(ax: "Axes", axis: Literal["x", "y", "both"] = "y") -> None:
    ax.locator_params(axis=axis, nbins=5)
    for one in [ax.xaxis] * (axis != "y") + [ax.yaxis] * (axis != "x"):
        one.set_major_formatter("{x:,.10g}")


def _predictive(found: Any) -> Predictive:
    """Return the distribution of a prediction; an array contains probabilities (row, class) or (member, row, class)."""
    if isinstance(found, Prediction | Predictive):
        return found._found if isinstance(found, Prediction) else found
    probs = torch.as_tensor(np.asarray(found), dtype=torch.float64)
    return Classification(logits=(probs if probs.dim() == 3 else probs[None]).clamp_min(1e-30).log())


def _stored(found: Any, y: Any, make: Callable[[Predictive, Any], Any]) -> Any:
    """Return the data of a plot: part of an evaluation as it is, or computed from a prediction and its targets."""
    if isinstance(found, Mapping | list):
        return found
    prediction = _predictive(found)
    return evaluation.plain(make(prediction, None if y is None else prediction.targets(y)))


def _rows(found: Any, y: Any) -> dict[str, np.ndarray]:
    if not isinstance(found, Mapping | Prediction | Predictive):
        ends = [np.asarray(v, dtype=float) for v in (found if isinstance(found, tuple) else (found, found))]
        return {"target": np.asarray(y, dtype=float), "mean": (ends[0] + ends[1]) / 2, "low": ends[0], "high": ends[1]}
    rows = _stored(found, y, lambda p, t: p.details(t)["intervals"])["rows"]
    return {name: np.array([row[name] for row in rows], dtype=float) for name in ("target", "mean", "low", "high")}


def label_ends(ax: "Axes", points: Iterable[tuple[float, float, str, Any]], *, size: float = 8) -> None:
    """Write names to the right of the axes at the heights of their points (x, y, name, color), moved apart to avoid overlaps."""
    ax.figure.draw_without_rendering()  # type: ignore[union-attr]  # settles the layout
    entries = list(points)
    ends = [ax.transAxes.inverted().transform(ax.transData.transform((x, y))) for x, y, _, _ in entries]
    gap = 1.25 * size / (ax.get_position().height * ax.figure.get_size_inches()[1] * 72)  # type: ignore[union-attr]
    order = sorted((i for i in range(len(entries)) if np.isfinite(ends[i]).all()), key=lambda i: float(ends[i][1]))
    places = np.array([float(ends[i][1]) for i in order])
    lowest = np.arange(len(places)) * gap
    places = np.maximum.accumulate(places - lowest) + lowest
    places = np.minimum(places, 1 - lowest[::-1])
    for i, place in zip(order, places):
        _, _, name, color = entries[i]
        own = {"transform": ax.transAxes, "color": color, "gid": f"series:{i}"}
        ax.plot([ends[i][0], 1.03], [ends[i][1], place], lw=0.5, alpha=0.5, clip_on=False, **own)
        ax.text(1.04, place, short(name, 24), fontsize=size, va="center", **own)


def reliability(found: Any, y: Any = None, *, ax: Ax = None) -> "Axes":
    """Draw accuracy by confidence. Bars and the size of points show the share of rows, orange lines the calibration gap."""
    ax, table = _axes(ax), _stored(found, y, lambda p, t: p.details(t)["reliability"])
    edges, counts, sure, right = (np.array(table[n], float) for n in ("edges", "counts", "confidence", "accuracy"))
    held = counts > 0
    ax.bar(edges[:-1], counts / counts.sum(), np.diff(edges), align="edge", color=MUTED, alpha=0.25)
    ax.plot([0, 1], [0, 1], color=MUTED, lw=1, dashes=(3, 2))
    weight = np.sqrt(counts / counts.sum())[held]  # bins of a few rows are noise
    ax.vlines(sure[held], np.minimum(sure, right)[held], np.maximum(sure, right)[held], color="C1", lw=0.4 + 6 * weight)
    ax.scatter(sure[held], right[held], s=4 + 80 * weight, color="C0", lw=0, zorder=3)
    ax.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="confidence", ylabel="accuracy; share of rows (bars)")
    return ax


def risk_coverage(found: Any, y: Any = None, *, ax: Ax = None, **options: Any) -> "Axes":
    """Draw the error of the remaining rows when the least certain ones are left out."""
    ax, curve = _axes(ax), _stored(found, y, lambda p, t: evaluation.risk(p, t)["risk"])
    line(ax, curve["kept"], curve["risk"], curve.get("spread"), **options)
    _thousands(ax)
    ax.set(xlabel="share of rows kept, most certain first", ylabel=curve["of"])
    return ax


def line(ax: "Axes", x: Any, y: Any, spread: Any = None, **options: Any) -> None:
    """Draw a line, with a band if `spread` is given."""
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    (drawn,) = ax.plot(x, y, **{"marker": "o" if len(x) < 16 else None, "markersize": 3} | options)
    if spread is not None and np.any(spread):
        ax.fill_between(x, y - np.asarray(spread), y + np.asarray(spread), color=drawn.get_color(), alpha=0.12, lw=0)


def confusion(found: Any, y: Any = None, *, names: Sequence[str] | None = None, ax: Ax = None) -> "Axes":
    """Draw the confusion matrix of classes (`names`); shades are shares of the true class."""
    import matplotlib

    ax, told = _axes(ax), _stored(found, y, lambda p, t: p.details(t)["classes"])
    counts = np.array(told["confusion"], dtype=float)
    words = [short(str(n), 14) for n in names or told["names"]]
    shares = counts / counts.sum(1, keepdims=True).clip(1)
    ax.pcolormesh(np.ma.masked_equal(shares, 0), cmap=_shades(), vmin=0, vmax=1, edgecolors="none")
    for i, j in np.argwhere(counts > 0) if len(counts) <= 20 else ():
        color = matplotlib.rcParams["figure.facecolor" if shares[i, j] > 0.55 else "text.color"]
        ax.text(j + 0.5, i + 0.5, f"{int(counts[i, j])}", ha="center", va="center", color=color, fontsize=8)
    ticks = range(0, len(words), -(-len(words) // 20))
    ax.set_xticks([i + 0.5 for i in ticks], [words[i] for i in ticks], rotation=0 if max(map(len, words)) < 4 else 90)
    ax.set_yticks([i + 0.5 for i in ticks], [words[i] for i in ticks])
    ax.grid(False)
    ax.invert_yaxis()
    ax.set(xlabel="predicted class", ylabel="true class")
    return ax


def entropy_histograms(found: Any, other: Any = None, *, ax: Ax = None) -> "Axes":
    """Draw the histogram of the entropy (for numbers: standard deviation) of rows and of `other`, out-of-distribution, rows."""
    outside = None if other is None else _predictive(other)
    ax, shown = _axes(ax), _stored(found, None, lambda p, _: evaluation.histograms(p, outside))
    for name, color, text in (("in", "C0", "test rows"), ("out", "C1", "out of distribution")):
        if shown.get(name):
            ax.stairs(shown[name], shown["edges"], fill=True, color=color, alpha=0.4, lw=0)
            ax.stairs(shown[name], shown["edges"], color=color, label=text)
    _log(ax, "{x:g}")
    ax.set(xlabel=f"predictive {short(shown['of'])}", ylabel="share of rows", ylim=(0, None))
    return ax


def agreement(found: Any, y: Any = None, *, scale: float | None = None, ax: Ax = None) -> "Axes":
    """Draw how often members predict different classes, or how their errors correlate; `scale` is the value of the darkest shade."""
    ax, told = _axes(ax), _stored(found, y, lambda p, t: dict(zip(("measure", "matrix"), p.likeness(t))))
    values = np.array(told["matrix"], dtype=float)
    np.fill_diagonal(values, np.nan)
    top = scale or float(np.nanmax(np.abs(values), initial=0)) or 1.0
    mesh = ax.pcolormesh(np.ma.masked_invalid(values), cmap=_shades(), vmin=0, vmax=top)
    bar = ax.figure.colorbar(mesh, ax=ax, ticks=[0, top], format="%.2g", fraction=0.06)
    bar.outline.set_visible(False)
    ax.set(xlabel="member", ylabel="member", xticks=[], yticks=[], aspect="equal")
    ax.set_title(str(told["measure"]), fontsize="small")
    ax.invert_yaxis()
    return ax


def ensemble_size(found: Any, y: Any = None, *, measure: str = "nll", ax: Ax = None, **options: Any) -> "Axes":
    """Draw a score by the number of members, with its standard deviation over random choices of them."""
    ax, rows = _axes(ax), _stored(found, y, evaluation.sizes)
    held = {n: [row.get(n, 0.0) for row in rows] for n in ("members", measure, f"{measure}_std")}
    line(ax, held["members"], held[measure], held[f"{measure}_std"], **options)
    _thousands(ax)
    _log(ax, "{x:g}")
    ax.set(xlabel="members", ylabel=label(measure))
    return ax


def intervals(found: Any, y: Any = None, *, rows: int = 60, ax: Ax = None, unit: str = "") -> "Axes":
    """Draw intervals of some `rows` in order of their means; `found` may be a pair of arrays. Targets outside are orange."""
    ax, held = _axes(ax), _rows(found, y)
    order = np.argsort(held["mean"], kind="stable")
    order = order[np.linspace(0, len(order) - 1, min(rows, len(order))).round().astype(int)]
    target, mean, low, high = (held[n][order] for n in ("target", "mean", "low", "high"))
    at, inside = np.arange(len(order)), (low <= target) & (target <= high)
    ax.vlines(at, low, high, color="C0", alpha=0.4, lw=2)
    ax.plot(at, mean, color="C0", lw=1, label="predicted")
    ax.plot(at[inside], target[inside], "o", color=MUTED, markersize=2.8, label="actual, inside")
    ax.plot(at[~inside], target[~inside], "o", color="C1", markersize=3.4, label="actual, outside")
    _thousands(ax)
    ax.set_xticks([])
    ax.set(xlabel="rows, by predicted value", ylabel=f"target{unit and f' ({unit})'}")
    return ax


def _scatter(ax: "Axes", x: np.ndarray, y: np.ndarray, name: str, unit: str) -> "Axes":
    more = unit and f" ({unit})"
    ax.plot(x, y, "o", color="C0", alpha=0.5, markersize=3.5, markeredgewidth=0)
    _thousands(ax, "both")
    ax.set(xlabel=f"predicted{more}", ylabel=f"{name}{more}")
    return ax


def predicted_vs_actual(found: Any, y: Any = None, *, ax: Ax = None, unit: str = "") -> "Axes":
    """Draw actual against predicted values; on the dashed line they are equal."""
    ax, held = _axes(ax), _rows(found, y)
    ends = [f(f(held["target"]), f(held["mean"])) for f in (min, max)]
    ax.plot(ends, ends, color=MUTED, lw=1, dashes=(3, 2))
    return _scatter(ax, held["mean"], held["target"], "actual", unit)


def residuals(found: Any, y: Any = None, *, ax: Ax = None, unit: str = "") -> "Axes":
    """Draw actual minus predicted values by predicted value."""
    ax, held = _axes(ax), _rows(found, y)
    ax.axhline(0, color=MUTED, lw=1, dashes=(3, 2))
    return _scatter(ax, held["mean"], held["target"] - held["mean"], "actual - predicted", unit)


def pit(found: Any, y: Any = None, *, ax: Ax = None) -> "Axes":
    """Draw the histogram of the probability integral transform: flat if calibrated, hump-shaped if intervals are too wide."""
    ax = _axes(ax)
    shares = np.array(found if y is None else _stored(found, y, lambda p, t: p.details(t)["pit"]), dtype=float)
    ax.bar(np.arange(len(shares)) / len(shares), shares, 1 / len(shares), align="edge", color="C0", alpha=0.6)
    ax.axhline(1 / len(shares), color=MUTED, lw=1, dashes=(3, 2))
    ax.set(xlim=(0, 1), xlabel="predicted probability of a lower value", ylabel="share of rows")
    return ax


def history(run: str | Path | Iterable[Any]) -> dict[str, Any]:
    """Return the curves of a run: `loss` and `validation` as segments of [epochs, value], and the validation score's name, `measure`.

    Args:
        run: its folder, or the list of events from `fit(..., callbacks=events.append)`.
    """
    found: dict[str, Any] = {"loss": [], "validation": [], "measure": ""}
    if isinstance(run, str | Path):
        log = Path(run) / "log.jsonl"
        run = log.read_text("utf8", "replace").splitlines() if log.exists() else ()
    for line in run:
        try:
            event = json.loads(line) if isinstance(line, str) else line
            if event["kind"] != "epoch":
                continue
            at, first = float(event["counted"]["epochs"]), event["epoch"] == 1
            curves = {"loss": event["losses"], "validation": event.get("validation") or ()}
            values = {n: [float(v) for v in held if v is not None and abs(v) < 1e300] for n, held in curves.items()}
        except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError):  # a line that was cut short
            continue
        found["measure"] = str(event.get("measure") or found["measure"])
        for name in [n for n, held in values.items() if held]:
            if first or not found[name]:
                found[name].append([])
            found[name][-1].append([at, float(f"{np.mean(values[name]):.6g}")])
    return found


def training_curves(found: Any, *, of: Literal["loss", "validation"] = "loss", ax: Ax = None) -> "Axes":
    """Draw the loss or the validation score (`of`) of a run, given as its folder, events or `history`; one line for each phase."""
    ax, curves = _axes(ax), found if isinstance(found, Mapping) else history(found)
    for segment in curves[of]:
        x, y = np.array(segment, dtype=float).T
        ax.plot(x, y, color="C0", lw=1.2, alpha=0.8, marker="o" if len(x) == 1 else None, markersize=2.5)
    said = "training loss" if of == "loss" else f"validation {label(curves['measure'] or 'score')}"
    ax.set(xlabel="epochs, counted over all networks", ylabel=said)
    return ax


def cost_vs_score(
    found: Comparison | Sequence[Mapping[str, Any]],
    *,
    cost: str = "predict_flops",
    score: str = "nll",
    spreads: Mapping[str, Mapping[str, float]] | None = None,
    ax: Ax = None,
) -> "Axes":
    """Draw a `score` of each method of a comparison, or of its rows, against its `cost`, with error bars (`spreads`)."""
    from matplotlib.ticker import EngFormatter

    rows = found.rows if isinstance(found, Comparison) else found
    spreads = found.deviations if isinstance(found, Comparison) else spreads
    ax, ends = _axes(ax), []
    for i, row in enumerate(rows):
        x, y = (float("nan") if row.get(n) is None else float(row[n]) for n in (cost, score))
        spread = (spreads or {}).get(row["method"], {}).get(score)
        marks = ax.errorbar(x, y, yerr=spread, fmt="o", color=f"C{i}", markersize=5, elinewidth=1)
        marks[0].set_gid(f"series:{i}")
        ends.append((x, y, str(row["method"]), f"C{i}"))
    _log(ax, EngFormatter(sep=""))
    ax.set(xlabel=label(cost), ylabel=label(score))
    ax.margins(0.08)
    label_ends(ax, ends)
    return ax


def importance(found: Mapping[str, Any], *, most: int = 12, ax: Ax = None) -> "Axes":
    """Draw how much worse a score gets when the values of one column are shuffled; lines span the members."""
    ax, rows, measure = _axes(ax), found["columns"][:most], found["measure"]
    places = -np.arange(len(rows))
    ax.barh(places, [row["worse"][measure] for row in rows], height=0.7, color="C0", alpha=0.55)
    for place, row in zip(places, rows):
        ax.plot([min(row["members"][measure]), max(row["members"][measure])], [place, place], color=MUTED, lw=1.2)
    ax.axvline(0, color=MUTED, lw=0.8)
    ax.set_yticks(places, [short(row["column"], 22) for row in rows])
    ax.set_xlabel(f"increase of {label(measure)} without the column")
    return ax


def dependence(
    curve: Mapping[str, Any], *, output: int = -1, noise: bool = False, ax: Ax = None, unit: str = ""
) -> "Axes":
    """Draw the mean prediction (`output`), or noise, by the value of one column, with the spread of the members."""
    ax, words = _axes(ax), [short(v, 14) for v in curve["values"]]
    what = f"{'mean noise' if noise else 'mean prediction'}{unit and f' ({unit})'}"
    means = np.array(curve["noise"]) if noise else np.array(curve["mean"], dtype=float)[:, output]
    members = means[None] if noise else np.array(curve["members"], dtype=float)[:, :, output]
    if curve["at"] is None:
        places = -np.arange(len(words))
        ax.hlines(places, members.min(0), members.max(0), color="C0", alpha=0.4, lw=3)
        ax.plot(means, places, "o", color="C0", markersize=4)
        ax.set_yticks(places, words)
        ax.set_ylim(0.5 - len(words), 0.5)
        _thousands(ax, "x")
        ax.set_xlabel(what)
        return ax
    ax.plot(curve["at"], members.T, color="C0", alpha=0.25, lw=0.8)
    ax.plot(curve["at"], means, color="C0", lw=1.8)
    _thousands(ax)
    if not all(
        re.fullmatch(r"[-+]?[.\d]+(e[-+]?\d+)?", word) for word in curve["values"]
    ):  # dates, or an order of words
        few = range(0, len(words), -(-len(words) // 4))
        ax.set_xticks([curve["at"][i] for i in few], [words[i] for i in few])
    ax.set(xlabel=short(str(curve["column"]), 30), ylabel=what)
    return ax


def __dir__() -> list[str]:
    return __all__
