"""The command, run in this process as its entry point would."""

import contextlib
import io
import sys

from choral.cli import main


class Done:
    def __init__(self, stdout, stderr, code):
        self.stdout, self.stderr, self.code = stdout, stderr, code


def run(*arguments):
    """Return what a command printed and its exit code; any exception that gets out is the caller's."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    old, sys.argv = sys.argv, ["choral", *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as stop:
        code = stop.code or 0
    finally:
        sys.argv = old
    return Done(out.getvalue(), err.getvalue(), code)


def choral(*arguments, expect=0):
    """Return what a command printed, which ends as expected."""
    done = run(*arguments)
    assert done.code == expect, f"exit {done.code}: {done.stderr}{done.stdout}"
    return done


def sentence(done):
    """The one line a mistake is answered with."""
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("choral: ")
    assert "Traceback" not in done.stderr + done.stdout
    return lines[0]


def refused(*arguments):
    """The sentence of a command that is refused."""
    return sentence(choral(*arguments, expect=2))
