"""The commands that deploy: export writes one graph, serve answers over HTTP."""

import os
from pathlib import Path
from typing import Annotated

import typer

from choral.base.errors import InputError
from choral.cli.options import Json, Saved
from choral.cli.output import note, say, write_json


def export(
    ensemble: Saved,
    to: Annotated[Path, typer.Option(help="The file to write: .onnx, or .pt2 for torch.export.")],
    data: Annotated[
        Path | None, typer.Option(help="Rows by which the graph is tried; made-up ones if left out.")
    ] = None,
    members: Annotated[bool, typer.Option("--members", help="Let it return what each member predicts too.")] = False,
    json: Json = False,
) -> None:
    """Write a saved ensemble as one graph that predicts with its uncertainty, without choral.

    Example: choral export runs/houses-auto --to model.onnx
    """
    from choral.cli.prediction import rows_to_predict
    from choral.deploy.export import describe
    from choral.fit import load

    if to.suffix.lower() == ".choral":
        raise InputError(f"--to {to} is a saved ensemble already; give a name ending in .onnx or .pt2.")
    loaded = load(ensemble)
    loaded.export(to, None if data is None else rows_to_predict(loaded, data)[0], with_members=members)
    about = describe(loaded)
    if json:
        write_json({name: about[name] for name in ("method", "task", "members", "level", "digest")} | {"path": str(to)})
    else:
        say(f"saved {to}, which predicts as {ensemble} does; answer requests with it: choral serve {to}")


def serve(
    model: Annotated[Path, typer.Argument(help="An .onnx of choral export, or a saved ensemble.")],
    host: Annotated[
        str, typer.Option(help="Address to listen at; others than this machine reach 0.0.0.0.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at.")] = 8080,
    delay: Annotated[float, typer.Option(min=0, max=1000, help="Milliseconds a request waits for a batch.")] = 2.0,
    rows: Annotated[int, typer.Option(min=1, help="Rows of one request, and of one batch, at most.")] = 1024,
    queue: Annotated[int, typer.Option(min=1, help="Requests that wait, at most.")] = 64,
    body: Annotated[int, typer.Option(min=1, help="Megabytes of one request, at most.")] = 16,
    json: Json = False,
) -> None:
    """Answer over HTTP: the Open Inference Protocol v2, rows of tables (/predict), /metrics, and a page at /.

    With CHORAL_TOKEN in the environment, requests must bring it as Authorization: Bearer.

    Example: choral serve model.onnx --port 8080
    """
    from choral.deploy.serve import Limits, application, load_model, server

    token = os.environ.get("CHORAL_TOKEN") or None
    if host not in ("127.0.0.1", "::1", "localhost") and token is None:
        note(f"choral: everyone who reaches {host} may ask; set CHORAL_TOKEN to ask for a token.")
    limits = Limits(body=body << 20, rows=rows, queue=queue, delay=delay / 1000)
    app = application(load_model(model), limits=limits, token=token)
    if json:
        write_json({"model": str(model), "url": f"http://{host}:{port}/"})
    else:
        note(f"choral: {model} at http://{host}:{port}/ (stop with Ctrl-C)")
    server(app, host=host, port=port).run()
