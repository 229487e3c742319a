"""Networks trained by other libraries, through ensemble_of."""

import logging

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import choral

X = torch.randn(48, 5, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")  # what another library warns of is its own affair
def test_lightning_modules_as_they_are_after_training(tmp_path):
    lightning = pytest.importorskip("lightning")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Classifier(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))

        def forward(self, x):
            return self.body(x)

        def training_step(self, batch, _):
            return nn.functional.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.01)

    networks = []
    for seed in range(2):
        lightning.seed_everything(seed, verbose=False)
        networks.append(Classifier())
        trainer = lightning.Trainer(
            max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, default_root_dir=tmp_path,
        )  # fmt: skip
        trainer.fit(networks[-1], DataLoader(TensorDataset(X, Y), batch_size=16))
    ensemble = choral.ensemble_of(networks, data=(X, Y))
    with torch.no_grad():
        wanted = torch.stack([n.eval()(X) for n in networks])
    torch.testing.assert_close(ensemble.outputs(X), wanted, rtol=1e-5, atol=1e-6)
    ensemble.calibrated(X, Y).save(tmp_path / "e.choral")
    again = choral.load(tmp_path / "e.choral", build=Classifier)
    assert torch.equal(again.outputs(X), ensemble.outputs(X))
