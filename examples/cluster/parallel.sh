#!/usr/bin/env bash
# Train all leaves of a prepared run with GNU parallel: parallel.sh RUN [JOBS]
# Leaves become ready as those they go on from are done, so it asks until none is left.
set -euo pipefail
run=$1 jobs=${2:-2}
export OMP_NUM_THREADS=1
while ready=$(choral leaves "$run" --ready) && [ -n "$ready" ]; do
  echo "$ready" | parallel --jobs "$jobs" --halt soon,fail=1 --retries 3 choral run-leaf "$run" {} --quiet
done
