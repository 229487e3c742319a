"""Memory of `choral predict big.parquet --out predictions.parquet`: five million rows, killed once on the way.

    python benchmarks/stream.py [--rows 5000000] [--folder /tmp/stream]

`base_mb` is the peak memory of the same command for 100 rows: Python, torch and the model. `peak_mb` is that of the large file, in the call that
was killed and in the one that went on. Writes benchmarks/results/stream.json.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import parquet

import choral
from machine import write

STEP = 250_000


def rows(count: int, seed: int) -> pd.DataFrame:
    """Return rows of a table of houses."""
    draw = np.random.default_rng(seed)
    frame = pd.DataFrame({f"x{i}": draw.normal(size=count).astype("float32") for i in range(6)})
    frame["town"] = draw.choice(["Ulm", "Bonn", "Kiel", "Trier"], count)
    frame["price"] = frame["x0"] * 3 + frame["x1"] ** 2 + (frame["town"] == "Ulm") + draw.normal(size=count) * 0.3
    return frame


def predict(folder: Path, name: str, *, kill_when: int | None = None) -> tuple[float, float]:
    """Run the command; return peak memory in MB and seconds. It is killed once so many chunks are there."""
    out = folder / f"{name}.out.parquet"
    call = [
        sys.executable,
        "-m",
        "choral",
        "predict",
        folder / "model.choral",
        folder / f"{name}.parquet",
        "--out",
        out,
    ]
    begun, parts = time.monotonic(), out.with_name(f".{out.name}.parts")
    process = subprocess.Popen([str(part) for part in call])
    while kill_when is not None and len(list(parts.glob("0*.parquet"))) < kill_when:
        time.sleep(0.2)
    if kill_when is not None:
        process.kill()
    _, status, used = os.wait4(process.pid, 0)
    assert kill_when is not None or status == 0, status
    return used.ru_maxrss / 1024, time.monotonic() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/choral-stream"))
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    ensemble = choral.fit_table(rows(4_000, 0), "price", method="packed", members=4, epochs=8, progress=False)
    ensemble.save(asked.folder / "model.choral")
    rows(100, 1).drop(columns="price").to_parquet(asked.folder / "small.parquet")
    with parquet.ParquetWriter(
        asked.folder / "big.parquet", pa.Schema.from_pandas(rows(1, 1).drop(columns="price"), preserve_index=False)
    ) as file:
        for start in range(0, asked.rows, STEP):
            some = rows(min(STEP, asked.rows - start), start + 2).drop(columns="price")
            file.write_table(pa.Table.from_pandas(some, preserve_index=False))
    base, _ = predict(asked.folder, "small")
    chunks = asked.rows // (1 << 16)
    killed, first = predict(asked.folder, "big", kill_when=chunks // 3)
    resumed, second = predict(asked.folder, "big")
    written = parquet.read_table(asked.folder / "big.out.parquet", columns=["row", "mean"])
    assert written.num_rows == asked.rows
    assert written["row"].to_numpy()[-1] == asked.rows - 1
    some = np.random.default_rng(0).integers(asked.rows, size=200)
    right = ensemble.predict(parquet.read_table(asked.folder / "big.parquet").take(some).to_pandas()).mean
    apart = float(np.abs(written["mean"].to_numpy()[some] - right.numpy()).max())
    content = {
        "rows": asked.rows,
        "base_mb": round(base),
        "peak_mb": {"killed": round(killed), "resumed": round(resumed)},
        "above_base_mb": round(max(killed, resumed) - base),
        "seconds": {"until_killed": round(first, 1), "resumed": round(second, 1)},
        "largest_difference_from_predict": apart,
    }
    print(content)
    write("stream", content)


if __name__ == "__main__":
    main()
