"""Stores that several processes of a service share, over both databases."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from service.jobs.store import Store
from tests.service.postgresql import Server

STORES = [
    pytest.param("sqlite"),
    pytest.param("postgresql", marks=pytest.mark.service),
]
"""Parameters of a test that holds for both stores."""


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Any) -> str:
    """Return the address of an empty database."""
    if getattr(request, "param", "sqlite") == "postgresql":
        return request.getfixturevalue("postgresql").new_database()
    return f"sqlite:///{tmp_path}/service.sqlite"


@pytest.fixture
def open_store(database: str) -> Iterator[Callable[..., Store]]:
    """Open the database as one more process would."""
    opened = []

    def open_one(**settings: Any) -> Store:
        opened.append(Store(database, **settings))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()
