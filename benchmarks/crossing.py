"""Count how many modules of choral one fit enters, how often control passes between them, and what runs before the first step.

python benchmarks/crossing.py
"""

import inspect
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

import choral
from choral.recipes import prune_and_tune

ROOT = str(Path(choral.__file__).parent)
entered, changes, before = Counter[str](), Counter[tuple[str, str]](), Counter[str]()
last, trained = "", False


class Net(nn.Sequential):
    """A small perceptron that counts its builds and forwards."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
        before["builds"] += not trained

    def forward(self, x: Any) -> Any:
        """Return logits."""
        before["forwards"] += not trained
        return super().forward(x)


def note(frame: FrameType, event: str, _: Any) -> None:
    """Count calls of functions in choral's modules; the first call of a step method ends what comes before training."""
    global last, trained
    code = frame.f_code
    function = code.co_flags & inspect.CO_OPTIMIZED  # else the body of a module or class
    if event != "call" or not function or not code.co_filename.startswith(ROOT):
        return
    module = code.co_filename[len(ROOT) + 1 : -3]
    if not trained and code.co_name == "train" and module == "engine/epochs":
        trained, before["changes"] = True, changes.total()
    entered[module] += 1
    if module != last:
        changes[last, module] += 1
    last = module


torch.manual_seed(0)
x, y, fit = torch.randn(256, 8), torch.arange(256) % 3, choral.fit  # which loads its modules
sys.setprofile(note)
fit(Net, (x, y), prune_and_tune(members=4, epochs=10), progress=False)
sys.setprofile(None)
print(f"modules {len(entered)}, module changes {changes.total()}, before the first step: {dict(before)}")
if "-v" in sys.argv:
    for (a, b), count in changes.most_common(60):
        print(f"{count:6d}  {a} -> {b}")
