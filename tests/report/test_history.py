import json

import pytest

from choral.plan import Collect, Cosine, Reset, Train, fork, repeat, seq
from choral.recipes.recipe import Recipe
from choral.report.content import events, history_of, schedule


def test_the_schedule_follows_the_plan_along_one_branch():
    cycle = seq(Train(epochs=4, schedule=Cosine(0.2)), Collect())
    found = schedule(seq(Reset(), repeat(2, cycle), fork(3, Train(epochs=2), Collect())))
    assert found["collected"] == [4, 8, 10]
    assert found["forks"] == [[8, 3]]
    first, second, last = found["rate"]
    assert (first[0], first[-1][0]) == ([0.0, 0.2], 4.0)
    assert first[-1][1] == pytest.approx(0, abs=1e-6)
    assert dict(map(tuple, first))[2.0] == pytest.approx(0.1)
    assert second[0] == [4.0, 0.2]
    assert last == [[8.0, 0.1], [10.0, 0.1]]


def write_log(path, *lines):
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))


def epoch(number, total, flops, **more):
    counted = {"epochs": total, "train_flops": flops}
    return {"kind": "epoch", "epoch": number, "losses": [1.0 / total, 3.0 / total], "counted": counted} | more


def test_the_log_gives_losses_by_phase_operations_by_epoch_and_steps_of_sparsity(tmp_path):
    log = tmp_path / "log.jsonl"
    write_log(
        log,
        {"kind": "operator", "name": "Reset"},
        epoch(1, 2, 20.0),
        epoch(2, 4, 40.0),
        {"kind": "operator", "name": "Prune", "density": 0.25},
        epoch(1, 6, 50.0),
        '{"kind": "epo',
    )
    assert len(list(events(log))) == 5
    found = history_of({"kind": "NobodyKnowsThis"}, log)
    assert found["rate"] == []
    assert found["loss"] == [[[2, 1.0], [4, 0.5]], [[6, 0.333333]]]
    assert found["flops"] == [[2, 10.0], [4, 10.0], [6, 5.0]]
    assert found["sparsity"] == [[0.0, 0.0], [4, 0.0], [4, 0.75], [6, 0.75]]


def test_shares_that_remain_of_networks_that_close_nodes(tmp_path):
    log = tmp_path / "log.jsonl"
    left = [{"parameters": 0.5, "flops": 0.25}, {"parameters": 0.7, "flops": 0.35}]
    write_log(log, epoch(1, 2, 20.0, remaining=left))
    found = history_of({"kind": "NobodyKnowsThis"}, log)
    assert found["sparsity"] == [[2, 0.4]]
    assert found["working"] == [[2, 0.3]]


def test_a_run_without_a_log_still_has_its_schedule(tmp_path):
    recipe = Recipe(name="r", plan=seq(Reset(), Train(epochs=2), Collect()))
    found = history_of(recipe.to_dict(), tmp_path / "missing.jsonl")
    assert found["rate"] == [[[0.0, 0.1], [2.0, 0.1]]]
    assert found["loss"] == found["flops"] == found["sparsity"] == []


def test_validation_has_curves_of_its_own_by_phase(tmp_path):
    log = tmp_path / "log.jsonl"
    first, second = ({"validation": values, "measure": "nll"} for values in ([2.0, 4.0], [1.0, None]))
    write_log(log, epoch(1, 2, 20.0, **first), epoch(2, 4, 40.0, **second), epoch(1, 6, 60.0, **first))
    found = history_of({"kind": "NobodyKnowsThis"}, log)
    assert found["validation"] == [[[2, 3.0], [4, 1.0]], [[6, 3.0]]]
    assert found["measure"] == "nll"
    write_log(log, epoch(1, 2, 20.0))
    assert history_of({"kind": "NobodyKnowsThis"}, log)["validation"] == []
