"""The conformance suite for methods, choral's and your own: `check_recipe(recipe)`."""

from choral.testing.checks import CHECKS, check_recipe
from choral.testing.problems import PROBLEMS, Trial

__all__ = ["CHECKS", "PROBLEMS", "Trial", "check_recipe"]
