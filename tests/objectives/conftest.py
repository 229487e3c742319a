"""A problem with a known answer: linear regression with a Gaussian prior and known noise."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor


@dataclass(frozen=True)
class LinearRegression:
    """y = x theta + noise with Gaussian prior and noise of known size: the posterior is N(mean, covariance)."""

    x: Tensor
    y: Tensor
    prior_std: float
    noise_std: float

    @property
    def precision(self) -> Tensor:
        """Of the posterior: x^T x / noise variance + 1 / prior variance."""
        features = self.x.shape[1]
        return self.x.T @ self.x / self.noise_std**2 + torch.eye(features, dtype=self.x.dtype) / self.prior_std**2

    @property
    def covariance(self) -> Tensor:
        return torch.linalg.inv(self.precision)

    @property
    def mean(self) -> Tensor:
        return self.covariance @ self.x.T @ self.y / self.noise_std**2


@pytest.fixture(scope="session")
def linear_regression() -> LinearRegression:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(12, 4, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 0.3, 2.0, 0.05])
    y = x @ torch.tensor([1.0, -2.0, 0.5, 0.0], dtype=torch.float64)
    y = y + 0.6 * torch.randn(12, generator=generator, dtype=torch.float64)
    return LinearRegression(x, y, prior_std=0.7, noise_std=0.6)
