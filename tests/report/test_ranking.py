from hypothesis import given
from hypothesis import strategies as st

from choral.report.content import front, ranking

POINTS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=12)


@given(POINTS)
def test_the_front_beats_all_others_and_nobody_beats_the_front(points):
    kept = [p for p, on in zip(points, front(points)) if on]
    for p, on in zip(points, front(points)):
        better = [q for q in kept if q[0] <= p[0] and q[1] <= p[1] and q != p]
        assert bool(better) is not on


def test_ranks_follow_the_loss_and_rows_without_one_come_last():
    rows = [
        {"method": "b", "nll": 0.3, "train_flops": 1.0},
        {"method": "a", "nll": 0.2, "train_flops": 5.0},
        {"method": "c", "nll": None, "train_flops": 0.1},
        {"method": "d", "nll": 0.4, "train_flops": 2.0},
        {"method": "e", "nll": 0.1, "train_flops": None},
    ]
    found = ranking(rows, costs=["train_flops", "memory"])
    assert [(e["method"], e["rank"]) for e in found] == [("e", 1), ("a", 2), ("b", 3), ("d", 4), ("c", None)]
    assert {e["method"] for e in found if "train_flops" in e["pareto"]} == {"a", "b"}
    assert not any("memory" in e["pareto"] for e in found)
