"""The `choral` command. This module imports nothing heavy, so that `choral --help` answers at once."""

import sys


def main() -> None:
    """Run the command line: exit 2 with one sentence for a user's mistake, 130 when interrupted."""
    from choral.base.errors import ChoralError
    from choral.cli.app import app
    from choral.cli.output import note

    try:
        app(standalone_mode=True)
    except ChoralError as error:
        note(f"choral: {error}")
        sys.exit(2)
    except SystemExit as stop:
        if stop.code == 130:
            note("choral: interrupted; run the same command again to go on from the last checkpoint.")
        raise
    except BrokenPipeError:
        sys.exit(0)
