"""What several tests of the command use."""

from pathlib import Path

import pytest


@pytest.fixture
def undrawn(monkeypatch):
    """Comparisons write no report: drawing takes longer than training, and `test_reports.py` looks at it."""
    monkeypatch.setattr("choral.report.write_report", lambda folder, out=None: Path(folder) / "report.html")
