"""A server, Kueue on it, a planner and a reconciler."""

from collections.abc import Iterator

import pytest

from service.kueue.reconciler import Reconciler
from tests.service.kueue.kueue_cluster import OncePlanner, fill, reconciler_of
from tools.kubernetes_api.kueue import Kueue
from tools.kubernetes_api.server import ApiServer, api_server


@pytest.fixture
def served() -> Iterator[ApiServer]:
    with api_server() as found:
        yield found


@pytest.fixture
def kueue(served: ApiServer) -> Kueue:
    return fill(served)


@pytest.fixture
def planner() -> OncePlanner:
    return OncePlanner()


@pytest.fixture
def reconciler(served: ApiServer, kueue: Kueue, planner: OncePlanner) -> Reconciler:
    return reconciler_of(served, planner)
