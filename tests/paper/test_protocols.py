"""The 59 tables and figures as values, and the one command that runs them."""

import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.protocols import PROTOCOLS, packed
from benchmarks.protocols.networks import NETWORKS
from tests.paper.test_official import write_cifar10, write_uci

from choral.objectives.likelihoods import FixedGaussian
from choral.recipes import make
from choral.recipes.training import Training

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "paper"


def paper(*arguments: object, data: Path | None = None) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src"), "CHORAL_DATA": str(data or "")}
    command = [
        sys.executable,
        "-W",
        "ignore",
        str(ROOT / "benchmarks" / "paper.py"),
        "--threads",
        "1",
        *map(str, arguments),
    ]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_all_tables_and_figures_are_there():
    numbers = {"sebays": (10, range(1, 5)), "sae": (5, [1]), "emp": (13, range(1, 8)), "pat": (2, range(1, 4))}
    wanted = {f"{p}-t{i}" for p, (tables, _) in numbers.items() for i in range(1, tables + 1)}
    wanted |= {f"{p}-f{i}" for p, (_, figures) in numbers.items() for i in figures}
    wanted |= {f"packed-t{i}" for i in range(3, 12)} | {f"packed-f{i}" for i in range(5, 10)}
    assert set(PROTOCOLS) == wanted
    assert len(PROTOCOLS) == 59


@pytest.mark.parametrize("name", PROTOCOLS)
def test_rows_are_recipes_on_networks_and_claims_are_about_rows(name):
    protocol = PROTOCOLS[name]
    assert protocol.cpu or protocol.paper or protocol.compute or protocol.why
    for scale in filter(None, (protocol.quick, protocol.cpu, protocol.paper)):
        groups = [(row.network, row.data, row.label) for row in scale.rows]
        assert len(set(groups)) == len(groups)
        for row in scale.rows:
            assert row.network in NETWORKS
            assert row.recipe(2 / scale.epochs).epochs <= row.recipe().epochs
        labels = {row.label for row in scale.rows}
        if labels:
            claims = (*protocol.claims, *scale.claims)
            assert {label for claim in claims for label in (claim.better, claim.worse) if label} <= labels
        assert bool(scale.rows) != bool(scale.splits)


@pytest.mark.parametrize("name", [n for n, p in PROTOCOLS.items() if p.compute])
def test_results_of_tables_without_training_are_what_is_computed(name):
    held = json.loads((RESULTS / f"{name}.json").read_text())["rows"]
    made = PROTOCOLS[name].compute()
    assert [line["label"] for line in held] == [line["label"] for line in made]
    for line, now in zip(held, made, strict=True):
        for what in ("ours", "paper"):
            then = line["measures"][what]
            assert then == (now[what] if isinstance(then, str) else pytest.approx(now[what], rel=1e-12))


@pytest.mark.full
def test_a_trial_of_a_table_from_official_files_ends_with_the_table(tmp_path):
    write_cifar10(tmp_path / "data", 16)
    asked = ("pat-t1", "--scale", "cpu", "--only", "lenet_s", "--epochs", 2, "--seeds", 1)
    places = ("--runs", tmp_path / "runs", "--results", tmp_path / "results")
    text = paper(*asked, *places, data=tmp_path / "data")
    table = text.split("pat-t1: ")[1].splitlines()[1:]
    assert table[0].split() == ["network", "data", "line", "seeds", "accuracy", "accuracy,", "paper"]
    assert [line.split()[0] for line in table[1:6]] == ["lenet_s"] * 5
    content = json.loads((tmp_path / "results" / "pat-t1.json").read_text())
    assert [row["label"] for row in content["rows"]] == ["Independent", "Dropout", "Bagged", "PAT (R)", "PAT (AR)"]
    assert all(row["epochs"] == 2 and row["commit"] is not None and row["settings"] for row in content["rows"])
    again = paper(*asked, *places, data=tmp_path / "data")  # nothing is left to do
    assert again.split("pat-t1: ")[1] == text.split("pat-t1: ")[1]
    assert "seed 0" not in again


@pytest.mark.full
def test_the_page_is_what_the_command_writes(tmp_path):
    paper("--page", tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    assert text == (ROOT / "docs" / "fidelity.md").read_text(), "run python benchmarks/paper.py --page"
    assert sum(line.startswith("- **") and ": `" in line for line in text.splitlines()) == 59
    assert all(len(line) <= 120 for line in text.splitlines() if not line.startswith("- "))


@pytest.mark.full
@pytest.mark.slow
def test_broken_missing_wrong_and_stale_results_show_on_the_page_and_in_the_list(tmp_path):
    results = tmp_path / "results"
    shutil.copytree(RESULTS, results)
    (results / "emp-t1.json").write_text("{")
    (results / "emp-t2.json").unlink()
    content = json.loads((results / "sae-t4.json").read_text())
    content["rows"][0]["measures"]["ours"] = 3
    (results / "sae-t4.json").write_text(json.dumps(content))
    accuracies = {"Independent": 0.7, "PAT (AR)": 0.6}
    row = {"scale": "cpu", "network": "lenet_s", "data": "cifar10", "seed": 0, "commit": "0123456789", "code": "other"}
    rows = [row | {"label": n, "method": "single", "measures": {"accuracy": a}} for n, a in accuracies.items()]
    (results / "pat-t1.json").write_text(json.dumps({"rows": rows}))
    paper("--page", tmp_path / "page.md", "--results", results)
    entries = (tmp_path / "page.md").read_text().split("\n- **")[1:]
    lines = {entry.split("`")[1]: " ".join(entry.split()) for entry in entries if "`" in entry.partition("\n")[0]}
    lines = {name: line for name, line in lines.items() if name in PROTOCOLS}
    assert len(lines) == 59
    assert "broken**" in lines["emp-t1"]
    assert "open**" in lines["emp-t2"]
    assert "differs**" in lines["sae-t4"]
    assert "differs, stale**" in lines["pat-t1"]
    assert "stale: other code since 0123456789" in lines["pat-t1"]
    assert "PAT (AR) not better than Independent in accuracy, 60.00 against 70.00" in lines["pat-t1"]
    assert "2 of 15 lines" in lines["pat-t1"]
    listed = paper("--list", "--results", results)
    assert "59 tables and figures" in listed
    assert "broken" in listed


@pytest.mark.full
@pytest.mark.parametrize("name", ["emp-t12", "packed-t11"])
def test_a_trial_of_a_table_of_uci_sets_has_a_line_for_each_method_and_split(tmp_path, name):
    write_uci(tmp_path, rows=40)
    places = ("--runs", tmp_path / "runs", "--results", tmp_path / "results")
    paper(name, "--only", "boston", "--epochs", 2, *places, data=tmp_path)
    rows = json.loads((tmp_path / "results" / f"{name}.json").read_text())["rows"]
    labels = set(PROTOCOLS[name].figures["boston"])
    assert {(row["label"], row["seed"]) for row in rows} == {(label, split) for label in labels for split in (0, 1)}
    assert all(row["measures"]["rmse"] > 0 for row in rows)


def test_every_pass_of_ecmp_and_emp_on_a_uci_set_is_a_draw_of_its_own(tmp_path, monkeypatch):
    write_uci(tmp_path, rows=40)
    monkeypatch.setenv("CHORAL_DATA", str(tmp_path))
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    uci = importlib.import_module("uci")
    splits = uci.splits_of("boston")
    for method, fewest in (("ecmp", 40), ("emp", 15)):  # EMP draws one of five for each of two norms: at most 25
        recipe = make(method, epochs=20, output=False, statistics="shared", training=Training(lr=0.01, batch_size=20))
        noise = FixedGaussian(precision=2.0)
        ensemble = uci.train(tmp_path / method, lambda: uci.small(2, uci.norm), recipe, splits, noise)
        outputs = torch.cat(list(uci.passes(ensemble, splits, 40)), 1)  # (split, pass, row, output)
        assert outputs.shape[:2] == (2, 40)
        for split in outputs:
            assert len(split.flatten(1).unique(dim=0)) >= fewest


@pytest.mark.parametrize(("p", "std"), [(0.3, 0.5), (0.7, 2.0)])
def test_the_divergence_of_a_masked_layer_is_that_of_drawn_masks(p, std):
    """Proposition C.1: moments of a masked sum by drawing masks and inputs, then the divergence of two Gaussians."""
    rng = np.random.default_rng(0)
    inputs, weight, mean = 64, 0.1, 0.1
    each = std / (weight * inputs**0.5)  # of one input, so that the output has the deviation std
    kept = rng.random((100_000, inputs)) < p
    z = (weight * kept * (mean + each * rng.standard_normal(kept.shape))).sum(1)
    exact, most = packed.divergence(p, std)
    found = 0.5 * (np.log(z.var() / std**2) + (std**2 + (inputs * weight * mean - z.mean()) ** 2) / z.var() - 1)
    assert found == pytest.approx(exact, rel=0.03)
    assert exact <= most
    assert packed.divergence(1.0, std) == (pytest.approx(0, abs=1e-12), pytest.approx(0, abs=1e-12))


def test_every_network_of_a_table_and_a_paired_t_test_are_shown(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    table = importlib.import_module("paper")
    accuracies = {"Independent": (0.50, 0.52, 0.51), "PAT (AR)": (0.53, 0.54, 0.56)}
    lines = [
        {"scale": "quick", "network": n, "data": "cifar10", "label": label, "seed": s, "measures": {"accuracy": a}}
        for n in ("lenet_s", "lenet_m")
        for label, seeds in accuracies.items()
        for s, a in enumerate(seeds)
    ]
    protocol = table.PROTOCOLS["pat-t1"]
    shown = table.seen(protocol, protocol.quick, lines)
    assert shown == "; ".join(f"accuracy, {n}: Independent 51.00, PAT (AR) 54.33" for n in ("lenet_s", "lenet_m"))
    # gains 3, 2 and 5: t = (10 / 3) / (7 / 3 / 3)**0.5 = 3.78 with two degrees of freedom, p = 1 - t / (2 + t**2)**0.5
    assert "lenet_m: PAT (AR) - Independent in accuracy, 3.33 ± 0.88 (3 seeds, p = 0.063)" in table.paired(
        protocol, lines
    )
