"""Imports point downwards, and importing the package loads nothing heavy beyond torch."""

import ast
import subprocess
import sys
from pathlib import Path

import choral

ROOT = Path(choral.__file__).parent
LEVELS = [
    ["types", "errors", "lettering", "values", "rng", "mapping", "hashing", "streams", "catching", "draws", "tree"],
    [
        "masks",
        "packing",
        "walks",
        "variational",
        "layers",
        "objectives",
        "metrics",
        "models",
        "compaction",
        "posthoc",
        "corruptions",
    ],
    ["structures", "plan", "data"],
    ["training", "exploration", "recipe", "recipes"],
    ["engine"],
    [
        "prediction",
        "corrections",
        "saving",
        "predict",
        "fit",
        "projection",
        "trial",
        "evaluation",
        "showing",
        "networks",
        "compare",
        "sklearn",
        "report",
    ],
    ["cli", "__main__"],
]
LEVEL = {name: i for i, names in enumerate(LEVELS) for name in names}


def imports_of(path: Path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("choral"):
            parts = node.module.split(".")
            yield from [parts[1]] if len(parts) > 1 else [a.name for a in node.names]


def test_every_module_has_a_level_and_imports_only_its_own_or_lower_ones():
    upward = []
    for path in ROOT.rglob("*.py"):
        relative = path.relative_to(ROOT)
        own = relative.parts[0].removesuffix(".py")
        if own == "__init__":
            continue
        assert own in LEVEL, f"{relative} is in no level; add '{own}' to LEVELS"
        for name in imports_of(path):
            if name in LEVEL and LEVEL[name] > LEVEL[own]:
                upward.append(f"{relative} imports choral.{name}")
    assert not upward, upward


def test_no_module_is_named_after_nothing():
    assert not [p for p in ROOT.rglob("*.py") if p.stem in ("utils", "helpers", "common", "misc")]


def fresh(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout


def test_importing_the_public_names_loads_nothing_heavy_beyond_torch():
    code = (
        "import sys, choral; choral.fit, choral.recipes, choral.models, choral.compare, choral.metrics, choral.layers;"
        "heavy = ['torchmetrics', 'sklearn', 'pandas', 'matplotlib', 'pyarrow', 'scipy', 'rich', 'typer', 'torchvision', 'torch_pruning', 'ray', 'onnx'];"
        "print([h for h in heavy if h in sys.modules])"
    )
    assert fresh(code).strip() == "[]"


def test_the_command_line_s_help_does_not_load_torch():
    code = "import sys; import choral.cli.app; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    assert fresh(code).strip() == "[]"


def test_functions_are_not_hidden_by_the_modules_they_live_in():
    code = "import choral, choral.fit, choral.compare; choral.load; print([callable(f) for f in (choral.fit, choral.fit, choral.compare)])"
    assert fresh(code).strip() == "[True, True, True]"


def test_every_public_name_exists():
    assert all(getattr(choral, name) is not None for name in choral.__all__)
    assert set(choral.__all__) <= set(dir(choral))
