import torch
from torch import nn

from choral import predict
from choral.fit import fit
from choral.recipes import make


def test_only_small_chunks_are_recorded_since_recording_holds_every_result(monkeypatch):
    """Recording a chunk of a thousand images took gigabytes, and more time than it saved."""
    sizes = []
    record = predict.record
    monkeypatch.setattr(predict, "record", lambda f, example: sizes.append(example[0].numel()) or record(f, example))
    x, y = torch.randn(12, 3, 64, 64), torch.arange(12) % 3

    def build():
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))

    ensemble = fit(build, (x, y), make("deep_ensemble", epochs=2, members=2))
    many = torch.randn(64, 3, 64, 64)
    outputs = ensemble.outputs(many)
    assert sizes == []
    assert torch.allclose(ensemble.outputs(many[:5]), outputs[:, :5], atol=1e-5)
    assert sizes == [5 * 3 * 64 * 64]
