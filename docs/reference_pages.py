"""Write the reference pages from the public names and the commands themselves."""

import inspect
from pathlib import Path
from types import ModuleType

from typer.main import get_command

import choral
from choral.cli.app import app

START = (
    "fit",
    "fit_table",
    "load",
    "show",
    "compare",
    "ensemble_of",
    "converted",
    "distil",
    "save_pretrained",
    "from_pretrained",
)
VALUES = (
    "Ensemble",
    "Prediction",
    "Comparison",
    "Recipe",
    "Training",
    "EarlyStopping",
    "Compute",
    "Measure",
    "Columns",
)
MODULES = {
    "plots": "Figures of predictions and runs",
    "sklearn": "Estimators for scikit-learn",
    "objectives": "Likelihoods and penalties",
    "models": "Networks",
    "metrics": "Scores",
    "calibration": "Temperature, conformal sets and intervals, weights of members",
    "data": "Data sources and transforms",
    "callbacks": "Callbacks",
    "corruptions": "Corruptions of images",
    "plan": "Phases, operators, optimizers and schedules",
    "structures": "How members share weights",
    "layers": "Layers of joint and Bayesian networks",
    "masks": "Masks of sparse members",
    "compaction": "Smaller networks from masked ones",
}

ROUTING = "set_fit_request, set_predict_request, set_score_request, set_partial_fit_request"  # scikit-learn's own


def public(module: ModuleType) -> list[str]:
    """Return the public functions and classes of a module."""
    named = getattr(module, "__all__", None) or [
        n for n, o in vars(module).items() if getattr(o, "__module__", "") == module.__name__ and not n.startswith("_")
    ]
    return [n for n in named if inspect.isfunction(getattr(module, n)) or inspect.isclass(getattr(module, n))]


def entry(module: ModuleType, name: str, *, members: bool = False) -> str:
    """Return the directive of one name."""
    found = getattr(module, name)
    kind = "autoclass" if inspect.isclass(found) else "autofunction"
    options = ["   :members:", f"   :exclude-members: {ROUTING}"] if members and inspect.isclass(found) else []
    elsewhere = any(getattr(getattr(choral, m), name, None) is found for m in MODULES)
    main = name in VALUES and getattr(choral, name) is found
    if elsewhere and not main if module is choral else main:
        options.append("   :no-index:")  # its other page has the entry of the index
    return "\n".join([f".. {kind}:: {module.__name__}.{name}", *options])


def page(title: str, text: str, entries: list[str]) -> str:
    """Return a page of directives."""
    body = "\n\n".join(entries)
    return f"# {title}\n\n{text}\n\n```{{eval-rst}}\n{body}\n```\n"


def pages() -> dict[str, str]:
    """Return the text of each generated page by its name."""
    made = {
        "python": page("choral", "`import choral`", [entry(choral, n, members=n in VALUES) for n in (*START, *VALUES)])
    }
    rest = [n for n in choral.__all__ if n not in (*START, *VALUES)]
    for name, title in MODULES.items():
        module = getattr(choral, name)
        shown = [entry(module, n, members=name == "sklearn") for n in public(module)]
        made[name] = page(f"choral.{name}", f"{title}.", shown)
    made["plans"] = page(
        "Plans and clusters", "Names of `choral` for plans and for several machines.", [entry(choral, n) for n in rest]
    )
    listed = "\n".join(f"| [choral.{n}]({n}.md) | {t} |" for n, t in MODULES.items())
    names = "\n".join(["python", *MODULES, "plans"])
    made["index"] = (
        "# Python\n\n| module | what |\n|---|---|\n| [choral](python.md) | train, predict, compare, load |\n"
        f"| [choral.recipes](../../methods.md) | the methods |\n{listed}\n| [Plans and clusters](plans.md) | parts of plans, leaves, Ray |\n\n"
        f"```{{toctree}}\n:hidden:\n\n{names}\n```\n"
    )
    made["cli"] = commands()
    return made


def commands() -> str:
    """Return the page of the command line."""
    parts = [
        "# Command line",
        "Every command takes `--json` and `--help`. Invalid input gives a one-sentence error and exit code 2.",
    ]
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]  # a group
        arguments = [
            (p.metavar or p.name).strip("[]{}").upper() for p in command.params if p.param_type_name == "argument"
        ]
        text, _, example = (command.help or "").replace("\b", "").partition("Example: ")
        lines = [" ".join(["choral", name, *arguments]), *([" ".join(example.split())] if example else [])]
        parts += [f"## choral {name}", text.strip(), "\n".join(["```sh", *dict.fromkeys(lines), "```"])]
        rows = []
        for option in command.params:
            if option.param_type_name == "option":
                text = " ".join((getattr(option, "help", "") or "").split()).replace("|", "\\|").replace("<", "&lt;")
                rows.append(f"| `{' '.join(option.opts)}` | {text} |")
        parts.append("\n".join(["| option | meaning |", "|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def write(folder: Path) -> None:
    """Write the pages where they changed."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
