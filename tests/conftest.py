"""Settings shared by all tests: one thread, so that two workers share two cores and sums are the same everywhere."""

import torch

torch.set_num_threads(1)
