"""Ensembles as folders for model hubs and MLflow: weights as safetensors, config.json, and a model card with test scores.

    choral.save_pretrained(ensemble, "houses", test=(x_test, y_test), data="houses sold in 2024, rows drawn at random")
    choral.from_pretrained("houses")

The weights file is that of `ensemble.save`: no file in the folder contains code.
"""

import json
from pathlib import Path
from typing import Any

from choral.base.errors import InputError, needed
from choral.base.types import Builds
from choral.base.values import guarded
from choral.deploy.export import describe, table_of
from choral.engine.files import write_bytes
from choral.ensemble.ensemble import Ensemble, described, facts
from choral.fit import load

WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"


@guarded
def save_pretrained(ensemble: Ensemble, folder: str | Path, *, test: Any = None, data: str = "") -> dict[str, float]:
    """Write an ensemble as a folder for a model hub, and return the scores in its model card.

    Args:
        ensemble: the ensemble; networks of `choral.models` can be loaded without code.
        folder: created if needed; weights, config.json and README.md in it are replaced.
        test: rows on which no member was trained, (x, y) or a table's data frame, scored by `ensemble.evaluate`; None for no scores.
        data: a description of the training and test rows, and of how the test rows were chosen, for the card.
    """
    x, y = test if isinstance(test, tuple) else (test, None)
    scores = {} if test is None else ensemble.evaluate(x, y)
    about, path = describe(ensemble), Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    ensemble.save(path / WEIGHTS)
    config = {"library_name": "choral", "model_type": ensemble.recipe.name, "scores": scores}
    kept = {"recipe": ensemble.recipe.to_dict(), "network": ensemble._blueprint.spec()}
    write_bytes(path / CONFIG, (json.dumps(config | about | kept, indent=1) + "\n").encode())
    rows = None if test is None else len(x if y is None else y)  # inputs may be a dict
    write_bytes(path / CARD, _card(ensemble, path.resolve().name, scores, rows, data).encode())
    return scores


@guarded
def from_pretrained(folder: str | Path, build: Builds | None = None, **options: Any) -> Ensemble:
    """Load an ensemble from a folder of `save_pretrained`, or from such a repository on the Hugging Face Hub.

    Args:
        folder: a folder, or 'owner/name', which is downloaded (pip install 'choral[hub]').
        build: the network factory, unless the network is one of choral's own; further options are those of `choral.load`.
    """
    path = Path(folder)
    if not path.exists() and str(folder).count("/") == 1 and not str(folder).startswith((".", "/", "~")):
        snapshot_download = needed("huggingface_hub", "hub").snapshot_download
        path = Path(snapshot_download(str(folder), allow_patterns=[WEIGHTS, CONFIG, CARD]))
    return load(path / WEIGHTS, build, **options)


def _card(ensemble: Ensemble, name: str, scores: dict[str, float], rows: int | None, data: str) -> str:
    """Return a model card: description, test scores, training, and use."""
    info, counted = ensemble.info, ensemble.info.get("counted", {})
    kind = f"tabular-{ensemble.task}" if ensemble.table is not None else ensemble.task
    header: dict[str, Any] = {"library_name": "choral", "tags": ["ensemble", "uncertainty", ensemble.recipe.name]}
    if scores:
        metrics = [{"type": measure, "value": value} for measure, value in scores.items()]
        result = {"task": {"type": kind}, "dataset": {"name": data or "test rows", "type": "other"}, "metrics": metrics}
        header["model-index"] = [{"name": name, "results": [result]}]
    how = f"Measured on {rows:,} test rows by `ensemble.evaluate`, with all corrections." if scores else "Not measured."
    trained = {
        "epochs of one network": counted.get("epochs"),
        "optimizer steps": counted.get("steps"),
        "training seconds": info.get("seconds") and round(info["seconds"], 1),
        "digest": ensemble._digest,
    }
    table = {"measure": "value", "---": "---"} | {n: f"{value:.4g}" for n, value in scores.items()} if scores else {}
    return (Path(__file__).with_name("card.md").read_text("utf8")).format(
        header="\n".join(f"{key}: {json.dumps(value)}" for key, value in header.items()),  # JSON is YAML
        name=name,
        described=described(ensemble),
        how=f"{how}{f' Data: {data}.' if data else ''}",
        scores=_rows_of(table),
        trained=_rows_of(facts(ensemble) | {n: v for n, v in trained.items() if v is not None}),
        recipe=ensemble.recipe,
        build="" if ensemble._blueprint.spec() is not None else ", build",
    )


def _rows_of(values: dict[str, Any]) -> str:
    return "".join(f"| {name} | {value} |\n" for name, value in values.items())


@guarded
def save_mlflow(ensemble: Ensemble, path: str | Path, **options: Any) -> None:
    """Write an ensemble as a model of MLflow (`mlflow.pyfunc.load_model(path).predict(x)` returns a data frame), without a pickle.

    Args:
        ensemble: of one of choral's own networks, since the file brings no code.
        path: a folder that is not there yet.
        options: further arguments of `mlflow.pyfunc.save_model`, such as signature; `save_pretrained`'s test and data are taken out.
    """
    mlflow = needed("mlflow", "mlflow")
    if ensemble._blueprint.spec() is None:
        raise InputError("MLflow loads models without their code, so the network must be one of choral.models.")
    import tempfile

    from choral import __version__

    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "choral"
        save_pretrained(ensemble, data, **{n: options.pop(n) for n in ("test", "data") if n in options})
        needs = {"pip_requirements": [f"choral=={__version__}", "pandas"]} | options
        mlflow.pyfunc.save_model(path, loader_module=__name__, data_path=str(data), **needs)


class _Frames:
    """What MLflow calls."""

    def __init__(self, ensemble: Ensemble):
        self.ensemble = ensemble

    def predict(self, data: Any, params: dict[str, Any] | None = None) -> Any:
        """Return predictions as a data frame, one line for each row; frames of an ensemble fitted on arrays are read by position."""
        named = table_of(self.ensemble) or self.ensemble._interface.columns or not hasattr(data, "to_numpy")
        return self.ensemble.predict(data if named else data.to_numpy()).to_frame(**(params or {}))


def _load_pyfunc(path: str) -> _Frames:
    """Return what MLflow calls for a folder that `save_mlflow` wrote."""
    return _Frames(from_pretrained(path))
