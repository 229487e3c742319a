import pytest
import torch
from torch import nn

from choral import predict
from choral.fit import fit
from choral.recipes import make


@pytest.fixture
def sizes(monkeypatch):
    """The sizes of the inputs whose operations are recorded."""
    found = []
    record = predict.record
    monkeypatch.setattr(predict, "record", lambda f, example: found.append(example[0].numel()) or record(f, example))
    return found


def test_only_small_chunks_are_recorded_since_recording_holds_every_result(sizes):
    x, y = torch.randn(12, 8192), torch.arange(12) % 3
    ensemble = fit(lambda: nn.Linear(8192, 3), (x, y), make("deep_ensemble", epochs=2, members=2))
    many = torch.randn(64, 8192)
    outputs = ensemble.outputs(many)
    assert sizes == []
    assert torch.allclose(ensemble.outputs(many[:5]), outputs[:, :5], atol=1e-4)
    assert sizes == [5 * 8192]


@pytest.mark.parametrize("name", ["deep_ensemble", "bnn_sequential", "sebays_no_freeze"])
def test_convolutions_of_any_kind_run_member_by_member(name, sizes):
    """Stacked and recorded, batches of images take gigabytes."""
    x, y = torch.randn(12, 3, 8, 8), torch.arange(12) % 3
    layers = [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)]
    options = {} if name == "deep_ensemble" else {"draws": 1}
    ensemble = fit(lambda: nn.Sequential(*layers), (x, y), make(name, epochs=4, members=2, **options))
    assert torch.isfinite(ensemble.outputs(x)).all()
    assert sizes == []
