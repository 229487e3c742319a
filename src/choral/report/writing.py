"""Write a report: page, figures and the numbers behind them."""

from pathlib import Path

from choral.base.errors import InputError
from choral.engine.files import write_bytes, write_json
from choral.report.content import collect
from choral.report.figures import Panels, Picture, all_panels, pictures
from choral.report.page import render
from choral.report.theme import settings

_FILES = (".html", ".htm", ".csv", ".tsv", ".json", ".pdf", ".png", ".svg", ".md", ".txt", ".xlsx", ".parquet")


def write_report(folder: str | Path, *, out: str | Path | None = None) -> Path:
    """Write report.html, figures/ and report.json from a run, a comparison or a folder of runs; return the page's path.

    The page holds everything it needs and asks the network for nothing. Figures are also written as SVG (light and dark)
    and PNG. Every number on the page is in the report.json beside it.

    Args:
        folder: what `choral.fit` or `choral.compare` was given as run_dir.
        out: the folder to write to; the run's own if None.
    """
    folder = Path(folder)
    place = folder if out is None else Path(out)
    if place.is_file() or (place.suffix.lower() in _FILES and not place.is_dir()):
        raise InputError(
            f"out is {place}, which names a file; a report is a folder with report.html, figures and report.json: give one, such as "
            f"{place.with_suffix('')}."
        )
    content = collect(folder)
    drawn, frames = pictures(content), all_panels(content)
    with settings():
        page = render(content, drawn, frames)
        parts: list[Picture | Panels] = [*drawn, *frames]
        for part in parts:
            for name, data in part.files():
                write_bytes(place / "figures" / name, data, within=place)
    write_json(place / "report.json", content.results, within=place)
    write_bytes(place / "report.html", page.encode(), within=place)
    return place / "report.html"
