"""Memory of `choral predict big.parquet --out predictions.parquet`, and of the same with .csv: five million rows, killed once on the way.

    python benchmarks/stream.py [--rows 5000000] [--kinds parquet csv] [--folder /tmp/choral-stream]

`base_mb` is the peak memory of the same command for 100 rows: Python, torch and the model. `peak_mb` is that of the large file, in the call that
was killed and in the one that went on. Writes benchmarks/results/stream.json.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import csv, parquet

import choral
from machine import measured, write

STEP = 250_000


def rows(count: int, seed: int) -> pd.DataFrame:
    """Return rows of a table of houses."""
    draw = np.random.default_rng(seed)
    frame = pd.DataFrame({f"x{i}": draw.normal(size=count).astype("float32") for i in range(6)})
    frame["town"] = draw.choice(["Ulm", "Bonn", "Kiel", "Trier"], count)
    frame["price"] = frame["x0"] * 3 + frame["x1"] ** 2 + (frame["town"] == "Ulm") + draw.normal(size=count) * 0.3
    return frame


def predict(folder: Path, name: str, ends: str, *, kill_when: int | None = None) -> tuple[float, float]:
    """Run the command; return peak memory in MB and seconds. It is killed once so many chunks are there."""
    out = folder / f"{name}.out{ends}"
    call = [sys.executable, "-m", "choral", "predict", folder / "model.choral", folder / f"{name}{ends}", "--out", out]
    begun, parts = time.monotonic(), out.with_name(f".{out.name}.parts")
    process, peak = subprocess.Popen([str(part) for part in call]), 0
    while process.poll() is None:  # what wait4 returns counts the memory of this process at the fork too
        status = Path(f"/proc/{process.pid}/status").read_text()
        peak = max([peak, *(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))])
        if kill_when is not None and len(list(parts.glob("0*.parquet"))) >= kill_when:
            process.kill()
        time.sleep(0.05)
    assert kill_when is not None or process.returncode == 0, process.returncode
    return peak / 1024, time.monotonic() - begun


def write_rows(path: Path, count: int) -> None:
    """Write a table of so many rows."""
    schema = pa.Schema.from_pandas(rows(1, 1).drop(columns="price"), preserve_index=False)
    kind = csv.CSVWriter if path.suffix == ".csv" else parquet.ParquetWriter
    with kind(path, schema) as file:
        for start in range(0, count, STEP):
            some = rows(min(STEP, count - start), start + 2).drop(columns="price")
            file.write_table(pa.Table.from_pandas(some, preserve_index=False))


def measure(folder: Path, ends: str, count: int, ensemble: choral.Ensemble) -> dict[str, Any]:
    """Predict a small table and a large one, killed once on the way; return memory, seconds and how far the result is from `predict`."""
    write_rows(folder / f"small{ends}", 100)
    write_rows(folder / f"big{ends}", count)
    base, _ = predict(folder, "small", ends)
    killed, first = predict(folder, "big", ends, kill_when=max(1, count // (1 << 16) // 3))
    resumed, second = predict(folder, "big", ends)
    read = pd.read_csv if ends == ".csv" else pd.read_parquet
    written = read(folder / f"big.out{ends}")
    assert written["row"].tolist() == list(range(count))
    some = np.random.default_rng(0).integers(count, size=200)
    right = ensemble.predict(read(folder / f"big{ends}").iloc[some]).mean
    return {
        "rows": count,
        "base_mb": round(base),
        "peak_mb": {"killed": round(killed), "resumed": round(resumed)},
        "above_base_mb": round(max(killed, resumed) - base),
        "seconds": {"until_killed": round(first, 1), "resumed": round(second, 1)},
        "largest_difference_from_predict": float(np.abs(written["mean"].to_numpy()[some] - right.numpy()).max()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--kinds", nargs="+", default=["parquet", "csv"], choices=["parquet", "csv"])
    parser.add_argument("--folder", type=Path, default=Path("/tmp/choral-stream"))
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    ensemble = choral.fit_table(rows(4_000, 0), "price", method="packed", members=4, epochs=8, progress=False)
    ensemble.save(asked.folder / "model.choral")
    content = {name: value for name, value in measured("stream").items() if name in ("parquet", "csv")}
    for kind in asked.kinds:
        content[kind] = measure(asked.folder, f".{kind}", asked.rows, ensemble)
        print(kind, content[kind], flush=True)
        write("stream", content)


if __name__ == "__main__":
    main()
