"""Figures of a report, drawn by `choral.plots` in light colors that become CSS variables, so that one SVG suits light and dark."""

import io
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree.ElementTree import Element, SubElement, fromstring, tostring

from choral.base.errors import needed
from choral.base.text import short, visible
from choral.plots import MUTED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SVG, _XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"
# ink, muted, grid, surface, then one color after the other for methods
_NAMES = ("ink", "muted", "grid", "surface", *(f"s{i}" for i in range(12)))
_PALETTES = (
    "1d2430 5c6675 e3e6eb ffffff 2563c9 b85208 0b7f63 a82f88 8a6a00 c0302a 6a55d1 22788f 7a4a21 4b5d16 c53a76 667080",
    "e8ebf0 a2abb9 323a46 1a2029 7aa9ff ffa65c 4ccfab f08fd4 dcbf4a ff8d83 b5a8ff 7cc9e0 d9a679 b3c76a ff9ec4 8f99a8",
)
LIGHT, DARK = ({n: f"#{code}" for n, code in zip(_NAMES, codes.split())} for codes in _PALETTES)
COLORS = 12  # later methods have the same colors with other dashes, and their names next to their lines


@contextmanager
def settings() -> Iterator[None]:
    """Use the report's matplotlib settings; every figure must be made inside this context."""
    needed("jinja2", "plots")  # for the page
    needed("matplotlib", "plots")
    from matplotlib import style

    with style.context(Path(__file__).with_name("figures.mplstyle"), after_reset=True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # the reader's own fonts have it
        yield


def variables() -> str:
    """Return the colors as CSS, light and dark."""
    light, dark = (" ".join(f"--{n}: {v};" for n, v in c.items()) for c in (LIGHT, DARK))
    return f":root {{ {light} }} @media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"


def look(place: int) -> dict[str, Any]:
    """Return the color and the dashes of the n-th method."""
    return {"color": f"C{place % COLORS}", "linestyle": ("-", "--", ":", "-.")[place // COLORS % 4]}


@dataclass(frozen=True)
class Picture:
    """A figure of the page.

    Attributes:
        name: name of its files and ids.
        title: its title.
        figure: the matplotlib figure.
        tree: the SVG tree.
        methods: the methods of the groups "series:NUMBER".
        method: the method it shows, if only one.
        note: a number of that method, as text.
    """

    name: str
    title: str
    figure: "Figure"
    tree: Element
    methods: Sequence[str] = ()
    method: str | None = None
    note: str = ""

    def inline(self, classes: dict[str, str]) -> str:
        """Return the SVG element for the page; style attributes become classes, since a policy allows one style element only."""
        root = deepcopy(self.tree)
        for node in root.iter():
            group = node.attrib.pop("id", "") if node.tag == "g" else ""
            if group.startswith("series:"):
                method = visible(self.methods[int(group.removeprefix("series:"))])
                node.attrib |= {"class": "series", "data-method": method}
                SubElement(node, "title").text = short(method)
            for key, value in list(node.items()):
                own = f"{self.name}-{value}" if key == "id" else value.replace("url(#", f"url(#{self.name}-")
                node.set(key, f"#{self.name}-{own.removeprefix('#')}" if key == "href" else own)
            style = node.attrib.pop("style", None)
            if style is not None:
                node.set("class", f"{node.get('class', '')} {classes.setdefault(style, f'k{len(classes)}')}".strip())
        wide = f"{1.45 * 72 * self.figure.get_size_inches()[0]:.0f}"
        root.attrib = {
            "viewBox": root.get("viewBox", ""),
            "width": wide,
            "role": "img",
            "aria-label": visible(self.title),
        }
        return tostring(root, encoding="unicode")

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Yield an SVG file that follows the viewer's preference of light or dark, and a light PNG file of large figures."""
        root = deepcopy(self.tree)
        SubElement(root, "style").text = variables()
        root.attrib |= {"xmlns": _SVG.strip("{}")}
        yield f"{self.name}.svg", tostring(root, encoding="utf-8")
        if self.method is None:
            out = io.BytesIO()
            self.figure.savefig(out, format="png", dpi=144)
            yield f"{self.name}.png", out.getvalue()


def picture(
    name: str,
    title: str,
    draw: Callable[..., Any],
    size: tuple[float, float] = (420, 250),
    **more: Any,
) -> Picture:
    """Return a figure of this size in points, drawn by `draw(ax=axes)`, with safe texts."""
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    figure = Figure(figsize=(size[0] / 72, size[1] / 72), layout="constrained")
    draw(ax=figure.subplots())
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        text.set_text(short(text.get_text()))
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # settled, once for all files
    return Picture(name, title, figure, _tree(figure), **more)


def _tree(figure: "Figure") -> Element:
    """Return a figure as an SVG tree without namespaces, with colors as variables and lengths of two decimals."""
    out = io.BytesIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    root = fromstring(out.getvalue())  # drops comments and the document type
    for node in list(root.iter()):
        for child in [c for c in node if c.tag in (f"{_SVG}metadata", f"{_SVG}style")]:
            node.remove(child)
        node.tag = node.tag.removeprefix(_SVG)
        node.attrib = {k.removeprefix(_XLINK): _tidied(v) for k, v in node.items()}
        node.tail = None
        node.text = None if node.text is not None and node.text.isspace() else node.text
    return root


def _tidied(value: str) -> str:
    for color, code in (*LIGHT.items(), ("muted", MUTED)):
        value = value.replace(code, f"var(--{color})")
    value = value.replace("'DejaVu Sans', sans-serif", "system-ui, 'DejaVu Sans', sans-serif")
    return " ".join(re.sub(r"(\d\.\d\d)\d+", r"\1", value).split())
