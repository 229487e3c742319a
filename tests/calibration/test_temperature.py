from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from choral.base.errors import InputError
from choral.base.values import from_dict
from choral.calibration import Temperature, fit_temperature
from choral.metrics import ece, logits_nll


def case(
    seed: int,
    *,
    members: int = 3,
    batch: int = 60,
    classes: int = 4,
    sharpness: float = 1.0,
    dtype: torch.dtype = torch.float64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Members are noisy copies of logits that generate the labels, multiplied by `sharpness`."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randn(batch, classes, generator=generator, dtype=torch.float64) * 1.5
    labels = torch.multinomial(truth.softmax(-1), 1, generator=generator).squeeze(1)
    noise = torch.randn(members, batch, classes, generator=generator, dtype=torch.float64)
    return ((truth + 0.5 * noise) * sharpness).to(dtype), labels


@given(
    seed=st.integers(0, 100_000),
    members=st.integers(1, 4),
    batch=st.integers(1, 40),
    sharpness=st.floats(0.01, 300.0),
    per=st.sampled_from(["ensemble", "member"]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
@settings(max_examples=60, deadline=None)
def test_the_likelihood_fitted_on_never_rises(seed, members, batch, sharpness, per, dtype) -> None:
    logits, labels = case(seed, members=members, batch=batch, sharpness=sharpness, dtype=dtype)
    fitted = fit_temperature(logits, labels, per=per)
    assert logits_nll(fitted.apply(logits), labels) <= logits_nll(logits, labels)
    assert all(0.0499 < t < 20.01 for t in fitted.temperatures)


def test_a_search_that_fails_leaves_the_logits_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels = case(0)
    monkeypatch.setattr("scipy.optimize.minimize", lambda *args, **kwargs: SimpleNamespace(x=np.array([2.0])))
    assert fit_temperature(logits, labels) == Temperature(temperatures=(1.0,))


@pytest.mark.parametrize("sharpness", [0.2, 1.0, 5.0])
def test_one_temperature_agrees_with_a_bounded_scalar_search(sharpness: float) -> None:
    logits, labels = case(1, batch=400, sharpness=sharpness)
    best = minimize_scalar(lambda u: logits_nll(logits / np.exp(u), labels), bounds=(-3, 3), method="bounded")
    fitted = fit_temperature(logits, labels)
    assert len(fitted.temperatures) == 1
    assert logits_nll(fitted.apply(logits), labels) == pytest.approx(best.fun, abs=1e-8)
    assert np.log(fitted.temperatures[0]) == pytest.approx(best.x, abs=1e-3)


def test_a_known_sharpness_is_undone() -> None:
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(20_000, 5, generator=generator, dtype=torch.float64) * 2
    labels = torch.multinomial(truth.softmax(-1), 1, generator=generator).squeeze(1)
    logits = (3.0 * truth).unsqueeze(0)
    fitted = fit_temperature(logits, labels)
    assert fitted.temperatures[0] == pytest.approx(3.0, rel=0.03)
    assert ece(fitted.apply(logits)[0].softmax(-1), labels) < 0.01 < ece(logits[0].softmax(-1), labels)


def test_members_of_different_sharpness_get_their_own_temperatures() -> None:
    logits, labels = case(2, members=3, batch=3_000)
    logits = logits * torch.tensor([0.5, 1.0, 4.0], dtype=torch.float64)[:, None, None]
    one, each = fit_temperature(logits, labels), fit_temperature(logits, labels, per="member")
    assert logits_nll(each.apply(logits), labels) < logits_nll(one.apply(logits), labels) - 1e-3
    # A stationary point: no single temperature can be moved to advantage.
    for member in range(3):
        for factor in (0.97, 1.03):
            moved = list(each.temperatures)
            moved[member] *= factor
            other = Temperature(temperatures=tuple(moved))
            assert logits_nll(other.apply(logits), labels) > logits_nll(each.apply(logits), labels)


def test_weights_count_in_the_average() -> None:
    logits, labels = case(3, members=2, batch=500)
    logits[1] *= 10
    first = torch.tensor([1.0, 0.0], dtype=torch.float64)
    weighted = fit_temperature(logits, labels, weights=first)
    alone = fit_temperature(logits[:1], labels)
    assert weighted.temperatures[0] == pytest.approx(alone.temperatures[0], rel=1e-4)


def test_it_is_written_as_plain_numbers_and_read_back() -> None:
    logits, labels = case(4)
    fitted = fit_temperature(logits, labels, per="member")
    assert from_dict(fitted.to_dict()) == fitted
    assert set(fitted.to_dict()) == {"kind", "temperatures"}


def test_wrong_arguments_are_refused() -> None:
    logits, labels = case(5)
    with pytest.raises(InputError, match="'ensemble' or 'member'"):
        fit_temperature(logits, labels, per="class")  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(InputError, match="member, batch, class"):
        fit_temperature(logits[0], labels)
    with pytest.raises(InputError, match="one for all or one for each"):
        Temperature(temperatures=(1.0, 2.0)).apply(logits)
    with pytest.raises(InputError, match="NaN or infinite"):
        fit_temperature(logits / 0, labels)
