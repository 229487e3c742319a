"""Columns of dates, of times of the day and of durations."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from choral.base.errors import InputError
from choral.base.text import short
from choral.data.cells import Cells
from choral.data.columns import Column, Scale, say, say_stand_in
from choral.data.dates import FORMATS, STAND_INS, known_form


@dataclass(frozen=True, kw_only=True)
class DateColumn(Column):
    """A column of dates: how late, which part of the year and of the week, and of the day where training had times.

    Attributes:
        scale: mean and deviation of the training dates, in days since 1970.
        form: how dates are written, without times; empty for a column of that type.
        times: whether training had times of the day.
    """

    scale: Scale
    form: str = ""
    times: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if known_form(self.form) not in ("", *FORMATS):
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
        if cells.zones:
            say(
                f"{path}: column '{short(cells.name)}' holds {short(cells.zones[0])!r} and {short(cells.zones[1])!r}, times with a zone and without; "
                "those without are read as UTC."
            )
        _say_odd(cells, np.isnan(found) & ~cells.absent, "a date as the others are", path)
        held = found[~np.isnan(found)]
        say_stand_in(f"column '{short(cells.name)}'", found, path, known=STAND_INS, shown=_day)
        return cls(
            name=cells.name,
            missing=len(held) < len(found),
            scale=Scale.of(held),
            form=form,
            times=bool((held % 1 > 0).any()),
        )

    @property
    def how(self) -> str:
        """How dates are written, in words."""
        return FORMATS.get(known_form(self.form), "")

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
        how = f"{self.how}; " if self.how else ""
        gaps = "; cells without a date are marked" if self.missing else ""
        return f"{how}its days, place in the year and the week{', and the day' if self.times else ''}{gaps}"

    def _absent(self, cells: Cells, path: str) -> np.ndarray:
        turned = cells.turned(self.form)
        if turned:
            raise InputError(
                f"{path}: column '{short(self.name)}' holds {short(turned)!r}, but training wrote its dates with the {self.how}, so "
                "every date would be read as another one; write dates as in training, or fit anew on dates such as 2024-03-25."
            )
        found = np.isnan(cells.days(self.form))
        _say_odd(cells, found & ~cells.absent, "a date as training wrote them", path)
        return found

    def _coded(self, cells: Cells, absent: np.ndarray, *, path: str) -> np.ndarray:
        found = np.where(absent, self.scale.mean, cells.days(self.form))
        parts = [np.asarray(self.scale.apply(found))]
        for length in (365.2425, 7.0, *((1.0,) if self.times else ())):
            turn = 2 * np.pi * (found / length % 1)
            parts += [np.where(absent, 0.0, np.sin(turn)), np.where(absent, 0.0, np.cos(turn))]
        return np.column_stack(parts)

    def _said(self, code: np.ndarray) -> str:
        return _day(float(self.scale.undo(float(code[0]))))

    def places(self, codes: np.ndarray) -> np.ndarray | None:
        """Return days since 1970."""
        return self._with_gaps(np.asarray(self.scale.undo(codes[:, 0])), codes)


@dataclass(frozen=True, kw_only=True)
class ClockColumn(Column):
    """A column of times of the day, or of durations: the hours, and the place in the day where training had none beyond it.

    Attributes:
        scale: mean and deviation of the training hours.
        daily: whether all of them lie within a day.
    """

    scale: Scale
    daily: bool = False

    @classmethod
    def learn(cls, cells: Cells, *, path: str) -> Self:
        """Return the column of some training cells."""
        found = cells.hours
        _say_odd(cells, np.isnan(found) & ~cells.absent, "a time as the others are", path)
        held = found[~np.isnan(found)]
        daily = bool(((held >= 0) & (held < 24)).all())
        return cls(name=cells.name, missing=len(held) < len(found), scale=Scale.of(held), daily=daily)

    @property
    def codes(self) -> int:
        """Its hours, and two for the day."""
        return 3 if self.daily else 1

    @property
    def read_as(self) -> str:
        """A time of the day or a duration."""
        return "time" if self.daily else "duration"

    @property
    def detail(self) -> str:
        """Its mean, and its parts."""
        gaps = "; cells without a time are marked" if self.missing else ""
        parts = ", and place in the day" if self.daily else ""
        return f"hours, mean {self.scale.mean:.4g}, deviation {self.scale.std:.4g}{parts}{gaps}"

    def _absent(self, cells: Cells, path: str) -> np.ndarray:
        found = np.isnan(cells.hours)
        _say_odd(cells, found & ~cells.absent, "a time as training wrote them", path)
        return found

    def _coded(self, cells: Cells, absent: np.ndarray, *, path: str) -> np.ndarray:
        found = np.where(absent, self.scale.mean, cells.hours)
        turn = 2 * np.pi * (found / 24 % 1)
        cycle = [np.where(absent, 0.0, part) for part in (np.sin(turn), np.cos(turn))] if self.daily else []
        return np.column_stack([np.asarray(self.scale.apply(found)), *cycle])

    def _said(self, code: np.ndarray) -> str:
        minutes = round(60 * float(self.scale.undo(float(code[0]))))
        return f"{'-' * (minutes < 0)}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"

    def places(self, codes: np.ndarray) -> np.ndarray | None:
        """Return hours."""
        return self._with_gaps(np.asarray(self.scale.undo(codes[:, 0])), codes)


def _day(days: float) -> str:
    return str(np.datetime64("1970-01-01", "D") + np.timedelta64(round(days), "D"))


def _say_odd(cells: Cells, odd: np.ndarray, what: str, path: str) -> None:
    if odd.any():
        say(
            f"{path}: column '{short(cells.name)}' holds {short(cells.words[odd][0])!r} in {cells.lines(odd)}, which is not {what}; "
            f"{odd.sum():,} such cell(s) count as cells without a value."
        )
