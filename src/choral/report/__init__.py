"""Reports: a run or comparison folder as one self-contained HTML page, with its figures as files."""

from choral.report.page import write_report

__all__ = ["write_report"]
