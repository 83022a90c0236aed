"""What goes wrong in a check is seen in these tests."""

import pytest


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headcount.auditing.audit.STRICT", True)
