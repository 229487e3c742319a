"""The page: one HTML file with its styles, script and pictures inside; nothing is ever fetched.

What every part of the page is made of: a section with its words, frames that stand side by side, a key of colors.

Parts of the page that only some evaluations have: how each class is told, and what each column does.

Write a report: page, figures and the numbers behind them.
"""

from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from choral.base.errors import InputError
from choral.base.text import short
from choral.corruptions import COMMON, EXTRA
from choral.engine.files import write_bytes, write_json
from choral.report.content import COSTS, Content, collect
from choral.report.figures import Panels, Picture, all_panels, pictures
from choral.report.markup import (
    RANKED,
    Inside,
    element,
    is_number,
    label,
    number,
    pairs,
    policy,
    rules_of,
    table,
    written,
)
from choral.report.panels import output_of, rarest
from choral.report.theme import DARK, LIGHT, SERIES, settings, variables


def _section(name: str, title: str, text: Inside, *parts: Inside) -> Element:
    """Return a section of the page."""
    return element("section", element("h2", title), element("p", text), *parts, id=name)


def _frames(panels: Panels, notes: dict[str, Inside], *, large: bool = False) -> Element:
    """Return the frames of all methods, each with its name and a note."""
    figures = [
        element(
            "figure",
            element("figcaption", short(m), " ", element("small", notes.get(m))),
            panels.inline(m),
            data_method=m,
        )
        for m in panels.data
    ]
    return element("div", figures, class_="frames large" if large else "frames")


def _key(*entries: tuple[str, str]) -> Element:
    """Return a key of colors: (name of the color, what it stands for)."""
    dots = [
        element("span", element("i", class_="dot"), text, style=f"--tint: var(--{color})") for color, text in entries
    ]
    return element("div", dots, class_="key")


_CLASSES = 50  # rows of the table of classes, at most
_COLUMNS = 40  # rows of the table of columns, at most


def sections_of(content: Content, drawn: dict[str, Panels]) -> Iterator[Element]:
    """Yield the sections that the content has numbers for."""
    yield from _classes(content, drawn)
    yield from _importance(content, drawn)


def _classes(content: Content, drawn: dict[str, Panels]) -> Iterator[Element]:
    judged = content.evaluated("classes")
    if not judged:
        return
    told = content.evaluation(judged[0])["classes"]
    of = {n: told.get(n) or [None] * len(told["names"]) for n in ("recall", "precision", "average_precision")}
    rows = [
        {"class": name, "rows": told["counts"][i]} | {n: held[i] for n, held in of.items()}
        for i, name in enumerate(told["names"][:_CLASSES])
    ]
    several = f" of {short(judged[0])}" if len(judged) > 1 else ""
    made = table(["rows", *of], rows, caption=f"Each class{several}, told from all others", of="class")
    parts: list[Inside] = [made]
    text = "How many rows of a class are found (recall), and how many that are called so belong to it (precision)."
    if "precision" in drawn:
        parts.insert(
            0, _frames(drawn["precision"], {m: _note(e["classes"]) for m, e in drawn["precision"].data.items()})
        )
        text += (
            " The curve of the rarest class is the strong one: every threshold of its probability is a point on it. The dashed line is its "
            "share of the rows, which naming rows by lot would reach."
        )
    yield _section("classes", "Classes", text, *parts)


def _note(told: dict[str, Any]) -> Inside:
    place = rarest(told)
    if place is None or not told.get("average_precision"):
        return None
    return [
        f"{short(told['names'][place], most=24)}: average precision ",
        number(told["average_precision"][place], tag="span"),
    ]


def _importance(content: Content, drawn: dict[str, Panels]) -> Iterator[Element]:
    if "importance" not in drawn:
        return
    method = next(iter(drawn["importance"].data))
    found = content.evaluation(method)["importance"]
    columns, measure = found["columns"], found["measure"]
    measures = [measure, *(n for n in columns[0]["worse"] if n != measure)]
    rows = [
        {"column": r["column"]} | r["worse"] | {"lowest": min(alone), "highest": max(alone)}
        for r in columns[:_COLUMNS]
        for alone in [r["members"][measure]]
    ]
    first = label(measure)
    text = (
        f"How much worse {first} on the test rows gets when the cells of one column are exchanged between rows: bars for the ensemble, lines from "
        "its lowest to its highest member. Columns that say the same share their importance. Below: the mean prediction "
        "when every row has the same value there, pale lines for members."
    )
    caption = f"Scores worse by, and {first} of the lowest and highest member; the most important first"
    made = table([*measures, "lowest", "highest"], rows, caption=caption, of="column")
    curves = [_curve(p) for name, p in drawn.items() if name.startswith("dependence-")]
    parts: list[Inside] = [_frames(drawn["importance"], {}, large=True), element("div", curves, class_="frames"), made]
    yield _section("importance", "What each column does", text, *parts)


def _curve(panels: Panels) -> list[Element]:
    return [
        element(
            "figure",
            element("figcaption", short(curve["column"]), " ", element("small", _predicted(curve))),
            panels.inline(method),
            data_method=method,
        )
        for method, curve in panels.data.items()
    ]


def _predicted(curve: dict[str, Any]) -> str:
    """Return what a curve shows, in words."""
    if len(curve["outputs"]) == 1:
        return "mean prediction"
    return f"probability of {short(curve['outputs'][output_of(curve)], most=20)}"


OOD_SCORES = ("max_probability", "max_logit", "entropy", "mutual_information", "variation_ratio") + (
    "variance",
    "epistemic",
    "aleatoric",
)
OOD_MEASURES = {"auroc": "AUROC", "aupr_out": "AUPR", "fpr95_out": "FPR95"}


def render(content: Content, pictures: Sequence[Picture], panels: Sequence[Panels]) -> str:
    """Return the page as text."""
    drawn: dict[str, list[Picture]] = {}
    for picture in pictures:
        drawn.setdefault(picture.section, []).append(picture)
    frames = {p.name: p for p in panels}
    sections = [
        *_ranked(content, drawn),
        *_calibration(content, drawn, frames),
        *sections_of(content, frames),
        *_strange(content, frames),
        *_corrupted(content, drawn),
        *_members(content, drawn, frames),
        *_training(content, drawn, frames),
        *_settings(content),
    ]
    title = short(content.title, most=200)
    body = element(
        "body",
        element(
            "header",
            element("h1", title),
            element("p", _lead(content), class_="lead"),
            found_in_words(content),
            _facts(content),
            class_="top",
        ),
        _legend(content),
        element("main", sections),
        element("footer", "Made by choral. Every number on this page is in report.json; the pictures are in figures/."),
    )
    return _document(title, body)


def _document(title: str, body: Element) -> str:
    """Return the whole page around a body, with the policy that lets only its own script and style in."""
    colors = f":root {{ {variables(LIGHT)} }} @media (prefers-color-scheme: dark) {{ :root {{ {variables(DARK)} }} }}"
    style = f"{colors}\n{_part('style.css')}\n{rules_of(body)}\n"
    script = _part("script.js")
    body.append(element("script", script))
    security = element("meta", content=policy(script=script, style=style))
    security.attrib = {"http-equiv": "Content-Security-Policy", **security.attrib}
    head = element(
        "head",
        element("meta", charset="utf-8"),
        security,
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("link", rel="icon", href="data:,"),
        element("style", style),
    )
    return f"<!doctype html>{written(element('html', head, body, lang='en'))}\n"


def _part(name: str) -> str:
    return files("choral.report").joinpath(name).read_text(encoding="utf8")


def _lead(content: Content) -> Inside:
    settings = content.results["settings"]
    parts: list[Inside] = []
    if "epochs" in settings:
        equal = " epochs of one network" + (
            ", counted in operations. " if settings.get("equal") == "operations" else ". "
        )
        parts.append(["Every method had a budget of ", number(settings["epochs"], tag="span"), equal])
    if "train_rows" in settings:
        rows = [number(settings.get(n), tag="span") for n in ("train_rows", "test_rows")]
        parts.append([rows[0], " training rows, ", rows[1], " test rows. "])
    if not content.evaluations and not content.left_out:
        parts.append(
            "Nothing has been evaluated yet: choral evaluate RUN DATA --keep adds what is measured on test data. "
        )
    if content.left_out:
        parts.append(f"Left out, because the folder does not hold there what it should: {_listed(content.left_out)}.")
    return parts


def found_in_words(content: Content) -> Inside:
    """Return what a comparison found, in words: what to use, large, and a line for each method."""
    said = content.results.get("findings")
    if not isinstance(said, list) or not said or not all(isinstance(s, str) for s in said):
        return None
    lines = [element("li", short(s, most=400)) for s in said[1:41]]
    return element(
        "div",
        element("p", short(said[0], most=400), class_="advice"),
        element("ul", lines, class_="words") if lines else None,
        class_="found",
    )


def _listed(places: Sequence[str], most: int = 5) -> str:
    more = f" and {len(places) - most} more" if len(places) > most else ""
    return ", ".join(short(p) for p in places[:most]) + more


def _facts(content: Content) -> Inside:
    wanted = {
        "nll": "lowest NLL",
        "pinball": "lowest pinball loss",
        "loss": "lowest loss",
        "accuracy": "highest accuracy",
        "rmse": "lowest RMSE",
        "ece": "lowest ECE",
        "ood_auroc": "best at strange inputs (AUROC)",
        "c_nll": "lowest NLL under corruption",
        "train_seconds": "quickest to train (seconds)",
    }
    items = []
    for name, what in wanted.items():
        rows = [r for r in content.results["rows"] if is_number(r.get(name))]
        if rows:
            best = (max if name in ("accuracy", "ood_auroc") else min)(rows, key=lambda r: r[name])
            several = len(content.methods) > 1
            text = element("span", what if several else label(name), class_="what")
            who = element("span", short(best["method"]), class_="who") if several else None
            items.append(element("li", text, number(best[name], tag="span", css="value"), who))
    return element("ul", items, class_="facts") if items else None


def _tint(content: Content, method: str) -> str:
    place = content.methods.index(method)
    return f"--tint: var(--{f's{place}' if place < SERIES else 'other'})"


def _legend(content: Content) -> Inside:
    if len(content.methods) < 2:
        return None
    chips = [
        element(
            "button",
            element("i"),
            short(m),
            class_="chip",
            aria_pressed="false",
            data_method=m,
            style=_tint(content, m),
        )
        for m in content.methods
    ]
    return element("nav", element("div", chips), class_="legend", aria_label="Follow a method through all figures")


def _pictures(content: Content, found: Sequence[Picture]) -> Inside:
    figures = [element("figure", element("figcaption", p.title), p.inline(content.methods), id=p.name) for p in found]
    return element("div", figures, class_="wide") if figures else None


def _noted(content: Content, name: str, text: str) -> dict[str, Inside]:
    """Return for each method a measure of its row with its label, to stand beside its name."""
    return {
        m: [text, " ", number(content.row(m)[name], tag="span")]
        for m in content.methods
        if content.row(m).get(name) is not None
    }


def _ranked(content: Content, drawn: dict[str, list[Picture]]) -> Iterator[Element]:
    places = {e["method"]: e for e in content.results["ranking"]}
    rows = []
    for method in content.methods:
        entry = places[method]
        stars = [
            [
                element(
                    "span", "\u2605", class_="star", title=f"on the front of {label(content.score)} and {COSTS[c]}"
                ),
                " ",
            ]
            for c in entry["pareto"][:1]
        ]
        rank = f"{entry['rank']}. " if entry["rank"] else None
        dot = element("span", class_="dot", style=_tint(content, method))
        rows.append(content.row(method) | {"before": [dot, " ", rank, stars] if len(places) > 1 else None})
    columns = [c for c in RANKED if any(r.get(c) is not None for r in rows)]
    chosen = "chosen" in content.results
    several = len(rows) > 1 and not chosen
    text = "What was measured on the test rows, and what it cost" + (", with all that was tried." if chosen else ".")
    if several and content.score in columns:
        score = label(content.score)
        words = "negative log likelihood (NLL)" if content.score == "nll" else score
        text = (
            f"Ranked by {words} on the test rows. A star marks the Pareto front: no other method is at "
            f"least as good in both {score} and cost. Press a heading to sort; press a method above to follow it through every "
            "figure."
        )
    yield _section(
        "ranking",
        "Methods at equal budget" if several else "Scores",
        text,
        table(columns, rows, caption="All methods, best first"),
    )
    if "cost" in drawn:
        text = "Lower and further left is better. Ringed points joined by the dashed line are the Pareto front."
        yield _section("cost", f"Cost against {label(content.score)}", text, _pictures(content, drawn["cost"]))


def _calibration(content: Content, drawn: dict[str, list[Picture]], frames: dict[str, Panels]) -> Iterator[Element]:
    if "reliability" in frames:
        key = _key(
            ("accent", "as sure as it is right (pale: few rows)"), ("outside", "too sure"), ("s2", "not sure enough")
        )
        text = "Is a prediction made with 80 % confidence right 80 times in 100? Bars that are blue up to the dashed line are calibrated."
        yield _section(
            "calibration", "Reliability", text, key, _frames(frames["reliability"], _noted(content, "ece", "ECE"))
        )
    if "intervals" in frames:
        level = next(iter(frames["intervals"].data.values()))["intervals"]["level"]
        text = (
            f"Central {level:.0%} intervals of some test rows in order of the predicted mean (line). Dark points are targets inside "
            "their interval, orange ones outside. Below: how often targets fall into intervals of every level; on the dashed "
            "line the promise is kept."
        )
        notes = _noted(content, "coverage_90", "covers")
        parts = [_frames(frames["intervals"], notes, large=True), _pictures(content, drawn.get("calibration", []))]
        yield _section("calibration", "Intervals and their coverage", text, *parts)


def _strange(content: Content, frames: dict[str, Panels]) -> Iterator[Element]:
    judged = content.evaluated("ood")
    parts: list[Inside] = []
    if "confidence" in frames:
        outside = [("outside", "strange rows (down)")] if judged else []
        key = _key(("accent", "test rows (up)" if judged else "test rows"), *outside)
        parts = [key, _frames(frames["confidence"], _noted(content, "ood_auroc", "AUROC"))]
    if judged:
        first = content.evaluation(judged[0])["ood"]
        parts += _ood_tables(content, judged)
        text: list[Inside] = [
            "Does it know what it does not know? The strange inputs (",
            number(first.get("rows"), tag="span"),
        ]
        yield _section("strange", "Familiar and strange inputs", [*text, f" rows) are {first['name']}."], *parts)
    elif parts:
        yield _section("strange", "How sure it is", "Shares of test rows.", *parts)


def _ood_tables(content: Content, methods: Sequence[str]) -> list[Inside]:
    """Return the tabs that choose a measure, and a table for each."""
    known = {s for m in methods for s in content.evaluation(m)["ood"]["scores"]}
    tabs, tables = [], []
    for i, (measure, name) in enumerate(OOD_MEASURES.items()):
        rows = [
            {"method": m} | {s: v.get(measure) for s, v in content.evaluation(m)["ood"]["scores"].items()}
            for m in methods
        ]
        better = "lower" if measure.startswith("fpr") else "higher"
        caption = f"{name} of each score ({better} is better); strange rows are the ones to find"
        made = table([s for s in OOD_SCORES if s in known], rows, caption=caption, heat=better)
        tables.append(element("div", made, id=f"ood-{measure}", hidden=i > 0))
        pressed = "false" if i else "true"
        tabs.append(element("button", name, class_="chip", aria_pressed=pressed, data_shows=f"ood-{measure}"))
    return [element("div", tabs, class_="tabs", role="group", aria_label="Measure"), *tables]


def _corrupted(content: Content, drawn: dict[str, list[Picture]]) -> Iterator[Element]:
    methods = content.evaluated("corruptions")
    if not methods:
        return
    first = content.evaluation(methods[0])["corruptions"]
    rows = []
    for method in methods:
        cells = content.evaluation(method)["corruptions"]["by_corruption"]
        rows.append({"method": method} | cells)
    text: list[Inside] = [
        f"Means over {len(first['table'])} common corruptions of ",
        number(first.get("rows"), tag="span"),
        " test images at five severities. Curves that stay flat are robust.",
    ]
    errors = content.results.get("corruption_errors")
    if errors:
        baseline = short(str(errors["baseline"]))
        text.append(f" In the first table, mCE and rmCE are relative to {baseline}, which has 1.")
    order = [c for c in COMMON + EXTRA if c in first["table"]]
    made = table(order, rows, caption="NLL by corruption, mean over severities (lower is better)", heat="lower")
    yield _section("corruption", "Corrupted inputs", text, _pictures(content, drawn.get("corruption", [])), made)


def _members(content: Content, drawn: dict[str, list[Picture]], frames: dict[str, Panels]) -> Iterator[Element]:
    if "size" in drawn:
        text = "What each further member brings, added in the order the plan collects them, all draws of a stochastic member at once."
        yield _section("size", "Ensemble size", text, _pictures(content, drawn["size"]))
    if "diversity" in frames:
        measure = next(iter(frames["diversity"].data.values()))["diversity"]["measure"]
        if measure == "disagreement":
            text = "How often two members name different classes: each row and column is a member, stronger color means more often, the strongest being the most of that method."
            notes = _noted(content, "disagreement", "mean")
        else:
            text = (
                "How alike the members' errors are: each row and column is a member, stronger color means more alike."
            )
            notes = _noted(content, "residual_correlation", "mean")
        yield _section("diversity", "Diversity", text, _frames(frames["diversity"], notes))
    if "map" in drawn:
        text = (
            "Members as points, by what they predict for the same test rows: points far apart are different functions. "
            "Paths join members that one training passed through, from the square onwards."
        )
        yield _section("map", "Function space", text, _pictures(content, drawn["map"]))


def _loss_title(history: dict[str, Any]) -> str:
    watched = history.get("validation") and history.get("measure") == "nll"
    return "training loss, and nll of held-out points (broken)" if watched else "training loss"


def _training(content: Content, drawn: dict[str, list[Picture]], frames: dict[str, Panels]) -> Iterator[Element]:
    plans = content.results["plans"]
    cards = []
    for method in (m for m in content.methods if m in plans):
        pair = [
            element("figure", element("figcaption", what), frames[name].inline(method))
            for name, what in (
                ("rate", "learning rate, one branch"),
                ("loss", _loss_title(content.results["history"].get(method, {}))),
            )
            if name in frames and method in frames[name].data
        ]
        plan = plans[method]
        many = " member, " if plan.get("members") == 1 else " members, "
        counts: list[Inside] = [
            number(plan.get("members"), tag="span"),
            many,
            number(plan.get("epochs"), tag="span"),
            " epochs",
        ]
        heading = element("h3", short(method), " ", element("small", counts, class_="note"))
        tree = element("pre", "\n".join(_lines(plan["tree"])))
        cards.append(
            element("div", heading, element("div", pair, class_="pair"), tree, class_="card", data_method=method)
        )
    if cards:
        text = (
            "The plan of each method as a tree, its learning rate (triangles: a member is kept), and the losses it had."
        )
        yield _section("plans", "Plans", text, element("div", cards, class_="cards"))
    if "training" in drawn:
        text = "Epochs are counted over all networks in the order they were trained."
        yield _section("training", "Operations and sparsity", text, _pictures(content, drawn["training"]))


def _lines(node: dict[str, Any], first: str = "", rest: str = "") -> Iterator[str]:
    yield first + node["label"]
    below = node["children"]
    for i, child in enumerate(below):
        last = i == len(below) - 1
        yield from _lines(child, rest + ("└ " if last else "├ "), rest + ("  " if last else "│ "))


def _settings(content: Content) -> Iterator[Element]:
    entries: dict[str, Any] = {}
    for name, value in content.results["settings"].items():
        entries[name] = _words(value)
    environments = [p["environment"] for p in content.results["plans"].values()]
    if environments:
        entries |= environments[0]
    if entries:
        yield _section("settings", "Settings", "What all methods shared.", pairs(entries, caption="Settings"))


def _words(value: Any) -> Any:
    if isinstance(value, dict):
        inner = ", ".join(f"{k}={_words(v)}" for k, v in value.items() if v is not None and k != "kind")
        return f"{value['kind']}({inner})" if "kind" in value else inner
    if isinstance(value, list):
        return " ".join(str(_words(v)) for v in value)
    return value


_FILES = (".html", ".htm", ".csv", ".tsv", ".json", ".pdf", ".png", ".svg", ".md", ".txt", ".xlsx", ".parquet")


def write_report(folder: str | Path, *, out: str | Path | None = None) -> Path:
    """Write report.html, figures/ and report.json from a run, a comparison or a folder of runs; return the page's path.

    The page holds everything it needs and asks the network for nothing. Figures are also written as SVG (light and dark)
    and PNG. Every number on the page is in the report.json beside it.

    Args:
        folder: what `choral.fit` or `choral.compare` was given as run_dir.
        out: the folder to write to; the run's own if None.
    """
    folder = Path(folder)
    place = folder if out is None else Path(out)
    if place.is_file() or (place.suffix.lower() in _FILES and not place.is_dir()):
        raise InputError(
            f"out is {place}, which names a file; a report is a folder with report.html, figures and report.json: give one, such as "
            f"{place.with_suffix('')}."
        )
    content = collect(folder)
    drawn, frames = pictures(content), all_panels(content)
    with settings():
        page = render(content, drawn, frames)
        parts: list[Picture | Panels] = [*drawn, *frames]
        for part in parts:
            for name, data in part.files():
                write_bytes(place / "figures" / name, data, within=place)
    write_json(place / "report.json", content.results, within=place)
    write_bytes(place / "report.html", page.encode(), within=place)
    return place / "report.html"
