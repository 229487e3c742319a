"""Text from outside - names of methods, folders, columns and classes - made fit to be shown to people."""

import re

# Control characters, halves of surrogate pairs, what XML forbids, and characters that turn the direction of what follows.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]"
)


def visible(text: str) -> str:
    r"""Return text in which characters that steer a terminal, a page or the reading direction are replaced.

    Line ends and tabs stay.

    >>> visible("red \x1b[31m")
    'red �[31m'
    """
    return _UNSEEN.sub("\ufffd", text)


def short(name: str, most: int = 60) -> str:
    """Return a name on one line, with its middle left out if it is long.

    >>> short("a" * 50 + "b" * 50, most=11)
    'aaaaa…bbbbb'
    """
    line = " ".join(visible(name).split())
    half = (most - 1) // 2
    return line if len(line) <= most else f"{line[:half]}…{line[-half:]}"
