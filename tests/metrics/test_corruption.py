import pytest

from choral.base.errors import InputError
from choral.metrics import corrupted_means, corruption_errors, mean_corruption_error

ERRORS = {"fog": [0.2, 0.3], "snow": [0.4, 0.6]}
BASELINE = {"fog": [0.4, 0.6], "snow": [0.3, 0.5]}


def test_corruption_errors_by_hand() -> None:
    assert corruption_errors(ERRORS, BASELINE) == pytest.approx({"fog": 0.5, "snow": 1.25})
    assert mean_corruption_error(ERRORS, BASELINE) == pytest.approx(0.875)
    # Fog adds 0.5 - 2 * 0.1 against 1.0 - 2 * 0.2, snow 1.0 - 0.2 against 0.8 - 0.4.
    relative = corruption_errors(ERRORS, BASELINE, clean_error=0.1, baseline_clean_error=0.2)
    assert relative == pytest.approx({"fog": 0.5, "snow": 2.0})
    assert mean_corruption_error(ERRORS, BASELINE, clean_error=0.1, baseline_clean_error=0.2) == pytest.approx(1.25)


def test_the_baseline_against_itself_is_one() -> None:
    assert mean_corruption_error(BASELINE, BASELINE) == pytest.approx(1.0)
    own = mean_corruption_error(BASELINE, BASELINE, clean_error=0.1, baseline_clean_error=0.1)
    assert own == pytest.approx(1.0)


def test_means_weigh_every_cell_the_same_and_keep_only_what_all_cells_hold() -> None:
    results = {
        "fog": [{"accuracy": 0.9, "nll": 0.1, "ece": 0.0}, {"accuracy": 0.7, "nll": 0.5}],
        "snow": [{"accuracy": 0.5, "nll": 1.5, "ece": 0.2}],
    }
    assert corrupted_means(results) == pytest.approx({"c_accuracy": 0.7, "c_nll": 0.7})


def test_unlike_tables_are_refused() -> None:
    with pytest.raises(InputError, match="same ones"):
        mean_corruption_error(ERRORS, {"fog": [0.1, 0.2]})
    with pytest.raises(InputError, match="same ones"):
        mean_corruption_error(ERRORS, {"fog": [0.1, 0.2], "snow": [0.1]})
    with pytest.raises(InputError, match="'fog' is 0"):
        mean_corruption_error({"fog": [0.1]}, {"fog": [0.0]})
