"""Colours of figures: drawn in light colours, which become CSS variables in an SVG, so that one suits light and dark."""

import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from choral.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SERIES = 8  # methods with a colour of their own; later ones share "other"
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
    """Colours by name, and whether the picture stands alone (then it needs its own legend)."""

    colours: dict[str, str]
    alone: bool = False

    def __getitem__(self, name: str) -> str:
        return self.colours[name]

    def series(self, number: int) -> str:
        """Return the colour of the method with some rank, counted from 0."""
        return self.colours[f"s{number}" if number < SERIES else "other"]


Draw = Callable[["Figure", Theme], None]


def variables(colours: dict[str, str]) -> str:
    """Return colours as CSS declarations.

    >>> variables({"ink": "#000000"})
    '--ink: #000000;'
    """
    return " ".join(f"--{name}: {value};" for name, value in colours.items())


def _figure(draw: Draw, size: tuple[float, float], theme: Theme) -> "Figure":
    """Return a drawn figure; sizes are in points."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(size[0] / 72, size[1] / 72), facecolor=theme["surface"])
    draw(figure, theme)
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
    with matplotlib.rc_context():
        matplotlib.rcParams.update({k: v for k, v in matplotlib.rcParamsDefault.items() if not k.startswith("backend")})
        for name, value in _SETTINGS.items():
            matplotlib.rcParams[name] = value  # type: ignore[index]  # its stub lists the names one by one
        yield


def inline_svg(draw: Draw, size: tuple[float, float], *, name: str, title: str) -> str:
    """Return a figure as an SVG element for the page; its colours are CSS variables of the page.

    Groups whose id is "series:METHOD" become `class="series" data-method="METHOD"`, for the page's highlighting.

    Args:
        draw: draws on an empty figure.
        size: width and height in points, the element's aspect ratio.
        name: a word for ids.
        title: read out to people who cannot see it.
    """
    text = _svg(_figure(draw, size, Theme(LIGHT)))
    text = text[text.index("<svg") :]
    text = re.sub(
        r'<svg [^>]*viewBox="([^"]*)"[^>]*>', rf'<svg viewBox="\1" role="img" aria-label="{title}">', text, count=1
    )
    text = re.sub(r'<g id="series:([^"]*)">', r'<g class="series" data-method="\1"><title>\1</title>', text)
    text = re.sub(r'<g id="[^"]*"/>', "", text)
    text = re.sub(r'<g id="[^"]*">', "<g>", text)
    text = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)
    text = text.replace("xlink:href", "href")
    return re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{name}-", text)


def standing_files(draw: Draw, size: tuple[float, float]) -> tuple[str, bytes]:
    """Return a figure as an SVG file that follows the viewer's preference of light or dark, and as a light PNG picture.

    Args:
        draw: draws on an empty figure; its theme is `alone`.
        size: width and height in points; a point has two pixels.
    """
    style = f":root {{ {variables(LIGHT)} }} @media (prefers-color-scheme: dark) {{ :root {{ {variables(DARK)} }} }}"
    figure = _figure(draw, size, Theme(LIGHT, alone=True))
    text = _svg(figure)
    end = text.index(">", text.index("<svg")) + 1
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=144)
    return text[:end] + f"\n<style>{style}</style>" + text[end:], out.getvalue()


def _svg(figure: "Figure") -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", out.getvalue(), flags=re.DOTALL)
    text = text.replace("'DejaVu Sans', sans-serif", "system-ui, 'DejaVu Sans', sans-serif")
    for colour, value in LIGHT.items():
        text = text.replace(value, f"var(--{colour})")
    text = re.sub(
        r"<[^>]*>", lambda tag: re.sub(r"(\d\.\d\d)\d+", r"\1", tag[0]), text
    )  # a hundredth of a point is enough
    return re.sub(r"\s*\n\s*", "\n", text)
