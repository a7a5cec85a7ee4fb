"""A desk of its own for each test of the tools."""

from pathlib import Path

import pytest

from service.agents.results import Results
from service.agents.tool import Data, Desk
from service.agents.tools import call_tool, refusal_json
from service.handlers.problems import Refusal

SMALL = {"model": "llama3-8b", "cluster": "h100-x8"}


def new_desk(opens_files: bool = False, shares_cache: bool = False) -> Desk:
    """Return a desk as one over HTTP has it, or over stdio."""
    return Desk(Results(shares_cache), opens_files)


def refused(name: str, arguments: Data, desk: Desk | None = None) -> Data:
    """Return what a call is refused with."""
    with pytest.raises(Refusal) as caught:
        call_tool(name, arguments, desk or new_desk())
    return refusal_json(caught.value, name, arguments)


def with_cache(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Use a cache folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
