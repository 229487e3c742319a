"""A plan as a tree, as text (`show`) and as plain dicts (`tree`)."""

from dataclasses import fields
from typing import Any

from choral.base.values import Value
from choral.plan.cost import cost
from choral.plan.phases import Every, Fork, Phase, Repeat, Seq, Space, Train


def _brief(item: Any) -> str:
    match item:
        case Every(start=start, stop=stop):
            spans = (f" from {start * 100:g} %" if start > 0 else "") + (f" until {stop * 100:g} %" if stop < 1 else "")
            return f"every {item.count} {item.unit}{spans}: {_brief(item.phase)}"
        case Space(spans=spans):
            return "; ".join(f"{name} {_brief(span)}" for name, span in spans)
        case Value():
            given = ((f.name, getattr(item, f.name), f.default) for f in fields(item))  # type: ignore[arg-type]
            shown = ", ".join(f"{name}={_brief(value)}" for name, value, default in given if value != default)
            return f"{type(item).__name__}({shown})"
        case tuple():
            return "(" + ", ".join(map(_brief, item)) + ")"
        case float():
            return f"{item:g}"
    return str(item)


def label(node: Phase) -> str:
    """Return one line for a node of a plan.

    >>> from choral.plan.schedules import Cosine
    >>> label(Train(epochs=5, schedule=Cosine(0.1)))
    'Train 5 epochs, Cosine(start=0.1), SGD(), batch 128'
    """
    match node:
        case Seq():
            return "seq"
        case Repeat(times=times):
            return f"repeat {times}x"
        case Fork(branches=branches, space=space, variants=variants):
            own = f": {_brief(space)}" if space else ""
            own += f", {len(variants)} variants of {', '.join(sorted(node.varied))}" if variants else ""
            return f"fork into {branches}{own}"
        case Train(epochs=epochs):
            parts = [f"Train {epochs} epochs", _brief(node.schedule), _brief(node.optimizer)]
            parts.append(f"batch {node.batch_size or 'chosen for the data'}")
            parts += ["optimizer memory carried"] if node.memory == "carried" else []
            return ", ".join([*parts, *map(_brief, node.every), *([_brief(node.select)] if node.select else [])])
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
    """Return the tree as text lines, with the epochs of every branch on the right."""
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
