"""Write or compare SHA-256 digests of the members of all methods: the check of every refactoring.

Three problems (rows; images of three channels with BatchNorm; tokens), explicit settings, the sequential and the
vectorized executor, and a run that is stopped in the middle and resumed. Digests depend on the machine, so the record
is written on the commit before a change and compared after it, on the same machine. Resumed runs keep members in
files, where pruned weights of -0.0 become 0.0, so their digests differ from those of sparse members in memory.

    python tests/golden.py write golden.json
    python tests/golden.py compare golden.json
    python tests/golden.py compare golden.json packed rows/   # runs whose key holds one of these words
"""

import hashlib
import inspect
import json
import sys
import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import choral
from choral.recipes import METHODS, make
from choral.testing.problems import CALM, PROBLEMS

EPOCHS = 12
EXECUTORS: dict[str, Any] = {"sequential": "sequential", "vectorised": "vectorized"}
"""Executors by their names in records."""


class Tokens(nn.Module):
    """An embedding, a transformer layer with dropout and a mean over time."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.last = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        result: Tensor = self.last(self.layer(self.embedding(x)).mean(1))
        return result


def tokens() -> tuple[Tensor, Tensor]:
    """Return sequences of tokens and two classes."""
    x = torch.randint(20, (48, 7), generator=torch.Generator().manual_seed(5))
    return x, (x[:, 0] > 9).long()


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "rows": (PROBLEMS["classification"].build, PROBLEMS["classification"].data),
    "images": (PROBLEMS["images"].build, PROBLEMS["images"].data),
    "tokens": (Tokens, tokens),
}


def recipe(name: str, epochs: int = EPOCHS) -> Any:
    """Return a small recipe of a method, every training setting given."""
    choice = METHODS[name].options.get("members")
    several = choice is not None and choice.default not in (1, None, inspect.Parameter.empty)
    return make(name, budget=epochs, training=CALM, members=4 if several else None)


def digest(ensemble: Any) -> str:
    """Return the SHA-256 of all parameters and buffers of all members."""
    found = hashlib.sha256()
    for state in ensemble.states():
        for name, tensor in sorted((state.params | state.buffers).items()):
            found.update(name.encode())
            found.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def fitted(case: str, name: str, **options: Any) -> str:
    """Return the digest of one run, or the first words of its refusal."""
    build, data = CASES[case]
    try:
        return digest(choral.fit(build, data(), recipe(name), **options))
    except choral.ChoralError as error:
        return f"refused: {str(error)[:60]}"


class Stopped(Exception):
    """The run was stopped on purpose."""


def resumed(case: str, name: str) -> str:
    """Return the digest of a run that is stopped at every ninth event and resumed until it ends."""

    def listener() -> Callable[[dict[str, Any]], None]:
        seen = 0

        def hear(event: dict[str, Any]) -> None:
            nonlocal seen
            seen += 1
            if seen > 9:
                raise Stopped

        return hear

    with tempfile.TemporaryDirectory() as folder:
        for _ in range(200):
            try:
                return fitted(
                    case,
                    name,
                    run_dir=folder,
                    compute=choral.Compute(executor="sequential", checkpoint_seconds=0),
                    callbacks=listener(),
                )
            except Stopped:
                continue
    raise RuntimeError(f"{name} on {case} did not end")


def record(words: list[str]) -> dict[str, str]:
    """Return the digests of the runs whose key holds one of these words; of all runs, if there are none."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found = {}
    for case in CASES:
        for name in sorted(METHODS):
            for key in (*EXECUTORS, "resumed"):
                whole = f"{case}/{name}/{key}"
                if words and not any(word in whole for word in words):
                    continue
                if key == "resumed":
                    found[whole] = resumed(case, name)
                else:
                    found[whole] = fitted(case, name, compute=choral.Compute(executor=EXECUTORS[key]))
    return found


def main() -> None:
    """Write a record, or say what differs from one."""
    command, path, *words = sys.argv[1:]
    now = record(words)
    if command == "write":
        with open(path, "w") as file:
            json.dump(now, file, indent=1)
        return
    with open(path) as file:
        before = json.load(file)
    if words:
        before = {key: value for key, value in before.items() if key in now}
    other = [key for key in before if before[key] != now.get(key)]
    for key in other:
        sys.stdout.write(f"{key}: {before[key]} -> {now.get(key)}\n")
    sys.stdout.write(f"{len(before) - len(other)} of {len(before)} equal\n")
    sys.exit(bool(other))


if __name__ == "__main__":
    main()
