"""The README names what exists."""

import re
from pathlib import Path

from choral.recipes import METHODS

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text()


def test_the_table_of_methods_is_complete():
    listed = re.findall(r"^\| `(\w+)` \|", TEXT, flags=re.MULTILINE)
    assert listed == list(METHODS)


def test_every_link_and_picture_exists():
    targets = re.findall(r"\]\(([^)#]+)\)", TEXT)
    assert targets
    assert not [t for t in targets if not (ROOT / t).exists()]


def test_every_make_target_it_names_exists():
    makefile = (ROOT / "Makefile").read_text()
    assert all(f"\n{target}:" in makefile for target in re.findall(r"make (\w+)  ", TEXT))
