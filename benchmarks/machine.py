"""What a benchmark ran on, and where it writes."""

import json
import os
import platform
from pathlib import Path
from typing import Any

import torch

import choral

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    """Return processor, cores, threads and versions."""
    model = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "choral": choral.__version__,
    }


def write(name: str, content: dict[str, Any]) -> Path:
    """Write a results file with the machine it was made on."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": machine(), **content}, indent=1, sort_keys=True) + "\n")
    return path


def measured(name: str) -> dict[str, Any]:
    """Return what a results file holds; nothing if there is none."""
    path = RESULTS / f"{name}.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}
