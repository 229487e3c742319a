"""Draw a plan as SVG: bars are training, from left to right; branches lie below each other, and dots are members."""

import re
from html import escape
from typing import Any

WIDE, LANE, BAR, MOST = 560, 24, 9, 4  # most branches of a fork that are drawn


def duration(node: dict[str, Any]) -> float:
    """Return the epochs that pass from the start of a node to its end; branches of a fork pass side by side."""
    inside = sum(map(duration, node["children"]))
    if node["label"].startswith("repeat"):
        return inside * count(node)
    return inside if node["children"] else float(node["epochs"])


def count(node: dict[str, Any]) -> int:
    """Return how often a node repeats or forks."""
    found = re.match(r"(?:repeat|fork into) (\d+)", node["label"])
    return int(found[1]) if found else 1


class Drawing:
    """The shapes of a plan, and the phases other than training in their order."""

    def __init__(self, recipe: Any):
        """Draw the plan of a recipe."""
        self.told = recipe.describe()
        tree = self.told["tree"]
        self.scale = WIDE / max(duration(tree), 1e-9)
        self.shapes: list[str] = []
        self.phases: list[str] = []
        self.members = self.told["members"] if tree["networks"] < self.told["members"] else 1  # of one joint network
        self.lanes = 1
        self.end = self.node(tree, 12.0, 0)

    def node(self, node: dict[str, Any], x: float, lane: int) -> float:
        """Draw a node from some place on, and return where it ends."""
        label, children = node["label"], node["children"]
        if label.startswith("fork") and count(node) > 1:
            return self.fork(node, x, lane)
        if children:
            for _ in range(count(node) if label.startswith("repeat") else 1):
                for child in children:
                    x = self.node(child, x, lane)
            return x
        name, y = re.split(r"[ (]", label)[0], self.height(lane)
        if name == "Train":
            return self.train(node, x, y)
        if name == "Collect":
            for i in range(min(self.members, MOST)):
                self.shapes.append(
                    f'<circle class="kept" cx="{x:.1f}" cy="{y + (i - (min(self.members, MOST) - 1) / 2) * 9:.1f}" r="4"/>'
                )
        elif name != "Reset":
            if name not in self.phases:
                self.phases.append(name)
            mark = self.phases.index(name) + 1
            self.shapes.append(
                f'<path class="mark" d="M{x:.1f} {y - 8:.1f}v16"/><text x="{x + 2:.1f}" y="{y - 7:.1f}">{mark}</text>'
            )
            return x + 7
        return x

    def train(self, node: dict[str, Any], x: float, y: float) -> float:
        """Draw a training, with its epochs where there is room; a joint network has a stripe for each member."""
        wide, parts = max(node["epochs"] * self.scale, 1.5), min(self.members, MOST)
        for i in range(parts):
            top = y + (i - (parts - 1) / 2) * 9 - (BAR / 2 if parts == 1 else 3.5)
            self.shapes.append(
                f'<rect x="{x:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{BAR if parts == 1 else 7}" rx="2"/>'
            )
        if wide > 56:
            top = y - (8 if parts == 1 else 5 * parts + 3)
            self.shapes.append(
                f'<text x="{x + wide / 2:.1f}" y="{top:.1f}" text-anchor="middle">{node["epochs"]:g} epochs</text>'
            )
        return x + wide + 3

    def fork(self, node: dict[str, Any], x: float, lane: int) -> float:
        """Draw the first branches of a fork below each other."""
        shown, end = min(count(node), MOST), x
        for i in range(shown):
            y, here = self.height(lane), self.height(lane + i)
            self.lanes = max(self.lanes, lane + i + 1)
            self.shapes.append(f'<path class="way" d="M{x:.1f} {y:.1f}L{x + 14:.1f} {here:.1f}"/>')
            at = x + 14
            for child in node["children"]:
                at = self.node(child, at, lane + i)
            end = max(end, at)
        if count(node) > shown:
            self.lanes = max(self.lanes, lane + shown + 1)
            self.shapes.append(
                f'<text x="{x + 16:.1f}" y="{self.height(lane + shown) - 4:.1f}">and {count(node) - shown} more</text>'
            )
        return end

    def height(self, lane: int) -> float:
        """Return the height of the middle of a lane."""
        return 26.0 + (4.5 * (min(self.members, MOST) - 1)) + lane * LANE

    def caption(self) -> str:
        """Return what the picture shows in words."""
        members, draws = self.told["members"], self.told["draws"]
        kept = (
            f"{self.members} members in one network" if self.members > 1 else f"{members} member{'s' * (members > 1)}"
        )
        text = (
            f"Bars are training phases, dots are collected networks: {kept}"
            + (f", {draws} draws of each" if draws > 1 else "")
            + "."
        )
        numbered = ", ".join(f"{i + 1} {name}" for i, name in enumerate(self.phases))
        return text + (f" Steps between: {numbered}." if numbered else "")

    def html(self) -> str:
        """Return the figure."""
        tall = self.height(self.lanes - 1) + 4.5 * (min(self.members, MOST) - 1) + 14
        name, body = escape(f"The plan of {self.told['name']}"), "".join(self.shapes)
        svg = f'<svg viewBox="0 0 {max(self.end + 50, WIDE + 80):.0f} {tall:.0f}" role="img" aria-label="{name}">{body}</svg>'
        return f'<figure class="plan">{svg}<figcaption>{escape(self.caption())}</figcaption></figure>'
