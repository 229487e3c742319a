"""What every part of the page is made of: a section with its words, frames that stand side by side, a key of colors."""

from xml.etree.ElementTree import Element

from choral.base.text import short
from choral.report.figures import Panels
from choral.report.markup import Inside, element


def section(name: str, title: str, text: Inside, *parts: Inside) -> Element:
    """Return a section of the page."""
    return element("section", element("h2", title), element("p", text), *parts, id=name)


def frames(panels: Panels, notes: dict[str, Inside], *, large: bool = False) -> Element:
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


def key(*entries: tuple[str, str]) -> Element:
    """Return a key of colors: (name of the color, what it stands for)."""
    dots = [
        element("span", element("i", class_="dot"), text, style=f"--tint: var(--{color})") for color, text in entries
    ]
    return element("div", dots, class_="key")
