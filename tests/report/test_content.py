import shutil

import pytest

from choral.base.errors import RunError
from choral.engine.files import read_json
from choral.report.content import collect


def test_a_comparison_is_ranked_and_knows_its_plans(comparison):
    found = collect(comparison)
    assert found.title == "digits: 3 methods compared"
    losses = [found.row(m)["nll"] for m in found.methods]
    assert losses == sorted(losses)
    assert set(found.results["plans"]) == set(found.methods) == {"single", "snapshot", "prune_and_tune"}
    assert found.results["history"]["prune_and_tune"]["loss"]
    assert found.results["plans"]["single"]["made"]["command"]


def test_one_run_is_a_comparison_of_one(comparison):
    found = collect(comparison / "snapshot")
    assert found.methods == ["snapshot"]
    whole = collect(comparison).row("snapshot")
    own = found.row("snapshot")
    assert {k: whole[k] for k in own} == own


def test_a_folder_of_runs_needs_no_results_of_its_own(comparison, tmp_path):
    for name in ("single", "snapshot"):
        shutil.copytree(comparison / name, tmp_path / f"{name}-0")
    found = collect(tmp_path)
    assert set(found.methods) == {"single-0", "snapshot-0"}
    assert found.row("single-0")["nll"] == collect(comparison).row("single")["nll"]


def test_runs_that_were_not_evaluated_have_costs_only(comparison, tmp_path):
    shutil.copytree(comparison / "single", tmp_path / "run")
    (tmp_path / "run" / "evaluation.json").unlink()
    found = collect(tmp_path / "run")
    assert not found.evaluations
    assert found.row("single")["train_flops"] > 0


def test_other_folders_are_refused_with_a_sentence(tmp_path):
    with pytest.raises(RunError, match="holds no run"):
        collect(tmp_path)
    with pytest.raises(RunError, match="is not a folder"):
        collect(tmp_path / "nothing")


def test_every_file_has_one_writer(comparison):
    runs = {"plan.json", "results.json", "evaluation.json", "log.jsonl", "members", "checkpoints", ".lock"}
    assert {p.name for p in (comparison / "single").iterdir()} <= runs
    costs = read_json(comparison / "single" / "results.json") or {}
    assert set(costs) == {"counted", "stopped", "parameters", "predict_flops", "networks", "outputs", "seconds"}
    assert set(read_json(comparison / "single" / "evaluation.json") or {}) == {"evaluation", "judged_by", "ensemble"}
    compared = {"comparison.json", "report.json", "report.html", "figures", "single", "snapshot", "prune_and_tune"}
    assert {p.name for p in comparison.iterdir()} == compared
