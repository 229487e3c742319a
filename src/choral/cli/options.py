"""The options that several commands share, each with its words for --help."""

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of tables.")]
Data = Annotated[
    str,
    typer.Option(
        "--data", help="digits, diabetes, wine, breast_cancer, or a .npz, .csv, .tsv, .parquet or .xlsx file."
    ),
]
Given = Annotated[
    str, typer.Argument(help="digits, diabetes, wine, breast_cancer, or a .npz, .csv, .tsv, .parquet or .xlsx file.")
]
Target = Annotated[str | None, typer.Option("--target", help="Column to predict, for a table.")]
Task = Annotated[str | None, typer.Option("--task", help="classification or regression; guessed if left out.")]
Outputs = Annotated[
    str | None,
    typer.Option(
        "--likelihood",
        help="What the outputs mean: categorical, bernoulli, ordinal, gaussian, student_t, laplace, poisson, "
        "negative_binomial, quantiles; decided by the target if left out.",
    ),
]
Drop = Annotated[list[str] | None, typer.Option("--drop", help="Column that is no input; may be given several times.")]
Id = Annotated[
    list[str] | None,
    typer.Option("--id", help="Column that is no input but shown beside predictions; may be given several times."),
]
Order = Annotated[
    list[str] | None, typer.Option("--order", help="Order of a column's values: 'size=small<medium<large'.")
]
Group = Annotated[str | None, typer.Option("--group", help="Column whose equal values are held out together.")]
Time = Annotated[str | None, typer.Option("--time", help="Column of dates or numbers; the last rows are held out.")]
Model = Annotated[str | None, typer.Option("--model", help="mlp, mlp_wide, lenet_s, lenet_m, lenet_l or resnet20.")]
Epochs = Annotated[int, typer.Option("--epochs", min=1, help="Total budget in epochs of one network.")]
Bound = Annotated[
    int | None,
    typer.Option("--epochs", min=1, help="Total budget in epochs of one network; by the data's size if not given."),
]
Members = Annotated[int | None, typer.Option("--members", min=1, help="Members, where the method has a choice.")]
Rate = Annotated[float | None, typer.Option("--rate", help="Peak learning rate.")]
Optimiser = Annotated[str | None, typer.Option("--optimiser", help="sgd, adam or adamw.")]
Batch = Annotated[int | None, typer.Option("--batch-size", min=1, help="Points in a batch.")]
Schedule = Annotated[str | None, typer.Option("--schedule", help="cosine, constant, steps or linear_drop.")]
Seed = Annotated[int, typer.Option("--seed", help="Root of every random draw.")]
Holdout = Annotated[float, typer.Option("--holdout", min=0.01, max=0.9, help="Part of the rows kept for testing.")]
Share = Annotated[
    float | None,
    typer.Option("--validation", help="Part of the training rows no member is trained on, to watch them by."),
]
Patience = Annotated[
    int | None,
    typer.Option("--patience", min=1, help="Epochs without a better validation score before training stops."),
]
Kept = Annotated[
    str | None, typer.Option("--keep", help="best or last: the state a training leaves; best if validated.")
]
Limit = Annotated[
    float | None, typer.Option("--time-limit", help="Seconds after which training ends with what is there.")
]
Exec = Annotated[str, typer.Option("--executor", help="auto, sequential or vectorised.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress, and not how columns are read.")]
Progress = Annotated[
    bool | None, typer.Option("--progress/--no-progress", help="Show progress; only in a terminal if left out.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Start again where the folder holds another run.")]
Saved = Annotated[Path, typer.Argument(help="A saved ensemble or a run folder.")]
