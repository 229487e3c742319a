"""Parts of the page that only some evaluations have: how each class is told, and what each column does."""

from collections.abc import Iterator
from typing import Any
from xml.etree.ElementTree import Element

from choral.base.text import short
from choral.report.content import Content
from choral.report.figures import Panels
from choral.report.markup import Inside, element
from choral.report.panels import output_of, rarest
from choral.report.sections import frames, section
from choral.report.tables import label, number, table

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
            0, frames(drawn["precision"], {m: _note(e["classes"]) for m, e in drawn["precision"].data.items()})
        )
        text += (
            " The curve of the rarest class is the strong one: every threshold of its probability is a point on it. The dashed line is its "
            "share of the rows, which naming rows by lot would reach."
        )
    yield section("classes", "Classes", text, *parts)


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
    parts: list[Inside] = [frames(drawn["importance"], {}, large=True), element("div", curves, class_="frames"), made]
    yield section("importance", "What each column does", text, *parts)


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
