"""HTML as a tree that escapes all text, and tables.

Markup as a tree: what is not an element is text, and text is escaped when the tree is written, here and nowhere else.

Tags and attribute names are written in this package's code. Everything else - names of methods, folders, classes, data -
can only become text or the value of an attribute. Scripts and styles are written as they are, so they may come from
this package's own files only; a policy with their hashes forbids all others to the browser.

Tables of the page: every number is written with its full value beside it, for sorting and for checking.
"""

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from html import escape
from typing import Any, TypeAlias
from xml.etree.ElementTree import Element

from choral.base.text import short, visible
from choral.report.reading import is_number

Inside: TypeAlias = "Element | str | int | float | Iterable[Inside] | None"
_VOID = frozenset({"meta", "link", "br", "img"})
_RAW = frozenset({"script", "style"})
_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9:-]*")


def element(tag: str, *inside: Inside, **attributes: str | bool | None) -> Element:
    """Return an element.

    Args:
        tag: its name.
        inside: elements and text, also nested in lists; None is nothing.
        attributes: `class_` is class and `data_value` is data-value; None and False are left out, True is empty.

    >>> written(element("p", "1 < 2 ", element("b", "so"), title='"'))
    '<p title="&quot;">1 &lt; 2 <b>so</b></p>'
    """
    given = {k.rstrip("_").replace("_", "-"): v for k, v in attributes.items() if v is not None and v is not False}
    made = Element(tag, {k: "" if v is True else str(v) for k, v in given.items()})
    put(made, *inside)
    return made


def put(parent: Element, *inside: Inside) -> None:
    """Add elements and text at the end of an element."""
    for part in inside:
        if part is None:
            continue
        if isinstance(part, Element):
            parent.append(part)
        elif isinstance(part, str | int | float):
            _add_text(parent, str(part))
        else:
            put(parent, *part)


def _add_text(parent: Element, text: str) -> None:
    if len(parent):
        parent[-1].tail = (parent[-1].tail or "") + text
    else:
        parent.text = (parent.text or "") + text


def written(root: Element) -> str:
    """Return an element as text that both HTML and XML readers understand."""
    return "".join(_pieces(root))


def _pieces(node: Element) -> Iterator[str]:
    yield f"<{_checked(node.tag)}"
    for name, value in node.items():
        assert not name.startswith("on"), f"{name}: behavior belongs into the script"
        assert name != "href" or value.startswith(("#", "data:")), f"a page refers to nothing outside: {value}"
        yield f' {_checked(name)}="{escape(visible(value))}"'
    yield ">"
    if node.tag in _VOID:
        return
    text = node.text or ""
    if node.tag in _RAW:
        assert "</" not in text and "<!--" not in text, f"a {node.tag} that would end early"  # noqa: PT018  # not a test
        yield text
    else:
        yield escape(visible(text), quote=False)
    for child in node:
        yield from _pieces(child)
        yield escape(visible(child.tail or ""), quote=False)
    yield f"</{node.tag}>"


def _checked(name: str) -> str:
    assert _NAME.fullmatch(name), f"{name!r} is no name of an element or attribute"
    return name


def rules_of(root: Element) -> str:
    """Move every style attribute below an element into a class; return the rules of these classes.

    A policy allows one style element by its hash, but style attributes only all or none.
    """
    classes: dict[str, str] = {}
    for node in root.iter():
        style = node.attrib.pop("style", None)
        if style is not None:
            assert not set("<{}\\") & set(style), f"not a list of declarations: {style}"
            own = classes.setdefault(style, f"k{len(classes)}")
            node.set("class", f"{node.get('class', '')} {own}".strip())
    return "\n".join(f".{own} {{ {style} }}" for style, own in classes.items())


def policy(*, script: str, style: str) -> str:
    """Return the Content-Security-Policy of a page that runs one script, has one style and fetches nothing."""
    parts = ["default-src 'none'", f"script-src {_hash(script)}", f"style-src {_hash(style)}", "img-src data:"]
    return "; ".join([*parts, "base-uri 'none'", "form-action 'none'"])


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


DASH = "\u2013"
HIGHER = {"accuracy", "exact_match", "ood_auroc", "c_accuracy", "auroc", "aupr_out", "aupr_in"}
LOWER = {
    "nll",
    "pinball",
    "loss",
    "ece",
    "brier",
    "rmse",
    "mae",
    "crps",
    "ranked_probability",
    "c_nll",
    "c_ece",
    "fpr95_out",
    "fpr95_in",
} | {
    "corruption_error",
    "relative_corruption_error",
    "predict_flops",
    "parameters",
    "train_seconds",
}
LABELS = {
    "nll": "NLL",
    "pinball": "pinball loss",
    "mae": "MAE",
    "exact_match": "exact match",
    "ranked_probability": "ranked probability score",
    "ece": "ECE",
    "brier": "Brier",
    "rmse": "RMSE",
    "crps": "CRPS",
    "mutual_information": "mutual information",
    "coverage_95": "coverage 95 %",
    "average_precision": "average precision",
    "ood_auroc": "AUROC, strange",
    "c_accuracy": "cAcc",
    "c_nll": "cNLL",
    "c_ece": "cECE",
    "corruption_error": "mCE",
    "relative_corruption_error": "rmCE",
    "train_flops": "training FLOPs",
    "predict_flops": "prediction FLOPs",
    "train_seconds": "training s",
    "predict_seconds": "prediction s",
    "max_probability": "max probability",
    "max_logit": "max logit",
    "variation_ratio": "variation ratio",
}
RANKED = (
    ["nll", "pinball", "loss", "accuracy", "exact_match", "rmse", "ece", "brier", "crps", "ranked_probability", "mae"]
    + ["coverage_95", "coverage", "width", "spread", "ood_auroc"]
    + ["c_accuracy", "c_nll", "c_ece", "corruption_error", "relative_corruption_error", "disagreement"]
    + ["members", "epochs", "parameters", "train_flops", "predict_flops", "train_seconds"]
)


def shown(value: int | float) -> str:
    """Return a number as a person reads it.

    >>> shown(0.95768), shown(44850), shown(1207808000.0), shown(12.346), shown(1.5e-7)
    ('0.9577', '44,850', '1.21 G', '12.35', '1.5e-07')
    """
    size = abs(value)
    for scale, unit in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if size >= scale:
            return f"{value / scale:.3g} {unit}"
    if isinstance(value, int) or (size >= 1000 and float(value).is_integer()):
        return f"{int(value):,}"
    if size >= 10:
        return f"{value:.2f}" if size < 100 else f"{value:.1f}" if size < 1000 else f"{value:,.0f}"
    return f"{value:.4f}" if size >= 1e-3 or not size else f"{value:.2g}"


def number(value: Any, *, tag: str = "td", css: str | None = None, style: str | None = None) -> Element:
    """Return an element that shows a number and holds its full value; what is no number is a dash, None is nothing."""
    if not is_number(value):
        return element(tag, None if value is None else DASH)
    return element(tag, shown(value), class_=css, style=style, data_value=repr(value))


def label(name: str) -> str:
    """Return a column's heading."""
    return LABELS.get(name, short(name.replace("_", " ")))


def best_of(rows: Sequence[dict[str, Any]], column: str) -> Any:
    """Return the best value of a column, or None where no direction is better."""
    values = [r[column] for r in rows if is_number(r.get(column))]
    if len(values) < 2 or column not in HIGHER | LOWER:
        return None
    return max(values) if column in HIGHER else min(values)


def table(
    columns: Sequence[str],
    rows: Sequence[dict[str, Any]],
    *,
    caption: str,
    heat: str | None = None,
    of: str = "method",
) -> list[Element]:
    """Return a sortable table with the method at the left; the best value of each column is marked.

    Args:
        columns: keys of the numbers.
        rows: each with "method" (or what `of` says), and "before" for elements in front of the name.
        caption: read out before the table.
        heat: "higher" or "lower": shade all cells by how good they are.
        of: what the rows are; those of anything but methods are not followed through the figures, and have no best ones.
    """
    best = {c: best_of(rows, c) if of == "method" else None for c in columns}
    values = [r[c] for r in rows for c in columns if is_number(r.get(c))] if heat else []

    def cell(value: Any, column: str) -> Element:
        if heat:
            return _shaded(value, values, heat)
        return number(value, css="best" if is_number(value) and value == best[column] else None)

    head = element("tr", [element("th", element("button", n), scope="col") for n in (of, *map(label, columns))])
    body = [
        element(
            "tr",
            element("th", row.get("before"), short(row[of]), scope="row", data_value=row[of]),
            [cell(row.get(c), c) for c in columns],
            data_method=row["method"] if of == "method" else None,
        )
        for row in rows
    ]
    made = element("table", element("thead", head), element("tbody", body), class_="sortable", aria_label=caption)
    return [element("p", caption, class_="note caption"), element("div", made, class_="scroll", tabindex="0")]


def _shaded(value: Any, values: Sequence[float], heat: str) -> Element:
    if not is_number(value):
        return number(value)
    low, high = min(values), max(values)
    part = (value - low) / (high - low) if high > low else 0.0
    bad = 1 - part if heat == "higher" else part
    return number(value, css="heat", style=f"--heat: {bad:.2f}")


def pairs(entries: dict[str, Any], *, caption: str) -> Element:
    """Return a plain table of names and values; a value may be a number or words."""

    def value(held: Any) -> Inside:
        return number(held) if held is None or is_number(held) else element("td", str(held))

    rows = [element("tr", element("th", label(n), scope="row"), value(v)) for n, v in entries.items()]
    made = element("table", element("tbody", rows), class_="pairs", aria_label=caption)
    return element("div", made, class_="scroll")
