"""Tables of the page: every number is written with its full value beside it, for sorting and for checking."""

import math
from collections.abc import Sequence
from html import escape
from typing import Any

HIGHER = {"accuracy", "ood_auroc", "c_accuracy", "auroc", "aupr_out", "aupr_in"}
LOWER = {"nll", "ece", "brier", "rmse", "crps", "c_nll", "c_ece", "fpr95_out", "fpr95_in"} | {
    "corruption_error",
    "relative_corruption_error",
    "predict_flops",
    "parameters",
    "train_seconds",
}
LABELS = {
    "nll": "NLL",
    "ece": "ECE",
    "brier": "Brier",
    "rmse": "RMSE",
    "crps": "CRPS",
    "mutual_information": "mutual information",
    "coverage_95": "coverage 95 %",
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
    ["nll", "accuracy", "rmse", "ece", "brier", "crps", "coverage_95", "ood_auroc"]
    + ["c_accuracy", "c_nll", "c_ece", "corruption_error", "relative_corruption_error", "disagreement"]
    + ["members", "epochs", "parameters", "train_flops", "predict_flops", "train_seconds"]
)


def shown(value: Any) -> str:
    """Return a number as a person reads it.

    >>> shown(0.95768), shown(44850), shown(1207808000.0), shown(12.346), shown(None), shown(1.5e-7)
    ('0.9577', '44,850', '1.21 G', '12.35', '', '1.5e-07')
    """
    if value is None or isinstance(value, str):
        return value or ""
    size = abs(value)
    for scale, unit in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if size >= scale:
            return f"{value / scale:.3g} {unit}"
    if isinstance(value, int) or (size >= 1000 and float(value).is_integer()):
        return f"{int(value):,}"
    if size >= 10:
        return f"{value:.2f}" if size < 100 else f"{value:.1f}" if size < 1000 else f"{value:,.0f}"
    return f"{value:.4f}" if size >= 1e-3 or not size else f"{value:.2g}"


def number(value: Any, *, tag: str = "td", css: str = "") -> str:
    """Return an element that shows a number and holds its full value."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        return f"<{tag}></{tag}>" if value is None else f"<{tag}>{escape(str(value))}</{tag}>"
    mark = f' class="{css}"' if css else ""
    return f'<{tag}{mark} data-value="{value!r}">{shown(value)}</{tag}>'


def label(name: str) -> str:
    """Return a column's heading."""
    return LABELS.get(name, name.replace("_", " "))


def best_of(rows: Sequence[dict[str, Any]], column: str) -> Any:
    """Return the best value of a column, or None where no direction is better."""
    values = [r[column] for r in rows if isinstance(r.get(column), int | float)]
    if len(values) < 2 or column not in HIGHER | LOWER:
        return None
    return max(values) if column in HIGHER else min(values)


def table(columns: Sequence[str], rows: Sequence[dict[str, Any]], *, caption: str, heat: str | None = None) -> str:
    """Return a sortable table with the method at the left; the best value of each column is marked.

    Args:
        columns: keys of the numbers.
        rows: each with "method", and "before" for HTML in front of the name.
        caption: read out before the table.
        heat: "higher" or "lower": shade all cells by how good they are.
    """
    best = {c: best_of(rows, c) for c in columns}
    values = [r[c] for r in rows for c in columns if isinstance(r.get(c), int | float)] if heat else []
    head = "".join(f'<th scope="col"><button>{escape(label(c))}</button></th>' for c in columns)
    body = []
    for row in rows:
        cells = "".join(
            number(row.get(c), css="best" if row.get(c) is not None and row.get(c) == best[c] else "")
            if not heat
            else _shaded(row.get(c), values, heat)
            for c in columns
        )
        name = escape(row["method"])
        body.append(
            f'<tr data-method="{name}"><th scope="row" data-value="{name}">{row.get("before", "")}{name}</th>{cells}</tr>'
        )
    return (
        f'<p class="note caption">{escape(caption)}</p>'
        f'<div class="scroll" tabindex="0"><table class="sortable" aria-label="{escape(caption)}">'
        f'<thead><tr><th scope="col"><button>method</button></th>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _shaded(value: Any, values: Sequence[float], heat: str) -> str:
    if not isinstance(value, int | float):
        return "<td></td>"
    low, high = min(values), max(values)
    part = (value - low) / (high - low) if high > low else 0.0
    bad = 1 - part if heat == "higher" else part
    return f'<td class="heat" style="--heat: {bad:.2f}" data-value="{value!r}">{shown(value)}</td>'


def pairs(entries: dict[str, Any], *, caption: str) -> str:
    """Return a plain table of names and values."""
    rows = "".join(f'<tr><th scope="row">{escape(label(n))}</th>{number(v)}</tr>' for n, v in entries.items())
    return (
        f'<div class="scroll"><table class="pairs" aria-label="{escape(caption)}"><tbody>{rows}</tbody></table></div>'
    )
