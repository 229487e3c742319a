"""Columns of dates."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from choral.base.errors import InputError
from choral.base.lettering import short
from choral.data.cells import FORMATS, Cells
from choral.data.columns import Column, Scale, say


@dataclass(frozen=True, kw_only=True)
class DateColumn(Column):
    """A column of dates: how late, which part of the year and of the week, and of the day where training had times.

    Attributes:
        scale: mean and deviation of the training dates, in days since 1970.
        form: how dates are written; empty for a column of that type.
        times: whether training had times of the day.
    """

    scale: Scale
    form: str = ""
    times: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.form not in ("", *FORMATS):
            raise InputError(f"dates are written as {self.form!r}, which is not one of {', '.join(FORMATS)}.")

    @classmethod
    def learn(cls, cells: Cells, form: str, *, path: str) -> Self:
        """Return the column of some training cells."""
        found = cells.days(form)
        if cells.is_open(form):
            say(
                f"{path}: the dates in column '{short(cells.name)}' ({short(cells.held[0])!r}, ...) may have the day or the month first; they are "
                f"read with the {FORMATS[form]}. Write them as 2024-03-25 if that is wrong."
            )
        held = found[~np.isnan(found)]
        return cls(
            name=cells.name,
            missing=len(held) < len(found),
            scale=Scale.of(held),
            form=form,
            times=bool((held % 1 > 0).any()),
        )

    @property
    def codes(self) -> int:
        """Its lateness, and two for each cycle."""
        return 7 if self.times else 5

    @property
    def read_as(self) -> str:
        """A date."""
        return "date"

    @property
    def detail(self) -> str:
        """How it is written, and its parts."""
        how = f"{FORMATS[self.form]}; " if self.form else ""
        gaps = "; cells without a date are marked" if self.missing else ""
        return f"{how}its days, place in the year and the week{', and the day' if self.times else ''}{gaps}"

    def _absent(self, cells: Cells, path: str) -> np.ndarray:
        turned = cells.turned(self.form)
        if turned:
            raise InputError(
                f"{path}: column '{short(self.name)}' holds {short(turned)!r}, but training wrote its dates with the {FORMATS[self.form]}, so "
                "every date would be read as another one; write dates as in training, or fit anew on dates such as 2024-03-25."
            )
        found = np.isnan(cells.days(self.form))
        odd = found & ~cells.absent
        if odd.any():
            word = cells.words[odd][0]
            say(
                f"{path}: column '{short(self.name)}' holds {short(word)!r} in {cells.lines(odd)}, which is not a date as training "
                f"wrote them; {odd.sum():,} such cell(s) count as cells without a value."
            )
        return found

    def _coded(self, cells: Cells, absent: np.ndarray, *, path: str) -> np.ndarray:
        found = np.where(absent, self.scale.mean, cells.days(self.form))
        parts = [np.asarray(self.scale.apply(found))]
        for length in (365.2425, 7.0, *((1.0,) if self.times else ())):
            turn = 2 * np.pi * (found / length % 1)
            parts += [np.where(absent, 0.0, np.sin(turn)), np.where(absent, 0.0, np.cos(turn))]
        return np.column_stack(parts)

    def _said(self, code: np.ndarray) -> str:
        days = float(self.scale.undo(float(code[0])))
        return str(np.datetime64("1970-01-01", "D") + np.timedelta64(round(days), "D"))

    def places(self, codes: np.ndarray) -> np.ndarray | None:
        """Return days since 1970."""
        return self._with_gaps(np.asarray(self.scale.undo(codes[:, 0])), codes)
