"""`python -m choral` is the `choral` command."""

from choral.cli import main

main()
