"""A service with both transports over each store, as the contract of all operations has it."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.service.conftest import STORES
from tests.service.transports import TRANSPORTS, Service


@pytest.fixture(scope="module", params=STORES)
def database(request: pytest.FixtureRequest) -> str:
    """Return the address of an empty database; empty for a file of SQLite."""
    if request.param == "postgresql":
        return request.getfixturevalue("postgresql").new_database()
    return ""


@pytest.fixture(scope="module")
def service(database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    found = Service(tmp_path_factory.mktemp("feeds"), database)
    yield found
    found.close()


@pytest.fixture(params=TRANSPORTS)
def ask(request: pytest.FixtureRequest, service: Service) -> Any:
    return TRANSPORTS[request.param](service)
