"""A plan as a tree, in words: for people (`show`) and for machines (`tree`)."""

from dataclasses import fields, is_dataclass
from typing import Any

from choral.base.values import Value
from choral.plan.cost import cost
from choral.plan.phases import Every, Fork, Phase, Repeat, Seq, Train
from choral.plan.variants import Space


def _brief(item: Any) -> str:
    if isinstance(item, Every):
        spans = [f" from {item.start * 100:g} %"] * (item.start > 0) + [f" until {item.stop * 100:g} %"] * (
            item.stop < 1
        )
        return f"every {item.count} {item.unit}{''.join(spans)}: {_brief(item.phase)}"
    if isinstance(item, Space):
        return "; ".join(f"{name} {_brief(span)}" for name, span in item.spans)
    if isinstance(item, Value) and is_dataclass(item):
        shown = [
            f"{f.name}={_brief(getattr(item, f.name))}" for f in fields(item) if getattr(item, f.name) != f.default
        ]
        return f"{type(item).__name__}({', '.join(shown)})"
    if isinstance(item, tuple):
        return "(" + ", ".join(_brief(i) for i in item) + ")"
    return f"{item:g}" if isinstance(item, float) else str(item)


def label(node: Phase) -> str:
    """Return one line for a node of a plan.

    >>> from choral.plan.schedules import Cosine
    >>> label(Train(epochs=5, schedule=Cosine(0.1)))
    'Train 5 epochs, Cosine(start=0.1), SGD(), batch 128'
    """
    if isinstance(node, Seq):
        return "seq"
    if isinstance(node, Repeat):
        return f"repeat {node.times}x"
    if isinstance(node, Fork):
        own = f": {_brief(node.space)}" if node.space else ""
        own += f", {len(node.variants)} variants of {', '.join(sorted(node.varied))}" if node.variants else ""
        return f"fork into {node.branches}{own}"
    if isinstance(node, Train):
        parts = [
            f"Train {node.epochs} epochs",
            _brief(node.schedule),
            _brief(node.optimizer),
            f"batch {node.batch_size or 'chosen for the data'}",
        ]
        parts += ["optimizer memory carried"] if node.memory == "carried" else []
        parts += [_brief(rule) for rule in node.every]
        parts += [_brief(node.select)] if node.select else []
        return ", ".join(parts)
    return _brief(node)


def tree(node: Phase) -> dict[str, Any]:
    """Return the plan as nested plain dicts: label, epochs, members and children of every node."""
    total = cost(node)
    return {
        "label": label(node),
        "epochs": total.epochs,
        "networks": total.networks,
        "children": [tree(c) for c in node.children],
    }


def lines(node: Phase) -> list[str]:
    """Return the tree as text lines, epochs of every branch at the right."""
    rows: list[tuple[str, int]] = []

    def add(node: Phase, first: str, rest: str) -> None:
        rows.append((first + label(node), cost(node).epochs))
        below = node.children
        for i, child in enumerate(below):
            last = i == len(below) - 1
            add(child, rest + ("`- " if last else "|- "), rest + ("   " if last else "|  "))

    add(node, "", "")
    width = max(len(text) for text, _ in rows)
    return [f"{text:<{width}}  {epochs:>6} epochs" if epochs else text for text, epochs in rows]
