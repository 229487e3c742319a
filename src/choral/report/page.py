"""The page: one HTML file with its styles, script and pictures inside; nothing is ever fetched."""

from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from choral.corruptions import COMMON, EXTRA
from choral.report.content import COSTS, Content
from choral.report.figures import Panels, Picture
from choral.report.tables import RANKED, label, number, pairs, table
from choral.report.theme import DARK, LIGHT, SERIES, variables

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
        *_strange(content, frames),
        *_corrupted(content, drawn),
        *_members(content, drawn, frames),
        *_training(content, drawn, frames),
        *_settings(content),
    ]
    colours = f":root {{ {variables(LIGHT)} }} @media (prefers-color-scheme: dark) {{ :root {{ {variables(DARK)} }} }}"
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<title>{escape(content.title)}</title><link rel="icon" href="data:,">',
            f"<style>{colours}\n{_part('style.css')}</style></head><body>",
            f'<header class="top"><h1>{escape(content.title)}</h1><p class="lead">{_lead(content)}</p>',
            _facts(content),
            "</header>",
            _legend(content),
            "<main>",
            *sections,
            "</main>",
            "<footer>Made by choral. Every number on this page is in results.json; the pictures are in figures/.</footer>",
            f"<script>{_part('script.js')}</script></body></html>",
        ]
    )


def _part(name: str) -> str:
    return files("choral.report").joinpath(name).read_text(encoding="utf8")


def _section(name: str, title: str, text: str, *parts: str) -> str:
    return f'<section id="{name}"><h2>{title}</h2><p>{text}</p>{"".join(parts)}</section>'


def _lead(content: Content) -> str:
    settings = content.results["settings"]
    parts = []
    if "epochs" in settings:
        parts.append(f"Every method had a budget of {number(settings['epochs'], tag='span')} epochs.")
    if "train_rows" in settings:
        rows = (number(settings[n], tag="span") for n in ("train_rows", "test_rows"))
        parts.append("{} training rows, {} test rows.".format(*rows))
    if not content.results["evaluation"]:
        parts.append(
            "Nothing has been evaluated yet: choral evaluate RUN DATA --keep adds what is measured on test data."
        )
    return " ".join(parts)


def _facts(content: Content) -> str:
    wanted = {
        "nll": "lowest NLL",
        "accuracy": "highest accuracy",
        "rmse": "lowest RMSE",
        "ece": "lowest ECE",
        "ood_auroc": "best at strange inputs (AUROC)",
        "c_nll": "lowest NLL under corruption",
        "train_seconds": "quickest to train (seconds)",
    }
    items = []
    for name, what in wanted.items():
        rows = [r for r in content.results["rows"] if isinstance(r.get(name), int | float)]
        if rows:
            best = (max if name in ("accuracy", "ood_auroc") else min)(rows, key=lambda r: r[name])
            text = what if len(content.methods) > 1 else label(name)
            who = f'<span class="who">{escape(best["method"])}</span>' if len(content.methods) > 1 else ""
            items.append(f'<li><span class="what">{text}</span>{number(best[name], tag="span", css="value")}{who}</li>')
    return f'<ul class="facts">{"".join(items)}</ul>' if items else ""


def _tint(content: Content, method: str) -> str:
    place = content.methods.index(method)
    return f"--tint: var(--{f's{place}' if place < SERIES else 'other'})"


def _legend(content: Content) -> str:
    if len(content.methods) < 2:
        return ""
    chips = "".join(
        f'<button class="chip" aria-pressed="false" data-method="{escape(m)}" style="{_tint(content, m)}"><i></i>{escape(m)}</button>'
        for m in content.methods
    )
    return f'<nav class="legend" aria-label="Follow a method through all figures"><div>{chips}</div></nav>'


def _pictures(found: Sequence[Picture]) -> str:
    figures = "".join(
        f'<figure id="{p.name}"><figcaption>{escape(p.title)}</figcaption>{p.inline()}</figure>' for p in found
    )
    return f'<div class="wide">{figures}</div>' if found else ""


def _frames(panels: Panels, notes: dict[str, str], *, large: bool = False) -> str:
    figures = "".join(
        f'<figure data-method="{escape(m)}"><figcaption>{escape(m)} <small>{notes.get(m, "")}</small></figcaption>'
        f"{panels.inline(m)}</figure>"
        for m in panels.data
    )
    return f'<div class="frames{" large" if large else ""}">{figures}</div>'


def _noted(content: Content, name: str, text: str) -> dict[str, str]:
    """Return for each method a measure of its row with its label, to stand beside its name."""
    return {
        m: f"{text} {number(content.row(m)[name], tag='span')}"
        for m in content.methods
        if content.row(m).get(name) is not None
    }


def _ranked(content: Content, drawn: dict[str, list[Picture]]) -> Iterator[str]:
    places = {e["method"]: e for e in content.results["ranking"]}
    rows = []
    for method in content.methods:
        entry = places[method]
        stars = "".join(
            f'<span class="star" title="on the front of NLL and {COSTS[c]}">&#9733;</span> '
            for c in entry["pareto"][:1]
        )
        rank = f"{entry['rank']}. " if entry["rank"] else ""
        dot = f'<span class="dot" style="{_tint(content, method)}"></span> '
        rows.append(content.row(method) | ({"before": f"{dot}{rank}{stars}"} if len(places) > 1 else {}))
    columns = [c for c in RANKED if any(r.get(c) is not None for r in rows)]
    several = len(rows) > 1
    text = "What was measured on the test rows, and what it cost."
    if several and "nll" in columns:
        text = (
            "Ranked by negative log likelihood (NLL) on the test rows. A star marks the Pareto front: no other method is at "
            "least as good in both NLL and cost. Press a heading to sort; press a method above to follow it through every "
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
        yield _section("cost", "Cost against NLL", text, _pictures(drawn["cost"]))


def _calibration(content: Content, drawn: dict[str, list[Picture]], frames: dict[str, Panels]) -> Iterator[str]:
    if "reliability" in frames:
        key = (
            '<div class="key"><span style="--tint: var(--accent)"><i class="dot"></i>as sure as it is right (pale: few rows)</span>'
            '<span style="--tint: var(--outside)"><i class="dot"></i>too sure</span>'
            '<span style="--tint: var(--s2)"><i class="dot"></i>not sure enough</span></div>'
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
        parts = [_frames(frames["intervals"], notes, large=True), _pictures(drawn.get("calibration", []))]
        yield _section("calibration", "Intervals and their coverage", text, *parts)


def _strange(content: Content, frames: dict[str, Panels]) -> Iterator[str]:
    judged = content.evaluated("ood")
    parts = []
    if "confidence" in frames:
        inside = f'<span style="--tint: var(--accent)"><i class="dot"></i>test rows{" (up)" if judged else ""}</span>'
        outside = '<span style="--tint: var(--outside)"><i class="dot"></i>strange rows (down)</span>' if judged else ""
        notes = _noted(content, "ood_auroc", "AUROC")
        parts = [f'<div class="key">{inside}{outside}</div>', _frames(frames["confidence"], notes)]
    if judged:
        first = content.evaluation(judged[0])["ood"]
        tabs, tables = [], []
        for i, (measure, name) in enumerate(OOD_MEASURES.items()):
            rows = [
                {"method": m} | {s: v[measure] for s, v in content.evaluation(m)["ood"]["scores"].items()}
                for m in judged
            ]
            better = "lower" if measure.startswith("fpr") else "higher"
            caption = f"{name} of each score ({better} is better); strange rows are the ones to find"
            order = [s for s in OOD_SCORES if s in first["scores"]]
            made = table(order, rows, caption=caption, heat=better)
            tables.append(f'<div id="ood-{measure}"{" hidden" if i else ""}>{made}</div>')
            pressed = "false" if i else "true"
            tabs.append(f'<button class="chip" aria-pressed="{pressed}" data-shows="ood-{measure}">{name}</button>')
        parts += [f'<div class="tabs" role="group" aria-label="Measure">{"".join(tabs)}</div>', *tables]
        rows_text = number(first["rows"], tag="span")
        text = f"Does it know what it does not know? The strange inputs ({rows_text} rows) are {escape(first['name'])}."
        yield _section("strange", "Familiar and strange inputs", text, *parts)
    elif parts:
        yield _section("strange", "How sure it is", "Shares of test rows.", *parts)


def _corrupted(content: Content, drawn: dict[str, list[Picture]]) -> Iterator[str]:
    methods = content.evaluated("corruptions")
    if not methods:
        return
    first = content.evaluation(methods[0])["corruptions"]
    rows = []
    for method in methods:
        cells = content.evaluation(method)["corruptions"]["by_corruption"]
        rows.append({"method": method} | cells)
    text = (
        f"Means over {len(first['table'])} common corruptions of {number(first['rows'], tag='span')} test images at five "
        "severities. Curves that stay flat are robust."
    )
    errors = content.results.get("corruption_errors")
    if errors:
        text += f" In the first table, mCE and rmCE are relative to {escape(errors['baseline'])}, which has 1."
    order = [c for c in COMMON + EXTRA if c in first["table"]]
    made = table(order, rows, caption="NLL by corruption, mean over severities (lower is better)", heat="lower")
    yield _section("corruption", "Corrupted inputs", text, _pictures(drawn.get("corruption", [])), made)


def _members(content: Content, drawn: dict[str, list[Picture]], frames: dict[str, Panels]) -> Iterator[str]:
    if "size" in drawn:
        text = "What each further member brings, added in the order the plan collects them, all draws of a stochastic member at once."
        yield _section("size", "Ensemble size", text, _pictures(drawn["size"]))
    if "diversity" in frames:
        measure = next(iter(frames["diversity"].data.values()))["diversity"]["measure"]
        if measure == "disagreement":
            text = "How often two members name different classes: each row and column is a member, stronger colour means more often, the strongest being the most of that method."
            notes = _noted(content, "disagreement", "mean")
        else:
            text = (
                "How alike the members' errors are: each row and column is a member, stronger colour means more alike."
            )
            notes = _noted(content, "residual_correlation", "mean")
        yield _section("diversity", "Diversity", text, _frames(frames["diversity"], notes))
    if "map" in drawn:
        text = (
            "Members as points, by what they predict for the same test rows: points far apart are different functions. "
            "Paths join members that one training passed through, from the square onwards."
        )
        yield _section("map", "Function space", text, _pictures(drawn["map"]))


def _training(content: Content, drawn: dict[str, list[Picture]], frames: dict[str, Panels]) -> Iterator[str]:
    plans = content.results["plans"]
    cards = []
    for method in (m for m in content.methods if m in plans):
        pair = "".join(
            f"<figure><figcaption>{what}</figcaption>{frames[name].inline(method)}</figure>"
            for name, what in (("rate", "learning rate, one branch"), ("loss", "training loss"))
            if name in frames and method in frames[name].data
        )
        plan = plans[method]
        many = "" if plan["members"] == 1 else "s"
        counts = f"{number(plan['members'], tag='span')} member{many}, {number(plan['epochs'], tag='span')} epochs"
        cards.append(
            f'<div class="card" data-method="{escape(method)}"><h3>{escape(method)} <small class="note">{counts}</small></h3>'
            f'<div class="pair">{pair}</div><pre>{escape(chr(10).join(_lines(plan["tree"])))}</pre></div>'
        )
    if cards:
        text = (
            "The plan of each method as a tree, its learning rate (triangles: a member is kept), and the losses it had."
        )
        yield _section("plans", "Plans", text, f'<div class="cards">{"".join(cards)}</div>')
    if "training" in drawn:
        text = "Epochs are counted over all networks in the order they were trained."
        yield _section("training", "Operations and sparsity", text, _pictures(drawn["training"]))


def _lines(node: dict[str, Any], first: str = "", rest: str = "") -> Iterator[str]:
    yield first + node["label"]
    below = node["children"]
    for i, child in enumerate(below):
        last = i == len(below) - 1
        yield from _lines(child, rest + ("└ " if last else "├ "), rest + ("  " if last else "│ "))


def _settings(content: Content) -> Iterator[str]:
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
