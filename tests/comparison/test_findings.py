"""What a comparison says in words: what to use, and what is noise."""

import pytest

from choral.comparison.comparison import difference, verdict


def findings_of(by_seed, baseline):
    return verdict(by_seed, baseline=baseline)[1]


def rows(*methods):
    return [{"method": m, "train_flops": 100.0, "predict_flops": 1.0, **values} for m, values in methods]


def test_noise_is_called_noise_and_a_consistent_gain_is_not():
    assert difference("nll", [0.10, 0.12, 0.11], [0.20, 0.22, 0.21]).word == "better"
    assert difference("accuracy", [0.9, 0.92, 0.91], [0.95, 0.97, 0.96]).word == "worse"
    spread = difference("nll", [0.10, 0.25, 0.11], [0.20, 0.20, 0.20])
    assert spread.word == "level"
    assert spread.noise == pytest.approx(4.30 * 0.0839 / 3**0.5, rel=0.01)  # 4.30: Student's, two degrees of freedom
    assert difference("nll", [0.1], [0.2]).noise is None
    assert difference("nll", [0.2, 0.2], [0.2, 0.2]).word == "level"


def test_what_to_use_is_the_best_that_is_not_worse_in_accuracy():
    seeds = [
        rows(
            ("single", {"nll": 0.30 + e, "accuracy": 0.96, "ece": 0.05}),
            ("sharp", {"nll": 0.10 + e, "accuracy": 0.90, "ece": 0.01}),
            (
                "packed",
                {"nll": 0.15 + e, "accuracy": 0.96, "ece": 0.02 + e, "train_flops": 120.0, "predict_flops": 4.0},
            ),
            ("twin", {"nll": 0.151 + 2 * e, "accuracy": 0.96, "ece": 0.05}),
        )
        for e in (0.0, 0.001, -0.002)
    ]
    best, said = verdict(seeds, baseline="single")
    assert best == "packed"
    assert said[0].startswith("Use packed: the best likelihood")
    assert "Within noise of it: twin." in said[0]
    assert [s.split(" ")[0] for s in said[1:]] == ["sharp", "packed", "twin"]
    assert said[2] == (
        "packed compared with single: better in likelihood and calibration; within noise in accuracy; 1.2x its training and 4x its prediction."
    )
    assert "worse in accuracy" in said[1]


def test_where_nothing_is_better_that_is_said():
    level = [rows(("single", {"nll": 0.3}), ("other", {"nll": 0.3 + e})) for e in (0.1, -0.2, 0.05)]
    assert findings_of(level, baseline="single")[0].startswith("Use single: no method is better beyond noise")
    worse = [rows(("single", {"nll": 0.3}), ("other", {"nll": 0.5 + e})) for e in (0.1, 0.0, 0.05)]
    assert findings_of(worse, baseline="single")[0].startswith("Use single: no method is better")
    assert verdict(level, baseline="single")[0] == verdict(worse, baseline="single")[0] == "single"
    costly = rows(("single", {"nll": 0.3, "accuracy": 0.9}), ("a", {"nll": 0.2, "accuracy": 0.8}))
    assert "in likelihood without losing accuracy or calibration" in findings_of([costly], baseline="single")[0]
    wild = [rows(("single", {"nll": 0.3, "ece": e}), ("a", {"nll": 0.1 + e, "ece": 0.08})) for e in (0.03, 0.06)]
    assert findings_of(wild, baseline="single")[0].startswith(
        "Use single"
    )  # 0.035 of calibration, though two seeds are few
    assert "several seeds" in findings_of([rows(("single", {"nll": 0.3}), ("a", {"nll": 0.1}))], baseline="single")[0]
    assert findings_of([rows(("single", {"nll": 0.3}))], baseline="single") == []
    missing = [rows(("single", {"nll": 0.3}), ("broken", {"nll": None}), ("a", {"nll": 0.1}))]
    assert len(findings_of(missing, baseline="single")) == 2


def test_a_method_that_wins_by_chance_does_not_hide_one_that_wins_beyond_noise():
    by_seed = [
        rows(("single", {"nll": 0.30 + shift}), ("wild", {"nll": wild}), ("steady", {"nll": 0.20 + shift}))
        for shift, wild in ((0.0, 0.05), (0.01, 0.31), (0.02, 0.10))
    ]
    assert findings_of(by_seed, baseline="single")[0].startswith("Use steady")
