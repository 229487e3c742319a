"""Colors of figures: drawn in light colors, which become CSS variables in an SVG, so that one suits light and dark."""

import io
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree.ElementTree import Element, fromstring

from choral.base.errors import InputError
from choral.base.text import short
from choral.report.markup import element, written

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_DROPPED = {f"{{{SVG}}}metadata", f"{{{SVG}}}style"}
SERIES = 8  # methods with a color of their own; later ones share "other"
LIGHT = {
    "ink": "#1d2430",
    "muted": "#5c6675",
    "grid": "#e3e6eb",
    "surface": "#ffffff",
    "accent": "#2563c9",
    "outside": "#b85208",
    "other": "#a3abb7",
    "s0": "#2563c9",
    "s1": "#b85208",
    "s2": "#0b7f63",
    "s3": "#a82f88",
    "s4": "#8a6a00",
    "s5": "#c0302a",
    "s6": "#6a55d1",
    "s7": "#22788f",
}
DARK = {
    "ink": "#e8ebf0",
    "muted": "#a2abb9",
    "grid": "#323a46",
    "surface": "#1a2029",
    "accent": "#7aa9ff",
    "outside": "#ffa65c",
    "other": "#667080",
    "s0": "#7aa9ff",
    "s1": "#ffa65c",
    "s2": "#4ccfab",
    "s3": "#f08fd4",
    "s4": "#dcbf4a",
    "s5": "#ff8d83",
    "s6": "#b5a8ff",
    "s7": "#7cc9e0",
}
_SETTINGS: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "choral",
    "text.parse_math": False,
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.labelsize": 10,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.linewidth": 0.8,
    "lines.linewidth": 1.8,
    "lines.markersize": 4,
    "lines.solid_capstyle": "round",
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "axes.facecolor": "none",
    "axes.edgecolor": LIGHT["grid"],
    "axes.titlecolor": LIGHT["ink"],
    "axes.labelcolor": LIGHT["muted"],
    "grid.color": LIGHT["grid"],
    "xtick.color": LIGHT["muted"],
    "ytick.color": LIGHT["muted"],
}


@dataclass(frozen=True)
class Theme:
    """Colors by name, and whether the picture stands alone (then it needs its own legend)."""

    colors: dict[str, str]
    alone: bool = False

    def __getitem__(self, name: str) -> str:
        return self.colors[name]

    def series(self, number: int) -> str:
        """Return the color of the method with some rank, counted from 0."""
        return self.colors[f"s{number}" if number < SERIES else "other"]


Draw = Callable[["Figure", Theme], None]


def variables(colors: dict[str, str]) -> str:
    """Return colors as CSS declarations.

    >>> variables({"ink": "#000000"})
    '--ink: #000000;'
    """
    return " ".join(f"--{name}: {value};" for name, value in colors.items())


def _figure(draw: Draw, size: tuple[float, float], theme: Theme) -> "Figure":
    """Return a drawn figure whose lettering can be shown; sizes are in points."""
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    figure = Figure(figsize=(size[0] / 72, size[1] / 72), facecolor=theme["surface"])
    draw(figure, theme)
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        text.set_text(short(text.get_text()))
    return figure


@contextmanager
def settings() -> Iterator[None]:
    """Hold matplotlib's settings at those of the report; every picture must be made inside."""
    try:
        import matplotlib
    except ImportError as error:
        raise InputError(
            "figures need matplotlib, which is not installed; install it with: pip install 'choral[plots]'."
        ) from error
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # the reader's own fonts have it
        matplotlib.rcParams.update({k: v for k, v in matplotlib.rcParamsDefault.items() if not k.startswith("backend")})
        for name, value in _SETTINGS.items():
            matplotlib.rcParams[name] = value  # type: ignore[index]  # its stub lists the names one by one
        yield


def inline_svg(draw: Draw, size: tuple[float, float], *, name: str, title: str, methods: Sequence[str] = ()) -> Element:
    """Return a figure as an SVG element for the page; its colors are CSS variables of the page.

    Groups whose id is "series:NUMBER" become `class="series" data-method="METHOD"`, for the page's highlighting.

    Args:
        draw: draws on an empty figure.
        size: width and height in points, the element's aspect ratio.
        name: a word for ids.
        title: read out to people who cannot see it.
        methods: what the numbers of groups stand for.
    """
    drawn = _tree(_figure(draw, size, Theme(LIGHT)))
    for node in [n for n in drawn.iter() if n.tag == "g"]:
        group = node.attrib.pop("id", "")
        if group.startswith("series:"):
            method = methods[int(group.removeprefix("series:"))]
            node.attrib |= {"class": "series", "data-method": method}
            node.insert(0, element("title", short(method)))
    for node in drawn.iter():
        for key, value in node.items():
            own = f"{name}-{value}" if key == "id" else value.replace("url(#", f"url(#{name}-")
            node.set(key, f"#{name}-{own.removeprefix('#')}" if key == "href" else own)
    return element("svg", list(drawn), viewBox=drawn.get("viewBox"), role="img", aria_label=title)


def standing_files(draw: Draw, size: tuple[float, float]) -> tuple[str, bytes]:
    """Return a figure as an SVG file that follows the viewer's preference of light or dark, and as a light PNG picture.

    Args:
        draw: draws on an empty figure; its theme is `alone`.
        size: width and height in points; a point has two pixels.
    """
    style = f":root {{ {variables(LIGHT)} }} @media (prefers-color-scheme: dark) {{ :root {{ {variables(DARK)} }} }}"
    figure = _figure(draw, size, Theme(LIGHT, alone=True))
    drawn = _tree(figure)
    drawn.insert(0, element("style", style))
    drawn.attrib |= {"xmlns": SVG, "xmlns:xlink": XLINK}
    for node in drawn.iter():
        if "href" in node.attrib:
            node.set("xlink:href", node.attrib.pop("href"))  # as older viewers want it
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=144)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{written(drawn)}\n', out.getvalue()


def _tree(figure: "Figure") -> Element:
    """Return a figure as an SVG tree without namespaces: colors are variables, lengths have two decimals."""
    out = io.BytesIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    root = fromstring(out.getvalue())  # drops comments and the document type
    for node in list(root.iter()):
        node.tag = node.tag.removeprefix(f"{{{SVG}}}")
        node.attrib = {k.removeprefix(f"{{{XLINK}}}"): _tidied(v) for k, v in node.items()}
        for child in [c for c in node if c.tag in _DROPPED]:
            node.remove(child)
        for spaced in [node, *node]:
            spaced.tail = None
        if node.text and node.text.isspace():
            node.text = None
    return root


def _tidied(value: str) -> str:
    for color, code in LIGHT.items():
        value = value.replace(code, f"var(--{color})")
    value = value.replace("'DejaVu Sans', sans-serif", "system-ui, 'DejaVu Sans', sans-serif")
    value = re.sub(r"(\d\.\d\d)\d+", r"\1", value)  # a hundredth of a point is enough
    return " ".join(value.split())
