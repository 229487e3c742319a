"""Options that go together as one value."""

from dataclasses import fields
from typing import Annotated, get_args

import pytest
import typer
from typer.testing import CliRunner

from choral.cli.app import app
from choral.cli.options import Reading, Running, Settings, Watching, spread


def heard(words):
    """Return what a command of some values gets from the words of a shell."""
    found = {}
    shell = typer.Typer()

    @shell.command()
    @spread
    def command(
        name: str, *, members: Annotated[int, typer.Option("--members")] = 4, settings: Settings, watching: Watching
    ) -> None:
        found.update(name=name, members=members, settings=settings, watching=watching)

    done = CliRunner().invoke(shell, words, catch_exceptions=False)
    return found, done


def test_every_option_of_a_value_is_typed_for_itself():
    found, _ = heard(["a", "--lr", "0.5", "--patience", "3"])
    assert found == {
        "name": "a",
        "members": 4,
        "settings": Settings(lr=0.5),
        "watching": Watching(patience=3),
    }


def test_a_bound_of_an_option_holds_within_a_value():
    found, done = heard(["a", "--patience", "0"])
    assert done.exit_code == 2
    assert not found


@pytest.mark.parametrize("command", ["fit", "compare", "plan"])
def test_commands_offer_all_that_their_values_have(command):
    (made,) = [c for c in app.registered_commands if c.callback.__name__ == command]
    kinds = {"fit": (Reading, Settings, Watching, Running), "compare": (Reading, Settings, Running)}
    offered = made.callback.__annotations__
    for kind in kinds.get(command, (Reading, Settings, Watching)):
        for field in fields(kind):
            (wanted, option), (found, shown) = get_args(field.type), get_args(offered[field.name])
            assert found == wanted
            assert (shown.param_decls, shown.help) == (option.param_decls, option.help)
