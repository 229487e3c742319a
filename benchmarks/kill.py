"""Kill one run without warning at many random moments and compare its members with an unbroken run's, byte for byte.

python benchmarks/kill.py [--kills 25]
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from machine import write

EPOCHS = "240"
SCRIPT = Path(__file__).parent.parent / "tests" / "engine" / "killed_run.py"


def members(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every member file."""
    return {p.name: p.read_bytes() for p in sorted((folder / "members").iterdir())}


def main() -> None:
    """Run the check for three methods."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=25)
    wanted = parser.parse_args().kills
    rows = []
    for method in ("deep_ensemble", "snapshot", "bagged"):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            subprocess.run([sys.executable, str(SCRIPT), method, str(folder / "whole"), EPOCHS], check=True)
            chance, kills, starts = random.Random(1), 0, 0
            while True:
                starts += 1
                process = subprocess.Popen([sys.executable, str(SCRIPT), method, str(folder / "killed"), EPOCHS])
                if kills < wanted:
                    log = folder / "killed" / "log.jsonl"
                    size = log.stat().st_size if log.exists() else 0
                    # a third of the kills at any moment, the rest after some new progress, so that the run gets on
                    if kills % 3:
                        while process.poll() is None and not (log.exists() and log.stat().st_size != size):
                            time.sleep(0.005)
                        time.sleep(chance.uniform(0, 0.15))
                    else:
                        time.sleep(chance.uniform(0, 8))
                    if process.poll() is None:
                        process.kill()
                        kills += 1
                if process.wait() == 0:
                    break
            same = members(folder / "killed") == members(folder / "whole")
            rows.append({"method": method, "kills": kills, "starts": starts, "identical": same})
            print(rows[-1])
    write("kill", {"rows": rows})


if __name__ == "__main__":
    main()
