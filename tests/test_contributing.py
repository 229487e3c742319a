"""The method that CONTRIBUTING.md writes does what it says and passes the checks it promises."""

import importlib.util
import itertools
import re
import sys
from pathlib import Path

import pytest
import torch
from tests.conformance import test_methods as conformance

from choral.base import values
from choral.fit import fit
from choral.plan import SGD
from choral.recipes import METHODS, Method, make
from choral.recipes.training import Training
from choral.testing import check_recipe
from choral.testing.problems import CALM, PROBLEMS

TEXT = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text()


@pytest.fixture
def shaken(tmp_path, monkeypatch):
    """The method of the text, written into a file and registered as the text says."""
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    (tmp_path / "shaken.py").write_text(code)
    spec = importlib.util.spec_from_file_location("choral.recipes.shaken", tmp_path / "shaken.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "choral.recipes.shaken", module)
    monkeypatch.setattr(values, "KINDS", dict(values.KINDS))
    spec.loader.exec_module(module)
    line = re.search(r'`"shaken": (Method\(shaken, "\w+"\))`', TEXT)
    assert line is not None
    monkeypatch.setitem(METHODS, "shaken", eval(line[1], {"Method": Method, "shaken": module.shaken}))
    return module


def still(**options):
    """Members of a plan whose training moves nothing that can be seen."""
    build, data = PROBLEMS["classification"]
    training = Training(lr=1e-12, optimizer=SGD(), batch_size=16)
    return list(fit(build, data(), make("shaken", budget=4, members=4, training=training, **options)).states())


def test_members_differ_by_the_shake_and_by_nothing_else(shaken):
    for before, after in itertools.pairwise(still(scale=0.2)):
        moves = {n: after.params[n] - before.params[n] for n in before.params}
        sizes = {n: p.square().mean().sqrt() for n, p in before.params.items()}
        relative = torch.cat(
            [(moves[n] / sizes[n]).flatten() for n in moves if sizes[n] > 1e-6]
        )  # the rest is training
        assert relative.std() == pytest.approx(0.2, rel=0.15)
        assert relative.mean() == pytest.approx(0, abs=0.04)
    for before, after in itertools.pairwise(still(scale=0.0)):
        assert all(torch.allclose(before.params[n], after.params[n], atol=1e-8) for n in before.params)


def test_the_first_member_is_that_of_a_method_that_does_not_shake(shaken):
    build, data = PROBLEMS["classification"]
    one, other = (
        list(fit(build, data(), make("shaken", budget=8, members=2, scale=scale, training=CALM)).states())
        for scale in (0.0, 0.2)
    )
    assert all(torch.equal(one[0].params[n], other[0].params[n]) for n in one[0].params)
    assert not any(torch.equal(one[1].params[n], other[1].params[n]) for n in one[1].params)


def test_it_passes_the_conformance_checks(shaken, tmp_path):
    conformance.test_its_defaults_make_a_sound_plan_that_survives_json("shaken")
    conformance.test_it_spends_no_more_than_its_budget("shaken", 24)
    conformance.test_it_combines_its_members_as_it_is_told("shaken", tmp_path)


@pytest.mark.parametrize("problem", ["regression", pytest.param("images", marks=pytest.mark.full)])
def test_it_passes_the_public_suite_from_outside_the_package(shaken, problem):
    assert "check_recipe(shaken(epochs=6, members=3" in TEXT
    check_recipe(shaken.shaken(epochs=6, members=3, training=CALM), problems=(problem,))


def test_frozen_layers_are_not_shaken(shaken):
    build, data = PROBLEMS["regression"]
    network = build()
    first = next(iter(network.parameters())).requires_grad_(False)
    name = next(n for n, _ in network.named_parameters())
    for state in fit(network, data(), make("shaken", budget=4, members=2, training=CALM)).states():
        assert torch.equal(state.params[name], first)


def test_the_text_names_every_place_that_lists_methods():
    root = Path(__file__).parent.parent
    lists = [
        path.relative_to(root).as_posix()
        for path in [*(root / "src").rglob("*"), root / "README.md", *(root / "docs").glob("*.md")]
        if path.suffix in (".py", ".md")
        and all(re.search(rf"\b{n}\b", path.read_text()) for n in ("masksembles", "treenet", "swag", "bagged"))
    ]
    assert sorted(lists) == ["README.md", "src/choral/recipes/__init__.py"]
    for edit in ("src/choral/recipes/__init__.py", "`__all__`", "`METHODS`", "README"):
        assert edit in TEXT
