"""Fixtures for the tests of single modules."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from jupyter_gpumem.ledger import LEDGER

settings.register_profile("unit", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unit")

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser):
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite tests/unit/golden/*.txt from what is shown now"
    )


@pytest.fixture
def golden(request):
    """Return a function that compares a text with `golden/NAME.txt`, or rewrites the file if asked to."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / f"{name}.txt"
        if request.config.getoption("--update-golden", default=False):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text + "\n", encoding="utf-8")
        assert text + "\n" == path.read_text(encoding="utf-8"), f"differs from golden/{name}.txt; see --update-golden"

    return check


@pytest.fixture
def ledger():
    """The process's ledger, which a test must give back clean; a leak is its own failure and nobody else's."""
    yield LEDGER
    LEDGER.detach()
    leaked, watching = list(LEDGER._open), LEDGER.watching
    LEDGER._open.clear()
    assert leaked == []
    assert not watching
