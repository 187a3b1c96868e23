"""Fixtures of these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.kafka import Kafka, require_kafka
from tests.interop.restcatalog import RestServer, running_catalog


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """One running broker for all tests, which keep apart by the names that they use."""
    require_kafka()
    broker = Kafka(tmp_path_factory.mktemp("kafka"))
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture(scope="session")
def rest_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestServer]:
    """One running REST catalog for all tests, which keep apart as above."""
    with running_catalog(tmp_path_factory.mktemp("catalog")) as server:
        yield server
