"""The tables and figures of the five papers, each by one command: ours beside the paper's.

    CHORAL_DATA=... python benchmarks/paper.py pat-t1 --scale cpu --seeds 3 [--only lenet_s] [--epochs 2] [--runs FOLDER]
    python benchmarks/paper.py --list
    python benchmarks/paper.py --page

A protocol (`protocols/`) says what is trained, on what and how it is judged, at three sizes: `quick`, minutes on one core, `cpu`, hours on two, and `paper`. Runs
resume, and tables share runs whose network, data, recipe and seed are equal. The table is written to benchmarks/results/paper/ID.json
after every run; lines that this file holds are not run again unless asked for (`--again`). A trial (`--epochs`, `--points`) is
marked as one, and the page (docs/fidelity.md) does not count it.
"""

import argparse
import hashlib
import inspect
import json
import math
import os
import statistics
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import ttest_1samp
from sklearn.manifold import TSNE
from torch import Tensor
from torch.func import functional_call

import choral
import datasets
import fidelity
from choral import Compute, metrics
from choral.comparison.evaluation import make_trial, sizes
from choral.data import HorizontalFlip, Normalize, PadCrop, Transform, prepare
from choral.ensemble.ensemble import Ensemble
from choral.fit import fit
from choral.predictions import Predictive, scores_of
from choral.recipes import METHODS, make
from choral.recipes.recipe import Recipe
from choral.testing.problems import CALM, PROBLEMS
from machine import RESULTS, machine, measured
from protocols import PAPERS, PROTOCOLS
from protocols.networks import NETWORKS
from protocols.protocol import PERCENT, Claim, Protocol, Row, Scale

ROOT = Path(__file__).parent.parent
TABLES = RESULTS / "paper"
PAGE = ROOT / "docs" / "fidelity.md"
CLASSES = {"cifar10": 10, "cifar100": 100, "imdb": 2, "words": 2}
MOMENTS = {
    "cifar10": (datasets.CIFAR10_MEAN, datasets.CIFAR10_STD),
    "cifar100": (datasets.CIFAR100_MEAN, datasets.CIFAR100_STD),
}
BASELINE = "Vanilla"
"""The line that corruption errors are relative to."""
Lines = list[dict[str, Any]]


@cache
def arrays(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return x_train, y_train, x_test, y_test of a data set."""
    if name == "words":
        return datasets.words()
    if name != "imdb":
        return datasets.images(name)
    (x, y), (x_test, y_test) = (datasets.loaders().imdb(split, 100) for split in ("train", "test"))
    return x.astype(np.int64), y, x_test.astype(np.int64), y_test


def transforms(row: Row) -> tuple[Transform, ...]:
    """Return what is done to the inputs of a line."""
    if row.data not in MOMENTS:
        return ()
    mean, std = MOMENTS[row.data]
    crop = (PadCrop(pixels=4),) if row.augmented is True else ()
    return (*crop, *((HorizontalFlip(),) if row.augmented else ()), Normalize(mean=mean, std=std))


def trained(row: Row, recipe: Recipe, seed: int, arguments: argparse.Namespace) -> tuple[Ensemble, Path]:
    """Return the ensemble of a line, from its run folder as far as it is there, and the folder."""
    x, y, _, _ = arrays(row.data)
    points = arguments.points or row.points
    asked = repr((recipe.describe(), points, row.augmented))
    digest = hashlib.blake2b(asked.encode(), digest_size=5).hexdigest()
    folder = arguments.runs / row.data / f"{row.network}-{row.method}-{digest}-{seed}"
    ensemble = fit(
        lambda: NETWORKS[row.network](CLASSES[row.data]),
        (x[:points], y[:points]),
        recipe,
        run_dir=folder,
        seed=seed,
        transforms=transforms(row),
        validation=None,
        compute=Compute(executor="sequential", checkpoint_seconds=20, device=arguments.device),
    )
    if row.draws is not None and row.draws > recipe.structure.draws:
        ensemble.recipe = replace(recipe, structure=replace(recipe.structure, draws=row.draws))
        ensemble._evaluations.clear()  # fit has predicted already, with fewer passes
    return ensemble, folder


def predicted(ensemble: Ensemble, x: Any, draws: int | None) -> Predictive:
    """Return the prediction of the first draws of each member; all if None."""
    prediction = ensemble._predictive(x, batch_size=100)  # ResNet-20 takes twice as long with 500, more than a cache
    kept = [row for own in prediction.rows_by_member() for row in own[:draws]]
    return prediction if draws is None else prediction.of_rows(kept)


def corrupted(ensemble: Ensemble, row: Row, scale: Scale) -> dict[str, Any]:
    """Return measures on corrupted test images: means, by severity, and the errors of each corruption."""
    _, _, x_test, y_test = arrays(row.data)
    trial = make_trial(
        x_test,
        y_test,
        corruptions=scale.corruptions,
        severities=scale.severities,
        corrupted_rows=min(scale.corrupted_rows, len(y_test)),
    )
    table: dict[str, list[dict[str, float]]] = {}
    for name, severities in trial.corrupted.items():
        parts = [predicted(ensemble, x, row.draws) for x in severities]
        table[name] = [part.brief(part.targets(y_test[trial.corrupted_rows])) for part in parts]
    levels = [
        [severity, *(statistics.mean(cells[i][m] for cells in table.values()) for m in ("accuracy", "ece"))]
        for i, severity in enumerate(scale.severities)
    ]
    errors = {name: [1 - cell["accuracy"] for cell in cells] for name, cells in table.items()}
    return metrics.corrupted_means(table) | {"levels": levels, "corruption_errors": errors}


def strange(ensemble: Ensemble, prediction: Predictive, row: Row, scale: Scale) -> dict[str, float]:
    """Return AUROC and AUPR of all scores against another data set; those of the maximum probability have no suffix."""
    other = scale.ood if scale.ood != row.data else {"cifar10": "cifar100", "cifar100": "cifar10"}[row.data]
    told = metrics.evaluate_ood(
        prediction.alarms(), predicted(ensemble, arrays(other)[2][: scale.test_rows], row.draws).alarms()
    )
    names = (("ood_auroc", "auroc"), ("ood_aupr", "aupr_out"))
    found = {f"{name}_{score}": values[own] for score, values in told.items() for name, own in names}
    return found | {name: told["max_probability"][own] for name, own in names}


def against_reference(prediction: Predictive, data: str) -> dict[str, float]:
    """Return agreement and total variation of the mean prediction and that of Hamiltonian Monte Carlo."""
    if data == "words":
        positive = torch.tensor([float(p) for p in measured("hmc_words")["positive"].split()])
        found = torch.stack([1 - positive, positive], 1)
    else:
        found = torch.as_tensor(datasets.loaders().hmc_reference(data))
    truth, probs = found.double(), prediction.probs.double()
    truth, probs = (p / p.sum(1, keepdim=True) for p in (truth, probs))
    return {"agreement": fidelity.agreement(probs, truth), "tv": fidelity.total_variation(probs, truth)}


def calibration(probs: Tensor, labels: Tensor) -> dict[str, Any]:
    """Return top-5 accuracy and, over 20 bins of which those of at most five rows do not count, ECE, MCE and the curve."""
    table = metrics.reliability_table(probs, labels, bins=20)
    kept = table.counts > 5
    return {
        "top5": metrics.top_accuracy(probs, labels),
        "ece20": table.ece(drop_at_most=5),
        "mce20": table.mce(drop_at_most=5),
        "reliability": torch.stack([table.confidence[kept], table.accuracy[kept]], 1).tolist(),
    }


def landscape(ensemble: Ensemble, row: Row, x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """Return the loss in the plane of three members, and by how much it rises between two, over the line of their own losses."""
    network, labels = NETWORKS[row.network](CLASSES[row.data]).eval(), torch.as_tensor(y)
    images = prepare(torch.as_tensor(x), transforms(row), training=False)
    one, two, three = (state.params for state in list(ensemble.states())[:3])

    def loss(a: float, b: float) -> float:
        weights = {n: (1 - a - b) * one[n] + a * two[n] + b * three[n] for n in one}
        with torch.no_grad():
            return float(F.cross_entropy(functional_call(network, weights, (images,)), labels))

    steps = np.linspace(0, 1, 9)
    between = [loss(a, 0.0) for a in steps]
    level = [(1 - a) * between[0] + a * between[-1] for a in steps]
    surface = [[round(loss(a, b), 3) for a in np.linspace(-0.5, 1.5, 7)] for b in np.linspace(-0.5, 1.5, 7)]
    return {"barrier": max(b - e for b, e in zip(between, level)), "surface": surface}


def trajectory(prediction: Predictive, row: Row) -> dict[str, Any]:
    """Return the places of all epochs' predictions in a plane (t-SNE), and how far members lie apart, over an epoch's way.

    A member is the last epoch of an exploitation; an epoch's way is from the last but one to the last.
    """
    probs = prediction.member_probs.double().flatten(1).numpy()
    explore, exploit, members = (row.options[n] for n in ("explore_epochs", "exploit_epochs", "members"))
    each = max(1, round(exploit * len(probs) / (explore + members * exploit)))  # a trial has fewer epochs
    last = [len(probs) - 1 - i * each for i in range(members)]
    apart = [np.linalg.norm(probs[a] - probs[b]) for a in last for b in last if a < b]
    within = [np.linalg.norm(probs[a] - probs[a - 1]) for a in last]
    places = TSNE(perplexity=5, init="pca", random_state=0).fit_transform(probs)
    return {"separation": float(np.mean(apart) / np.mean(within)), "trajectory": places.round(1).tolist()}


def pruning(folder: Path) -> dict[str, Any]:
    """Return what the log says of nodes that left: the shares that remain, epoch by epoch."""
    events = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    epochs = [e for e in events if e["kind"] == "epoch" and "remaining" in e]
    curves = {f"{name}_by_epoch": [e["remaining"][0][name] for e in epochs] for name in ("parameters", "flops")}
    last = {f"{name}_remaining": curves[f"{name}_by_epoch"][-1] for name in ("parameters", "flops") if epochs}
    return last | curves if epochs else {}


def losses(folder: Path) -> list[float]:
    """Return the training loss of every epoch, in the order of the log."""
    events = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [statistics.mean(e["losses"]) for e in events if e["kind"] == "epoch"]


def judged(ensemble: Ensemble, folder: Path, row: Row, scale: Scale, wanted: tuple[str, ...]) -> dict[str, Any]:
    """Return all measures of a trained line; those of a run that another table has judged alike are in its folder."""
    asked = repr(
        (
            row.draws if row.draws != ensemble.recipe.structure.draws else None,
            replace(scale, rows=(), epochs=0, seeds=0, hours=0),
            sorted({*wanted} & {"curve", "losses", "barrier"}),
        )
    )
    place = folder / f"judged-{hashlib.blake2b(asked.encode(), digest_size=5).hexdigest()}.json"
    if not place.exists():
        place.write_text(json.dumps(_judged(ensemble, folder, row, scale, wanted)))
    return dict(json.loads(place.read_text()))


def _judged(ensemble: Ensemble, folder: Path, row: Row, scale: Scale, wanted: tuple[str, ...]) -> dict[str, Any]:
    _, _, x_test, y_test = (part[: scale.test_rows] for part in arrays(row.data))
    prediction = predicted(ensemble, x_test, row.draws)
    targets = prediction.targets(y_test)
    found = scores_of(prediction, targets, None) | calibration(prediction.probs, targets)
    found |= pruning(folder) | {"parameters": ensemble._parameters, "members": ensemble.members}
    if len(prediction.member_probs) > 1:  # of members and draws
        found["mutual_information"] = float(prediction.mutual_information.double().mean())
    if scale.corruptions:
        found |= corrupted(ensemble, row, scale)
    if scale.ood:
        found |= strange(ensemble, prediction, row, scale)
    if scale.reference and (row.data == "words" or hasattr(datasets.loaders(), "hmc_reference")):
        found |= against_reference(prediction, row.data)
    if "curve" in wanted:
        found["curve"] = [[s["members"], s["accuracy"]] for s in sizes(prediction, targets)]
    if "barrier" in wanted:
        found |= landscape(ensemble, row, x_test, y_test)
    if row.checkpoints:
        found |= trajectory(prediction, row)
    if "losses" in wanted:
        found["losses"] = losses(folder)
    return found


@cache
def code_of(method: str) -> str:
    """Return a digest of what a recipe computes: size of its members' weights and spread of its prediction after a short training.

    A line is stale if it was made with another one. Weights are compared to four digits, predictions to three: other machines round
    differently, and a change of the code that computes the same is none. The commit is kept beside it.
    """
    build, data = PROBLEMS["images"].build, PROBLEMS["images"].data()
    choice = METHODS[method].options.get("members")
    several = choice is not None and choice.default not in (1, None)
    recipe = make(method, budget=12, training=CALM, members=4 if several else None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the training is short on purpose
        ensemble = fit(build, data, recipe, progress=False, compute=Compute(executor="sequential"))
    sizes = [sum(float(p.double().abs().sum()) for p in state.params.values()) for state in ensemble.states()]
    spread = float(ensemble._predictive(data[0]).member_probs.double().std())
    text = " ".join([*(f"{value:.4g}" for value in sizes), f"{spread:.3g}"])
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def commit() -> str:
    """Return the last commit that changed the library's code, with a + if it was changed since; '' outside of a repository."""
    try:
        asked = {"cwd": ROOT, "capture_output": True, "text": True, "check": True}
        head = subprocess.run(["git", "log", "-1", "--format=%h", "--abbrev=10", "--", "src"], **asked).stdout.strip()
        return head + ("+" if subprocess.run(["git", "status", "--porcelain", "src"], **asked).stdout.strip() else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def read(path: Path) -> dict[str, Any]:
    """Return a results file, {} if there is none; raises ValueError if it cannot be one."""
    if not path.exists():
        return {}
    content = json.loads(path.read_text())
    needed = ("scale", "network", "data", "label", "seed", "method", "code", "commit", "measures")
    for line in content["rows"]:
        if missing := [n for n in needed if n not in line]:
            raise ValueError(f"a line lacks {', '.join(missing)}")
    return dict(content)


def key(line: dict[str, Any]) -> tuple[Any, ...]:
    """Return what tells lines of a results file apart."""
    return tuple(line.get(n) for n in ("scale", "network", "data", "label", "seed", "epochs", "points"))


def new_lines(
    protocol: Protocol, scale: Scale, arguments: argparse.Namespace, held: set[Any]
) -> Iterator[dict[str, Any]]:
    """Yield the lines that are not held yet, as they are made."""
    trial = {"epochs": arguments.epochs, "points": arguments.points}
    head = {"scale": arguments.scale, "commit": commit()} | trial
    for name in scale.names:  # tables of UCI sets, all splits at once
        if arguments.only not in name or any(
            (h[0], h[1], *h[5:]) == (arguments.scale, name, *trial.values()) for h in held
        ):
            continue
        import uci

        made = getattr(uci, scale.splits)(
            name, arguments.runs, epochs=arguments.epochs or scale.epochs, **scale.settings
        )
        for label, found in made.items():
            splits = {m: v for m, v in found.items() if m in ("rmse", "mae", "nll")}
            own = {
                "network": name,
                "data": "uci",
                "label": label,
                "method": found["method"],
                "code": code_of(found["method"]),
            }
            settings = {n: found[n] for n in ("epochs", "draws", "rates", "parameters") if n in found}
            for split, values in enumerate(zip(*splits.values())):
                yield head | own | {"seed": split, "measures": dict(zip(splits, values)), "settings": settings}
    factor = 1.0 if arguments.epochs is None else arguments.epochs / scale.epochs
    for seed in range(scale.seeds if arguments.seeds is None else arguments.seeds):
        for row in scale.rows:
            own = {"network": row.network, "data": row.data, "label": row.label, "seed": seed, "method": row.method}
            if arguments.only not in f"{row.network} {row.data} {row.label}" or key(head | own) in held:
                continue
            recipe = row.recipe(factor)
            found = judged(*trained(row, recipe, seed, arguments), row, scale, protocol.measures)
            measures = {n: v for n, v in found.items() if not isinstance(v, list) or n in protocol.measures}
            settings = recipe.describe() | {
                "augmented": row.augmented,
                "draws": row.draws,
                "training_points": row.points,
            }
            yield head | own | {"code": code_of(row.method), "measures": measures, "settings": settings}


def computed(protocol: Protocol) -> Lines:
    """Return the lines of a table that needs no training, in the form of all others."""
    assert protocol.compute is not None
    module = next(module for module in PAPERS.values() if protocol in module.PROTOCOLS)
    code = hashlib.blake2b(Path(inspect.getfile(module)).read_bytes(), digest_size=8).hexdigest()
    head = {"scale": "paper", "network": "", "data": "", "seed": 0, "method": "", "code": code, "commit": commit()}
    return [
        head | {"label": line["label"], "measures": {n: v for n, v in line.items() if n != "label"}}
        for line in protocol.compute()
    ]


def run(protocol: Protocol, arguments: argparse.Namespace) -> Lines:
    """Return all lines of a table, those that are missing made now and written after each."""
    path = arguments.results / f"{protocol.id}.json"
    lines: Lines = [] if arguments.again else read(path).get("rows", [])
    if protocol.compute is not None:
        lines = computed(protocol)
        write(path, protocol, lines)
        return lines
    scale = protocol.scale(arguments.scale)
    if scale is None:
        sys.exit(f"{protocol.id} has nothing to run at scale {arguments.scale}: {protocol.why or 'see --list'}")
    if scale.reference and arguments.scale != "quick" and not hasattr(datasets.loaders(), "hmc_reference"):
        print("CHORAL_DATA holds no load.py with hmc_reference(name): agreement and total variation are left out")
    for line in new_lines(protocol, scale, arguments, {key(line) for line in lines}):
        lines.append(line)
        write(path, protocol, lines)
        shown = ", ".join(f"{m} {cell(line['measures'].get(m), m)}" for m in protocol.measures)
        print(f"{line['network']}, {line['label']}, seed {line['seed']}: {shown}", flush=True)
    trial = {"scale": arguments.scale, "epochs": arguments.epochs, "points": arguments.points}
    return [line for line in lines if all(line.get(n) == v for n, v in trial.items())]


def write(path: Path, protocol: Protocol, lines: Lines) -> None:
    """Write a results file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"id": protocol.id, "title": protocol.title, "machine": machine(), "rows": lines}
    path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


def cell(value: Any, measure: str) -> str:
    """Return a value as a table has it: percents as percents, of curves both ends."""
    if isinstance(value, list):
        ends = [np.round(np.asarray(v, float), 3).tolist() for v in (value[0], value[-1])] if value else []
        return " … ".join(map(str, ends))
    if value is None or isinstance(value, str | dict):
        return "" if value is None else str(value)
    return f"{100 * value:.2f}" if measure in PERCENT else f"{value:.4g}"


def grouped(protocol: Protocol, lines: Lines) -> dict[tuple[str, str, str], Lines]:
    """Return the lines by network, data and label, with the corruption errors that need a baseline."""
    baselines = {(line["network"], line["data"], line["seed"]): line for line in lines if line["label"] == BASELINE}
    groups: dict[tuple[str, str, str], Lines] = {}
    for line in lines:
        own, base = line["measures"], baselines.get((line["network"], line["data"], line["seed"]))
        if "corruption_errors" in own and base is not None:
            errors, theirs = own["corruption_errors"], base["measures"]["corruption_errors"]
            clean = {"clean_error": 1 - own["accuracy"], "baseline_clean_error": 1 - base["measures"]["accuracy"]}
            own = own | {
                "mce": metrics.mean_corruption_error(errors, theirs),
                "rmce": metrics.mean_corruption_error(errors, theirs, **clean),
                "mce_by_corruption": metrics.corruption_errors(errors, theirs),
            }
        network = line["network"].removesuffix("_silu")  # gated networks of SeBayS stand beside dense ones
        groups.setdefault((network, line["data"], line["label"]), []).append(line | {"measures": own})
    return groups


def summary(lines: Lines, measure: str) -> tuple[Any, float]:
    """Return the mean and the standard error of a measure over seeds; of what is no number the first, and nan."""
    values = [line["measures"][measure] for line in lines if measure in line["measures"]]
    if not values or not isinstance(values[0], int | float):
        return (values[0] if values else None), math.nan
    return statistics.mean(values), statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else math.nan


def theirs(protocol: Protocol, scale: Scale | None, group: tuple[str, str, str], measure: str) -> float | None:
    """Return what the paper reports of a line."""
    network, data, label = group
    if data == "uci":
        return protocol.figures.get(network, {}).get(label, {}).get(measure)
    rows = [r for r in (scale.rows if scale else ()) if (r.network.removesuffix("_silu"), r.data, r.label) == group]
    return rows[0].paper.get(measure) if rows else None


def show(protocol: Protocol, lines: Lines, scale: Scale | None) -> str:
    """Return the table: ours with its standard error over seeds, beside the paper's."""
    if protocol.compute is not None:
        rows = [[line["label"], *(cell(line["measures"][n], "") for n in ("ours", "paper"))] for line in lines]
        return aligned([["", "ours", "paper"], *rows])
    found = grouped(protocol, lines)
    table = [["network", "data", "line", "seeds", *(f"{n}{p}" for n in protocol.measures for p in ("", ", paper"))]]
    for group, own in found.items():
        cells = []
        for measure in protocol.measures:
            mean, error = summary(own, measure)
            spread = "" if math.isnan(error) else f" ± {cell(error, measure)}"
            paper = theirs(protocol, scale, group, measure)
            cells += [f"{cell(mean, measure)}{spread}", "" if paper is None else f"{paper:g}"]
        table.append([*group, str(len(own)), *cells])
    return aligned(table)


def aligned(table: list[list[str]]) -> str:
    """Return rows of text in columns."""
    widths = [max(map(len, column)) for column in zip(*table)]
    return "\n".join("  ".join(text.ljust(w) for text, w in zip(line, widths)).rstrip() for line in table)


def claims(protocol: Protocol, lines: Lines) -> tuple[Claim, ...]:
    """Return what must come out at the size of the lines."""
    scale = protocol.scale(lines[0]["scale"]) if lines else None
    return protocol.claims + (scale.claims if scale else ())


def failed(protocol: Protocol, lines: Lines) -> list[str]:
    """Return the paper's statements that the means do not bear out."""
    groups, found = grouped(protocol, lines), []
    for network, data in dict.fromkeys((network, data) for network, data, _ in groups):
        for claim in claims(protocol, lines):
            pair = [groups.get((network, data, label), []) for label in (claim.better, claim.worse)]
            better, worse = (summary(own, claim.measure)[0] for own in pair)
            worse = worse if claim.worse else 0.0
            if better is not None and worse is not None and not claim.holds(better, worse):
                values = " against ".join(cell(v, claim.measure) for v in (better, worse))
                found.append(
                    f"{network}: {claim.better} not better than {claim.worse or 'none'} in {claim.measure}, {values}"
                )
    return found


def paired(protocol: Protocol, lines: Lines) -> list[str]:
    """Return the differences that the paper's statements are about, paired by seed, with standard errors and paired t tests."""
    groups, found = grouped(protocol, lines), []
    for network, data in dict.fromkeys((network, data) for network, data, _ in groups):
        for claim in claims(protocol, lines):
            pair = [
                {line["seed"]: line["measures"].get(claim.measure) for line in groups.get((network, data, label), [])}
                for label in (claim.better, claim.worse)
            ]
            gains = [pair[0][s] - pair[1][s] for s in pair[0] if isinstance(pair[0][s], int | float) and s in pair[1]]
            if len(gains) > 1:
                mean, error = statistics.mean(gains), statistics.stdev(gains) / len(gains) ** 0.5
                chance = f", p = {ttest_1samp(gains, 0).pvalue:.2g}" if error else ""
                shown = f"{cell(mean, claim.measure)} ± {cell(error, claim.measure)} ({len(gains)} seeds{chance})"
                found.append(f"{network}: {claim.better} - {claim.worse} in {claim.measure}, {shown}")
    return found


def close(ours: Any, paper: Any, tolerance: float = 1e-9) -> bool:
    """Return whether a computed value is the paper's, up to the digits that it prints."""
    return ours == paper if isinstance(ours, str) else math.isclose(ours, paper, rel_tol=tolerance, abs_tol=1e-12)


def command(protocol: Protocol, scale: str) -> str:
    """Return how to run a table."""
    device = " --device cuda" if (size := protocol.scale(scale)) is not None and size.gpu else ""
    return f"`paper.py {protocol.id}" + ("`" if protocol.compute else f" --scale {scale}{device}`")


def seen(protocol: Protocol, scale: Scale, lines: Lines) -> str:
    """Return the first measure of the lines of every network, ours and the paper's."""
    measure = protocol.measures[0]
    parts: dict[str, list[str]] = {}
    for group, own in grouped(protocol, lines).items():
        mean, paper = summary(own, measure)[0], theirs(protocol, scale, group, measure)
        if isinstance(mean, int | float):
            shown = f"{group[2]} {cell(mean, measure)}" + ("" if paper is None else f" ({paper:g})")
            parts.setdefault(group[0], []).append(shown)
    return "; ".join(f"{measure}, {network}: {', '.join(own)}" for network, own in parts.items())


def status(protocol: Protocol, results: Path) -> tuple[str, str]:
    """Return the state of a table in a word or two, and what is to be said of it."""
    try:
        lines: Lines = read(results / f"{protocol.id}.json").get("rows", [])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return (
            "broken",
            f"{protocol.id}.json cannot be read ({type(error).__name__}); run {command(protocol, 'cpu')} --again",
        )
    if protocol.compute is not None:
        return _computed_status(protocol, lines)
    lines = [line for line in lines if line.get("epochs") is None and line.get("points") is None]
    for name, word in (("paper", "reproduced"), ("cpu", "scaled"), ("quick", "scaled")):
        scale, own = protocol.scale(name), [line for line in lines if line["scale"] == name]
        if scale is None or not own:
            continue
        stale = sorted({line["label"] for line in own if line["code"] != code_of(line["method"])})
        wrong = failed(protocol, own)
        there = len(grouped(protocol, own))
        wanted = len(scale.rows) or len(scale.names) * len({line["label"] for line in own})
        notes = [
            command(protocol, name) if name == "quick" else "",
            f"stale: other code since {own[0]['commit'] or 'then'}" if stale else "",
            "; ".join(wrong),
            "; ".join(paired(protocol, own)),
            f"{there} of {wanted} lines" if there < wanted else "",
            seen(protocol, scale, own),
            protocol.why,
        ]
        return ("differs" if wrong else word) + (", stale" if stale else ""), "; ".join(n for n in notes if n)
    if protocol.elsewhere:
        version = json.loads((RESULTS / protocol.elsewhere).read_text())["machine"]["choral"]
        word = "scaled" if version == choral.__version__ else "scaled, stale"
        return word, f"`{protocol.elsewhere}`, version {version}; {protocol.why}"
    for name, scale in (("quick", protocol.quick), ("cpu", protocol.cpu)):
        if scale is not None:
            notes = (f"{command(protocol, name)}, {scale.hours:g} h", protocol.why)
            return "open", "; ".join(n for n in notes if n)
    if protocol.paper is not None:
        return "needs a GPU", "; ".join(n for n in (command(protocol, "paper"), protocol.why) if n)
    return "missing" if protocol.missing else "nothing to run", protocol.why


def _computed_status(protocol: Protocol, lines: Lines) -> tuple[str, str]:
    if not lines:
        return "open", f"{command(protocol, 'cpu')}, seconds"
    off = [line["label"] for line in lines if not close(**line["measures"])]
    note = f"{len(lines) - len(off)} of {len(lines)} values agree, {command(protocol, 'cpu')}"
    notes = (note, "not: " + ", ".join(off) if off else "", protocol.why)
    return "differs" if off else "reproduced", "; ".join(n for n in notes if n)


def page(results: Path = TABLES) -> str:
    """Return docs/fidelity.md."""
    states = {name: status(protocol, results) for name, protocol in PROTOCOLS.items()}
    counts: dict[str, int] = {}
    for word, _ in states.values():
        counts[word] = counts.get(word, 0) + 1
    text = [
        "# Fidelity to the papers",
        "",
        "Written by `python benchmarks/paper.py --page` from the results files in `benchmarks/results/paper`.",
        f"Of {len(PROTOCOLS)} tables and figures:",
        ", ".join(f"{n} {word}" for word, n in sorted(counts.items())) + ".",
        "",
        "- **reproduced**: at the paper's own size, its statements hold; or computed without training, and equal.",
        "- **scaled**: at a size for two cores, or for minutes (`--scale quick`); the checked statements hold. Numbers of the",
        "  paper are in brackets.",
        "- **differs**: at least one statement of the paper was not reproduced; it is named.",
        "- **stale**: made with a recipe that computed something else than today's, or by an earlier version of choral.",
        "- **open**: not run yet; the command and its hours on two cores.",
        "- **missing**: choral lacks a part that it needs.",
        "- **needs a GPU**: the command is there, two cores are too slow for it.",
        "",
        "Commands are `python benchmarks/paper.py ...` with `CHORAL_DATA` set (`benchmarks/README.md`).",
    ]
    for paper, module in PAPERS.items():
        text += ["", f"## {paper}", "", (module.__doc__ or "").strip(), ""]
        for protocol in module.PROTOCOLS:
            word, note = states[protocol.id]
            text += wrapped(f"- **{word}**: `{protocol.id}`, {protocol.title}", 2)
            for one in note.split("; ") if note else ():
                text += wrapped(f"  - {one}", 4)
    return "\n".join(text) + "\n"


def wrapped(line: str, indent: int) -> list[str]:
    """Return a line of a list as lines of at most 120 characters."""
    return textwrap.wrap(line, 120, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)


def listed(results: Path) -> str:
    """Return all tables and figures: done, open with hours, or needing a GPU."""
    done = ("reproduced", "scaled", "differs")
    table = []
    for name, protocol in PROTOCOLS.items():
        word, _ = status(protocol, results)
        state = f"done ({word})" if word in done else f"open ({word})" if "stale" in word else word
        hours = f"{protocol.cpu.hours:g} h" if protocol.cpu else "seconds" if protocol.compute else ""
        table.append([name, state, hours, protocol.title])
    return aligned([["", "state", "two cores", "what it shows"], *table]) + f"\n{len(table)} tables and figures"


def main() -> None:
    """Run a table, list all, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("id", nargs="?", choices=list(PROTOCOLS), metavar="ID", help="a table or figure, see --list")
    parser.add_argument("--scale", choices=("quick", "cpu", "paper"), default="cpu")
    parser.add_argument("--seeds", type=int, default=None, help="runs of each line; the protocol's by default")
    parser.add_argument("--only", default="", help="lines whose network, data or label contains this text")
    parser.add_argument(
        "--epochs", type=int, default=None, help="a trial: epochs of the plain network, all lines alike"
    )
    parser.add_argument("--points", type=int, default=None, help="a trial: training points")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "paper", help="folder for the runs")
    parser.add_argument("--results", type=Path, default=TABLES, help="folder for the tables")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--again", action="store_true", help="forget the lines that the results hold")
    parser.add_argument("--list", action="store_true", help="show all tables and figures")
    parser.add_argument("--page", nargs="?", type=Path, const=PAGE, default=None, help="write docs/fidelity.md")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.list:
        print(listed(arguments.results))
    elif arguments.page:
        arguments.page.write_text(page(arguments.results))
        print(arguments.page)
    elif arguments.id is None:
        parser.error("name a table or figure, or give --list or --page")
    else:
        protocol = PROTOCOLS[arguments.id]
        lines = run(protocol, arguments)
        print(f"\n{protocol.id}: {protocol.title}\n{show(protocol, lines, protocol.scale(arguments.scale))}")
        for difference in paired(protocol, lines):
            print(difference)
        for wrong in failed(protocol, lines):
            print(f"differs: {wrong}")


if __name__ == "__main__":
    main()
