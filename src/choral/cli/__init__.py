"""The `choral` command. This module imports nothing slow, so that `choral --help` is fast."""

import sys
import time


def main() -> None:
    """Run the command line; exit code 2 with one sentence for a user's error, 130 when interrupted."""
    started = time.perf_counter()  # of a time limit: loading torch counts
    from choral.cli.process import guarded, processes

    def run() -> int:
        from choral.cli.app import app

        with processes():
            return app(standalone_mode=False, obj=started) or 0

    sys.exit(guarded(run))
