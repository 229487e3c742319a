"""The page: texts, tables and figures in sections that page.html lays out; it loads nothing from the network."""

import re
import statistics
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from choral import __version__, plots
from choral.base.errors import InputError
from choral.base.text import number, short, visible
from choral.comparison.comparison import by_method, difference, is_number
from choral.engine.files import write_bytes, write_json
from choral.plots import label
from choral.recipes import METHODS
from choral.report.content import WRONG, Content, collect
from choral.report.figures import COLORS, Picture, look, picture, settings, variables

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DASH = "\u2013"
_MARKS = {"better": "\u25b2", "level": "=", "worse": "\u25bc"}
_FILES = (".html", ".htm", ".csv", ".tsv", ".json", ".pdf", ".png", ".svg", ".md", ".txt", ".xlsx", ".parquet")
_PAPERS = {name: found[0] for name, m in METHODS.items() if (found := re.findall(r"arXiv:(\d{4}\.\d{4,5})", m.paper))}
_HALF, _SMALL = (340.0, 235.0), (178.0, 178.0)


@dataclass(frozen=True)
class Cell:
    """A cell: its text, the exact value, a CSS class and a tooltip."""

    text: str
    value: Any = None
    css: str = ""
    title: str = ""


@dataclass(frozen=True)
class Table:
    """A table: its headings, and rows of a name and cells; `methods` if each row is a method."""

    caption: str
    head: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Cell]]]
    methods: bool = False


@dataclass(frozen=True)
class Section:
    """A section, whose title and text are in page.html; `small` pictures form a grid, a `folded` section is closed at first.

    `about` has the values that its text needs.
    """

    name: str
    about: dict[str, Any] = field(default_factory=dict)
    pictures: Sequence[Picture] = ()
    tables: Sequence[Table] = ()
    lines: Sequence[str] = ()
    trees: Sequence[tuple[str, str]] = ()
    small: bool = False
    folded: bool = False
    parts: Sequence["Section"] = field(default_factory=list)


def write_report(folder: str | Path, *, out: str | Path | None = None) -> Path:
    """Write report.html, figures/ and report.json from a run, a comparison or a folder of runs; return the page's path.

    The page is self-contained and loads nothing from the network. Figures are also written as SVG (light and dark) and PNG. report.json
    contains every number on the page, or the values of each seed.

    Args:
        folder: the run_dir of `choral.fit` or `choral.compare`.
        out: the folder to write to; by default the same.
    """
    folder = Path(folder)
    place = folder if out is None else Path(out)
    if place.is_file() or (place.suffix.lower() in _FILES and not place.is_dir()):
        raise InputError(
            f"out is {place}, which names a file; a report is a folder with report.html, figures and report.json: give one, such as "
            f"{place.with_suffix('')}."
        )
    content = collect(folder)
    with settings():
        sections = list(sections_of(content))
        page = render(content, sections)
        for drawn in _pictures(sections):
            for name, data in drawn.files():
                write_bytes(place / "figures" / name, data, within=place)
    further = {"evaluation_of_further_seeds": content.others} if any(content.others.values()) else {}
    write_json(place / "report.json", content.results | further, within=place)
    write_bytes(place / "report.html", page.encode(), within=place)
    return place / "report.html"


def _pictures(sections: Sequence[Section]) -> Iterator[Picture]:
    for section in sections:
        yield from section.pictures
        yield from _pictures(section.parts)


def render(content: Content, sections: Sequence[Section]) -> str:
    """Return the page as text; the template engine escapes everything but this package's own markup."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    here = Path(__file__).parent
    classes: dict[str, str] = {}
    drawn = {p.name: Markup(p.inline(classes)) for p in _pictures(sections)}  # written by an XML writer
    rules = "".join(f".{own} {{ {style} }}\n" for style, own in classes.items())
    tints = "".join(f".t{i} {{ --tint: var(--s{i % COLORS}) }}\n" for i in range(len(content.methods)))
    style = f"{variables()}\n{(here / 'style.css').read_text('utf8')}\n{rules}{tints}"
    script = (here / "script.js").read_text("utf8")
    assert "</" not in style + script
    made: Any = next((p["made"] for p in content.results["plans"].values() if isinstance(p.get("made"), dict)), {})
    templates = Environment(
        loader=FileSystemLoader(here),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if type(value) is str else value,  # Markup is a subclass
    )
    return templates.get_template("page.html").render(
        title=heading(content),
        policy=f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; base-uri 'none'; form-action 'none'",
        style=Markup(style),  # this package's own
        script=Markup(script),
        content=content,
        target=_target(content),
        seeds=_seeds(content),
        is_number=is_number,
        shown=shown,
        amount=amount,
        alone=content.row(content.alone) if content.alone else {},
        label=label,
        sections=sections,
        drawn=drawn,
        methods=[] if content.alone else content.methods,
        places={m: i for i, m in enumerate(content.methods)},
        papers={m: f"https://arxiv.org/abs/{number}" for m, number in _PAPERS.items()},
        score=label(content.score),
        short=short,
        made={n: short(str(made.get(n, "")), 300) for n in ("date", "command", "choral")},
        version=__version__,
    )


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def shown(value: Any) -> str:
    """Return a number as text; a dash for values that are no numbers, nothing for None."""
    return number(value) if is_number(value) or value is None else DASH


def amount(value: float, unit: str, digits: int = 3) -> str:
    """Return a number with the unit of the target and a few significant digits.

    >>> amount(13559.25, "$"), amount(0.5, "kg"), amount(2, "")
    ('$13,600', '0.5 kg', '2')
    """
    text = f"{float(f'{value:.{digits}g}'):,.10g}"
    return f"{unit}{text}" if unit in ("$", "€", "£", "¥") else f"{text} {unit}".rstrip()


def _cell(value: Any, *, words: bool = False) -> Cell:
    if words and isinstance(value, str):
        return Cell(short(value, 160))
    return Cell(shown(value), value if is_number(value) else None)


def _target(content: Content) -> tuple[str, str]:
    table = content.results.get("table") or {}
    return short(str(table.get("target") or "The target"), 60), short(str(table.get("unit") or ""), 12)


def heading(content: Content) -> str:
    """Return the title of the page."""
    if content.alone is None or not content.results.get("table", {}):
        return short(content.title, 200)
    return f"Predicting {_target(content)[0]} ({short(content.title.partition(' in ')[2] or content.title, 120)})"


def _seeds(content: Content) -> int:
    return max([1, *(1 + len(held) for held in content.others.values())])


def _mean(values: Sequence[Any]) -> float | None:
    held = [v for v in values if is_number(v)]
    return statistics.fmean(held) if held else None


def sections_of(content: Content) -> Iterator[Section]:
    """Yield the sections for which the content has data."""
    subjects = [content.alone] if content.alone else content.methods
    parts = (_grid, _numbers, _calibration, _worst, _importance, _columns, _classes, _strange, _corrupted, _members)
    for build in parts:
        try:
            yield from list(build(content, subjects))
        except WRONG:
            content.left_out.append(build.__name__.lstrip("_"))
    yield _engine(content)


def _curves(
    content: Content,
    name: str,
    title: str,
    subjects: Sequence[str],
    draw: Callable[["Axes", str, dict[str, Any]], tuple[float, float]],
) -> list[Picture]:
    """Return a picture with one labeled line for each method; none without methods."""

    def run(ax: "Axes") -> None:
        ends: list[tuple[float, float, str, Any]] = []
        for method in subjects:
            style, before = look(content.methods.index(method)), set(ax.get_children())
            end = draw(ax, method, style)
            for artist in set(ax.get_children()) - before:
                artist.set_gid(f"series:{len(ends)}")
            ends.append((*end, method, style["color"]))
        if len(subjects) > 1:
            plots.label_ends(ax, ends)

    return [picture(name, title, run, _tall(subjects), methods=subjects)] if subjects else []


def _tall(subjects: Sequence[str]) -> tuple[float, float]:
    return (370.0 if len(subjects) > 1 else _HALF[0], max(_HALF[1], 70.0 + 12 * len(subjects)))


def _over_seeds(values: Sequence[Any]) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the mean and standard deviation of arrays over seeds; arrays of other shapes than the first are left out."""
    arrays = [np.array(v, dtype=float) for v in values]
    same = [a for a in arrays if a.shape == arrays[0].shape]
    return np.mean(same, axis=0), np.std(same, axis=0, ddof=1) if len(same) > 1 else None


def _grid(content: Content, subjects: Sequence[str]) -> Iterator[Section]:
    if content.alone is not None:
        return
    rows = {m: content.row(m) for m in content.methods}
    values = by_method(list(content.results.get("by_seed", {}).values()) or [list(rows.values())])
    wanted = ("accuracy", "rmse", "ece", "coverage_95", "c_nll", "ood_auroc", "train_flops", "predict_flops")
    names = [n for n in (content.score, *wanted) if any(row.get(n) is not None for row in rows.values())]
    told = str(content.results["settings"].get("baseline"))
    base = next((m for m in (told, "single") if m in rows), content.methods[-1])

    def cell(method: str, name: str) -> Cell:
        value, own, other = rows[method].get(name), values[method].get(name), values[base].get(name, [])
        if not is_number(value) or not own:
            return _cell(value)
        if name.endswith("_flops"):
            text = f"{value / other[0]:.2g}\u00d7" if other and other[0] else shown(value)
            return Cell(text, value, "", f"{shown(value)} FLOPs")
        spread = f" \u00b1 {shown(statistics.stdev(own))}" if len(own) > 1 else ""
        if name == "coverage_95":
            name, own, other = "coverage_error", *([abs(v - 0.95) for v in held] for held in (own, other))
        if method == base or len(own) != len(other):
            return Cell(f"{shown(value)}{spread}", value)
        word = difference(name, own, other).word
        return Cell(
            f"{_MARKS[word]} {shown(value)}{spread}",
            value,
            word,
            f"within noise of {base}" if word == "level" else f"{word} than {base}",
        )

    head = ["method", *(label(n).replace(" FLOPs", " cost") for n in names)]
    table = Table("All methods, best first", head, [(m, [cell(m, n) for n in names]) for m in rows], methods=True)
    costs = []
    for cost in ("predict_flops", "train_flops"):
        sound = [r for r in rows.values() if is_number(r.get(cost)) and is_number(r.get(content.score))]
        held = [r[cost] for r in sound]
        if len(held) > 1 and max(held) > 1.3 * min(held) > 0:  # equal budgets are equal by construction
            spreads, title = content.results.get("deviations"), f"{label(content.score)} by {label(cost)}"
            known: dict[str, Any] = {"cost": cost, "score": content.score, "spreads": spreads}
            drawn = [{"method": m} | (r if r in sound else {}) for m, r in rows.items()]
            draw = partial(plots.cost_vs_score, drawn, **known)
            costs.append(picture(f"cost-{cost}", title, draw, _tall(content.methods), methods=content.methods))
    yield Section("grid", {"base": base}, tables=[table], pictures=[*costs, *_risk(content, content.methods)])


def _each(
    content: Content, name: str, subjects: Sequence[str], draw: Callable[..., Any], note: str = ""
) -> list[Picture]:
    """Return a small picture for each method, or a large one for a single method."""
    found, several = [], len(subjects) > 1
    for method in subjects:
        place, value, more = content.methods.index(method), content.row(method).get(note), dict[str, Any]()
        if several:
            more = {"method": method, "note": f"{label(note)} {shown(value)}" if is_number(value) else ""}
        title, size = (f"{name} of {short(method)}", _SMALL) if several else (name.capitalize(), _HALF)
        found.append(picture(f"{name}-{place}", title, partial(draw, method), size, **more))
    return found


def _numbers(content: Content, subjects: Sequence[str]) -> Iterator[Section]:
    drawn = [m for m in subjects if content.parts(m, "intervals")]
    if not drawn:
        return
    best, unit = drawn[0], _target(content)[1]
    parts = content.parts(best, "intervals")
    level, held = f"{parts[0]['level']:.0%}", {"rows": [row for part in parts for row in part["rows"]]}
    figures = [
        picture("predicted", "Predicted and actual", partial(plots.predicted_vs_actual, held, unit=unit), _HALF),
        picture("residuals", "Residuals", partial(plots.residuals, held, unit=unit), _HALF),
        picture("intervals", f"{level} intervals", partial(plots.intervals, held, unit=unit), _HALF),
    ]
    yield Section("predictions", {"best": best, "of": len(drawn), "seeds": len(parts), "level": level}, figures)


def _calibration(content: Content, subjects: Sequence[str]) -> Iterator[Section]:
    drawn = [m for m in subjects if content.parts(m, "reliability")]
    if drawn:
        small = len(subjects) > 1

        def reliability(method: str, ax: "Axes") -> None:
            tables = [
                t for t in content.parts(method, "reliability") if len(t["counts"]) == len(tables_of[method]["counts"])
            ]
            counts = np.array([t["counts"] for t in tables], dtype=float)
            sums = {n: (counts * [t[n] for t in tables]).sum(0) for n in ("confidence", "accuracy")}
            means = {n: v / counts.sum(0).clip(1) for n, v in sums.items()}
            plots.reliability({"edges": tables[0]["edges"], "counts": counts.sum(0), **means}, ax=ax)
            ax.set_ylabel("accuracy" if small else ax.get_ylabel())

        tables_of = {m: content.parts(m, "reliability")[0] for m in drawn}
        figures = _each(content, "reliability", drawn, reliability, "ece")
        figures += [] if small else _risk(content, subjects)
        yield Section("calibration", pictures=figures, small=small)
    drawn = [m for m in subjects if content.parts(m, "coverage")]
    if drawn:

        def coverage(ax: "Axes", method: str, style: dict[str, Any]) -> tuple[float, float]:
            parts = content.parts(method, "coverage")
            levels = [row["level"] for row in parts[0]]
            mean, spread = _over_seeds([[row["coverage"] for row in part] for part in parts])
            plots.line(ax, levels, mean, spread, **style)
            ax.axline((0, 0), (1, 1), color=plots.MUTED, lw=1, dashes=(3, 2))
            ax.set(xlabel="level of the interval", ylabel="share of rows inside", xlim=(0, 1), ylim=(0, 1))
            return levels[-1], float(mean[-1])

        figures = _curves(content, "coverages", "Coverage of intervals", drawn, coverage)
        if len(subjects) == 1 and content.parts(drawn[0], "pit"):
            shares = content.parts(drawn[0], "pit")[0]
            figures.append(picture("pit", "Probability integral transform", partial(plots.pit, shares), _HALF))
        figures += _risk(content, subjects) if len(subjects) == 1 else []
        yield Section("coverage", pictures=figures)


def _worst(content: Content, subjects: Sequence[str]) -> Iterator[Section]:
    rows = content.parts(subjects[0], "worst")[0] if len(subjects) == 1 and content.parts(subjects[0], "worst") else []
    names = [n for n in ("target", "mean", "predicted", "low", "high", "confidence") if rows and n in rows[0]]
    if not names:
        return
    words, unit = {"target": "actual", "mean": "predicted", "low": "interval from", "high": "to"}, _target(content)[1]

    def cell(value: Any) -> Cell:
        return Cell(amount(value, unit, 6), value) if is_number(value) and "mean" in names else _cell(value, words=True)

    head = ["row", *(words.get(n, n) for n in names)]
    made = [(short(str(r.get("row")), 40), [cell(r.get(n)) for n in names]) for r in rows]
    yield Section("worst", tables=[Table("Worst rows", head, made)])


def _importance(content: Content, subjects: Sequence[str]) -> Iterator[Section]:
    held = content.parts(subjects[0], "importance") if len(subjects) == 1 else []
    if not held:
        return
    found, unit = held[0], _target(content)[1]
    rows, measure = found["columns"], found["measure"]
    tall = max(200.0, 50.0 + 16 * min(len(rows), 12))
    figures = [picture("importance", "Importance of columns", partial(plots.importance, found), (300, tall))]
    for i, curve in enumerate(found["dependence"][:6]):
        output = len(curve["outputs"]) - 1
        what = unit if output == 0 else f"probability of {short(curve['outputs'][output], 20)}"
        draw = partial(plots.dependence, curve, output=output, unit=what)
        figures.append(picture(f"dependence-{i}", f"Prediction by {short(curve['column'], 40)}", draw, (300, 200)))
    noisy = [c for c in found["dependence"] if c.get("noise")]
    for i, curve in enumerate(sorted(noisy, key=lambda c: min(c["noise"]) - max(c["noise"]))[:2]):
        draw, title = partial(plots.dependence, curve, noise=True, unit=unit), f"Noise by {short(curve['column'], 40)}"
        figures.append(picture(f"noise-{i}", title, draw, (300, 200)))
    names = [measure, *(n for n in rows[0]["worse"] if n != measure)]
    head = ["column", *(f"{label(n)} worse by" for n in names), "lowest member", "highest member"]
    made = [
        (r["column"], [_cell(r["worse"][n]) for n in names] + [_cell(f(r["members"][measure])) for f in (min, max)])
        for r in rows[:40]
    ]
    about = {"measure": label(measure), "noise": bool(noisy)}
    yield Section("importance", about, figures, [Table("Importance of columns", head, made)])


def _columns(content: Content, subjects: Sequence[str]) -> Iterator[Section]:
    table = content.results.get("table") or {}
    if len(subjects) > 1 or not table.get("columns"):
        return
    head, names = ["column", "read as", "inputs", "detail"], ("read_as", "inputs", "detail")
    rows = [(c["column"], [_cell(c[n], words=True) for n in names]) for c in table["columns"][:200]]
    yield Section("columns", tables=[Table("How columns were read", head, rows)])


def _classes(content: Content, subjects: Sequence[str]) -> Iterator[Section]:
    drawn = [m for m in subjects if content.parts(m, "classes")]
    if not drawn:
        return
    parts = content.parts(drawn[0], "classes")
    told, figures = parts[0], []
    if told.get("confusion") and len(told["confusion"]) <= 40:
        counts = np.sum([p["confusion"] for p in parts if len(p.get("confusion") or ()) == len(told["names"])], axis=0)
        side = max(260.0, min(560.0, 70 + 30 * len(counts)))
        draw = partial(plots.confusion, {"names": told["names"], "confusion": counts})
        figures.append(picture("confusion", "Confusion matrix", draw, (side, side)))
    of = [n for n in ("counts", "recall", "precision", "average_precision") if told.get(n)]
    means = {n: _over_seeds([p[n] for p in parts if p.get(n)])[0].tolist() for n in of}
    means |= {"counts": [round(v) for v in means["counts"]]} if "counts" in of else {}
    rows = [(name, [_cell(means[n][i]) for n in of]) for i, name in enumerate(told["names"][:50])]
    head = ["class", *("rows" if n == "counts" else label(n) for n in of)]
    about = {"best": drawn[0], "of": len(subjects), "seeds": _seeds(content)}
    yield Section("classes", about, figures, [Table("Each class against all others", head, rows)])


def _risk(content: Content, subjects: Sequence[str]) -> list[Picture]:
    """Return the picture of the error of the remaining rows when the least certain ones are left out."""
    drawn = [m for m in subjects if content.parts(m, "risk")]

    def draw(ax: "Axes", method: str, style: dict[str, Any]) -> tuple[float, float]:
        parts = content.parts(method, "risk")
        mean, spread = _over_seeds([p["risk"] for p in parts])
        plots.risk_coverage({**parts[0], "risk": mean, "spread": spread}, ax=ax, **style)
        return parts[0]["kept"][-1], float(mean[-1])

    return _curves(content, "risk", "Error when the least certain rows are left out", drawn, draw)


def _histogram(parts: Sequence[dict[str, Any]], edges: np.ndarray) -> dict[str, Any]:
    shares: dict[str, Any] = {"of": parts[0]["of"], "edges": edges}
    for name in ("in", "out"):
        sums = [(np.log(p["edges"]), np.cumsum([0.0, *p[name]])) for p in parts if p.get(name)]
        if sums:
            means = np.mean([np.diff(np.interp(np.log(edges), at, below)) for at, below in sums], axis=0)
            shares[name] = means.tolist()
    return shares


def _strange(content: Content, subjects: Sequence[str]) -> Iterator[Section]:
    judged = [m for m in subjects if content.parts(m, "ood")]
    if not judged:
        return
    held = {m: content.parts(m, "histograms") for m in judged if content.parts(m, "histograms")}
    ends = [e for parts in held.values() for h in parts for e in (h["edges"][0], h["edges"][-1])]
    edges = np.geomspace(min(ends), max(ends), 31) if ends else np.ones(0)
    shown_of = {m: _histogram(parts, edges) for m, parts in held.items()}
    top = max((max(h[n]) for h in shown_of.values() for n in ("in", "out") if n in h), default=1.0)

    def draw(method: str, ax: "Axes") -> None:
        plots.entropy_histograms(shown_of[method], ax=ax)
        ax.set(xlim=(edges[0], edges[-1]), ylim=(0, 1.05 * top))
        if len(subjects) == 1:
            ax.legend()

    first = content.parts(judged[0], "ood")[0]
    scores = {m: [part["scores"] for part in content.parts(m, "ood")] for m in judged}
    known = list(dict.fromkeys(s for parts in scores.values() for s in parts[0]))[:8]
    rows = [(m, [_cell(_mean([part.get(s, {}).get("auroc") for part in scores[m]])) for s in known]) for m in judged]
    head = ["method", *map(label, known)]
    table = Table("AUROC of each score of uncertainty (higher is better)", head, rows, methods=True)
    figures = _each(content, "histograms", list(shown_of), draw, "ood_auroc")
    folded, alone = [Section("ood-scores", tables=[table], folded=True)], len(subjects) == 1
    yield Section("ood", {"name": first["name"]}, figures, small=not alone, parts=folded, folded=alone)


def _corrupted(content: Content, subjects: Sequence[str]) -> Iterator[Section]:
    judged = [m for m in subjects if content.parts(m, "corruptions")]
    if not judged:
        return
    figures = []
    for measure in ("accuracy", "nll"):

        def draw(ax: "Axes", method: str, style: dict[str, Any], measure: str = measure) -> tuple[float, float]:
            parts = [p["levels"] for p in content.parts(method, "corruptions")]
            mean, spread = _over_seeds([[row[measure] for row in part] for part in parts])
            levels = [row["severity"] for row in parts[0]]
            plots.line(ax, levels, mean, spread, **style)
            ax.set(xlabel="severity of the corruption", ylabel=label(measure), xticks=levels)
            return levels[-1], float(mean[-1])

        figures += _curves(content, f"corruption-{measure}", f"{label(measure)} by severity", judged, draw)
    found = {m: [part["by_corruption"] for part in content.parts(m, "corruptions")] for m in judged}
    cells = {m: {n: _mean([part.get(n) for part in parts]) for n in parts[0]} for m, parts in found.items()}
    names = [n for n in cells[judged[0]] if any(is_number(c.get(n)) for c in cells.values())][:40]
    head = ["method", *map(label, names)]
    rows = [(m, [_cell(cells[m].get(n)) for n in names]) for m in judged]
    table = Table("NLL by corruption, mean over severities (lower is better)", head, rows, methods=True)
    yield Section("corruption", pictures=figures, parts=[Section("corruptions", tables=[table], folded=True)])


def _members(content: Content, subjects: Sequence[str]) -> Iterator[Section]:
    figures, held = [], {m: content.parts(m, "sizes") for m in subjects}
    grown = [m for m in subjects if held[m] and len(held[m][0]) > 1]
    for measure in (content.score, "accuracy", "rmse"):
        drawn = [m for m in grown if measure in held[m][0][0]]

        def draw(ax: "Axes", method: str, style: dict[str, Any], measure: str = measure) -> tuple[float, float]:
            names = ("members", measure, f"{measure}_std")
            rows, _ = _over_seeds([[[row.get(n, 0.0) for n in names] for row in part] for part in held[method]])
            plots.ensemble_size([dict(zip(names, row)) for row in rows], measure=measure, ax=ax, **style)
            return rows[-1][0], rows[-1][1]

        figures += _curves(content, f"size-{measure}", f"{label(measure)} by number of members", drawn, draw)
    if figures:
        yield Section("size", pictures=figures)
    parts = {m: content.parts(m, "diversity") for m in subjects if content.parts(m, "diversity")}
    found = {m: d[0] | {"matrix": _over_seeds([s["matrix"] for s in d])[0]} for m, d in parts.items()}
    found = {m: d for m, d in found.items() if len(d["matrix"]) > 1}
    if found:
        apart = [
            abs(v) for d in found.values() for i, row in enumerate(d["matrix"]) for j, v in enumerate(row) if i != j
        ]

        def agreement(method: str, ax: "Axes") -> None:
            plots.agreement(found[method], scale=max(apart) or 1.0, ax=ax)

        several, measure = len(found) > 1, next(iter(found.values()))["measure"]
        about = {"measure": measure, "most": max(len(d["matrix"]) for d in found.values()), "of": len(found)}
        figures = _each(content, "agreement", list(found), agreement)
        yield Section("agreement", about, figures, small=several, folded=not several)


def _engine(content: Content) -> Section:
    parts, history, plans = [], content.results["history"], content.results["plans"]
    if "chosen" in content.results:
        parts.append(Section("choice", lines=[short(s, 400) for s in content.results["findings"][:40]]))
    below = content.results["settings"].get("below", {})
    if len(below) > 2:
        lines = [f"{short(name)}: {short(why, 300)}" for name, why in below.items()]
        parts.append(Section("budgets", lines=lines))
    figures = []
    for i, method in enumerate(m for m in content.methods if m in history):
        for of in ("loss", "validation"):
            if any(len(segment) > 1 for segment in history[method][of]):
                draw = partial(plots.training_curves, history[method], of=of)
                figures.append(picture(f"{of}-{i}", f"{of} of {short(method)}", draw, (190, 150), method=method))
    if figures:
        parts.append(Section("training", pictures=figures, small=True))
    rows = {m: content.row(m) for m in content.methods}
    names = [
        n for n in dict.fromkeys(n for r in rows.values() for n in r) if any(is_number(r.get(n)) for r in rows.values())
    ]
    head = ["measure", *map(short, rows)]
    made = [(label(short(n)), [_cell(r.get(n)) for r in rows.values()]) for n in names]
    parts.append(Section("measures", tables=[Table("All measures", head, made)]))
    trees = [(m, "\n".join(_tree(plans[m]["tree"]))) for m in content.methods if m in plans]
    if trees:
        parts.append(Section("plans", trees=trees))
    held = content.results["settings"].items()
    said = {n: v for n, v in held if n not in ("below", "seeds") and v not in (None, "", [], {})}
    said |= next((p["environment"] for p in plans.values()), {})
    settled = [(label(short(n)), [_cell(v if is_number(v) else _words(v), words=True)]) for n, v in said.items()]
    parts.append(Section("settings", tables=[Table("Settings", ["setting", "value"], settled)]))
    return Section("engine", parts=parts, folded=True)


def _tree(node: dict[str, Any], first: str = "", rest: str = "") -> Iterator[str]:
    yield first + node["label"]
    for i, child in enumerate(node["children"]):
        last = i == len(node["children"]) - 1
        yield from _tree(child, rest + ("└ " if last else "├ "), rest + ("  " if last else "│ "))


def _words(value: Any) -> str:
    match value:
        case dict():
            kept = {k: v for k, v in value.items() if v not in (None, [], "") and k != "kind"}
            inner = ", ".join(f"{k} {_words(v)}" for k, v in kept.items())
            return f"{value['kind']}({inner})" if "kind" in value else inner
        case list():
            return " ".join(map(_words, value))
    return str(value)
