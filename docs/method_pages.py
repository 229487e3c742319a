"""Write a page for each method from its recipe, the notes beside this file and the results of benchmarks/methods.py."""

import inspect
import json
import re
import tomllib
from collections import Counter
from pathlib import Path

import choral
from choral.recipes import METHODS
from plan_picture import Drawing

HERE = Path(__file__).parent
NOTES = tomllib.loads((HERE / "method_notes.toml").read_text())
RESULTS = json.loads((HERE.parent / "benchmarks" / "results" / "methods.json").read_text())["against_single"]
STALE = ("sequential_anchored",)  # measured before the steps of its walk became relative to the prior
FAMILIES = {
    "independent": "Every member is trained separately.",
    "sequential": "One training run; members are collected during it, or drawn around its end.",
    "stochastic": "One network whose predictions are random draws.",
    "sparse": "Members with few weights each.",
    "shared": "One network that contains all members.",
    "bayesian": "Members or draws from an approximate posterior.",
}


def paragraph(name: str, start: str) -> str:
    """Return the paragraph of a builder's docstring that starts with some words, on one line, or an empty string."""
    found = re.search(rf"{start}(.*?)(?:\n\n|\Z)", inspect.getdoc(METHODS[name].build) or "", re.DOTALL)
    return " ".join(found[1].split()) if found else ""


def linked(reference: str) -> str:
    """Return a reference with links to arXiv."""
    return re.sub(r"arXiv:(\d{4}\.\d{5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", reference)


def fidelity(name: str) -> str:
    """Return how a method differs from its paper, and which of the paper's tables were run, as docs/fidelity.md says."""
    differs = paragraph(name, r"(?=Differs from)")
    parts = [differs] if differs else []
    papers, states = re.findall(r"arXiv:[\d.]*\d", METHODS[name].paper or ""), Counter[str]()
    for section in (HERE / "fidelity.md").read_text().split("\n## ")[1:]:
        if any(paper in section for paper in papers):
            states = Counter(re.findall(r"^- \*\*([^*]*)\*\*: `", section, re.MULTILINE))
            listed = ", ".join(f"{number} {state.replace(', ', ' and ')}" for state, number in states.most_common())
            title = section.partition("\n")[0]
            parts.append(f"Tables and figures of {title}: {listed} ([what this means](../fidelity.md)).")
    if papers and not states:
        parts.append("No table of the paper has been run.")
    if papers and "Relative(" in str(choral.recipes.make(name, epochs=60).describe()):  # a rate chosen for the data
        parts.append("The default optimizer, batch size and epochs are choral's, not the paper's.")
    return " ".join(parts) or "A baseline; there is no paper to differ from."


def page(name: str) -> str:
    """Return the page of a method."""
    method, note = METHODS[name], NOTES[name]
    recipe = choral.recipes.make(name, epochs=60)
    parts = [f"# {name}", method.summary, note["idea"]]
    parts += [f"```{{raw}} html\n{Drawing(recipe).html()}\n```"]
    parts += [f"$$\n{note['equation']}\n$$"]
    parts += [f"**Family**: {method.family}. {FAMILIES[method.family]}"]
    parts += [f"**Paper**: {linked(method.paper)}"] if method.paper else []
    parts += [f"**Cost**: {paragraph(name, 'Cost: ')}"]
    parts += [f"**Fidelity**: {fidelity(name)}"]
    parts += ["## When to use it", note["use"], "## When not to use it", note["avoid"], "## Example"]
    call = note.get("call", f"choral.recipes.{name}(epochs=60)")
    data = f', "{note["network"]}"' if "network" in note else ""
    more = ", validation=0.2" if note.get("validation") else ""
    parts += [
        f"With `build`, `x` and `y` as in [Start](../start.md){data and ' or a network for tables'}:",
        f"```py\nensemble = choral.fit(build, (x, y), {call}{more})\np = ensemble.predict(x_test)\n```",
        "## The plan",
        f"`print(choral.show(choral.recipes.{name}(epochs=60)))` before any training:",
        f"```text\n{choral.show(recipe)}\n```",
    ]
    if name in RESULTS and name not in STALE:
        told = {m: [RESULTS[name][m][k] for k in ("win", "tie", "loss")] for m in ("nll", "point")}
        rows = (
            f"| {title} | {' | '.join(map(str, told[m]))} |"
            for m, title in (("nll", "NLL"), ("point", "accuracy or RMSE"))
        )
        parts += [
            "## Measured",
            "Number of small data sets on which it is better or worse than one network at the same FLOPs, over three seeds\n([details](../benchmarks.md)):",
            "\n".join(["| score | better | within noise | worse |", "|---|---|---|---|", *rows]),
        ]
    parts += [
        "## Options",
        "`epochs`, `budget`, `combine` and `training` are the same for all [methods](../methods.md).",
        f"```{{eval-rst}}\n.. autofunction:: choral.recipes.{name}\n   :no-index-entry:\n```",
    ]
    return "\n\n".join(parts) + "\n"


def index() -> str:
    """Return the tables of all methods, by family."""
    parts = []
    for family, text in FAMILIES.items():
        rows = [
            f"| [{n}](methods/{n}.md) | {m.summary} | {paragraph(n, 'Cost: ')} |"
            for n, m in METHODS.items()
            if m.family == family
        ]
        parts += [
            f"## {family.capitalize()}",
            text,
            "\n".join(["| method | what it does | cost |", "|---|---|---|", *rows]),
        ]
    names = "\n".join(f"methods/{name}" for name in METHODS)
    return "\n\n".join([*parts, f"```{{toctree}}\n:hidden:\n\n{names}\n```"]) + "\n"


def write(folder: Path) -> None:
    """Write the pages of all methods and the table of them into a folder, where they changed."""
    folder.mkdir(exist_ok=True)
    for name, text in {n: page(n) for n in METHODS}.items() | {("_index", index())}:
        path = folder / (f"{name}.md" if name != "_index" else "_index.inc")
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
