"""What is registered, and that its documentation says the same."""

import re
from pathlib import Path

import pytest

from sparklog_server.api.registry import DeclaredApi, api, declared_apis
from sparklog_server.protocol.apis import ApiKey
from sparklog_server.protocol.messages import request_schema

# Beyond these something would be advertised that does not work.
HIGHEST = {0: 13, 1: 17, 3: 13, 8: 10, 9: 10, 10: 6}


@pytest.mark.parametrize("entry", declared_apis().values(), ids=lambda entry: entry.name)
def test_the_docstring_says_what_is_registered(entry: DeclaredApi) -> None:
    doc = entry.header
    versions = f"{entry.versions.start}-{entry.versions.stop - 1}"
    if len(entry.versions) == 1:
        versions = str(entry.versions.start)
    match = re.match(r"(\w+) \(key (\d+)\), versions? ([\d-]+)\.", doc)
    assert match is not None, doc.splitlines()[:1]
    assert match.groups() == (entry.name, str(entry.key), versions)
    assert re.search(r"^Does: ", doc, re.MULTILINE)


@pytest.mark.parametrize("entry", declared_apis().values(), ids=lambda entry: entry.name)
def test_an_apis_tests_stand_under_its_name(entry: DeclaredApi) -> None:
    name = entry.handler.__name__.removeprefix("handle_")
    tests = Path(__file__).with_name(f"test_{name}.py")
    assert "def test_" in tests.read_text()


@pytest.mark.parametrize("entry", declared_apis().values(), ids=lambda entry: entry.name)
def test_every_version_has_a_schema(entry: DeclaredApi) -> None:
    for version in entry.versions:
        request_schema(entry.key, version)
    assert entry.versions.stop - 1 <= HIGHEST.get(entry.key, 99)


def test_only_produce_is_pipelined_and_only_those_wait_that_wait_for_others() -> None:
    entries = declared_apis().values()
    assert [entry.name for entry in entries if entry.pipelined] == ["Produce"]
    assert {entry.key for entry in entries if entry.waits} == {
        ApiKey.FETCH,
        ApiKey.FIND_COORDINATOR,
        ApiKey.JOIN_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.SASL_HANDSHAKE,  # after a failure, for the delay
        ApiKey.SASL_AUTHENTICATE,
        ApiKey.SHARE_GROUP_HEARTBEAT,
        ApiKey.SHARE_FETCH,
        ApiKey.SHARE_ACKNOWLEDGE,
    }
    assert {entry.key for entry in entries if entry.counts} == {
        ApiKey.FIND_COORDINATOR,
        ApiKey.SHARE_GROUP_HEARTBEAT,
        ApiKey.SHARE_FETCH,
        ApiKey.SHARE_ACKNOWLEDGE,
    }


def test_an_api_is_registered_once() -> None:
    async def handle_twice(_request: object, _context: object, _services: object) -> None: ...

    with pytest.raises(RuntimeError, match=r"registered by sparklog_server\.api\.metadata\.handle_metadata"):
        api(ApiKey.METADATA, versions=range(1))(handle_twice)


def test_every_key_is_served_under_its_name() -> None:
    served = {one.key: one.name for one in declared_apis().values()}
    assert served == {key: key.name.title().replace("_", "") for key in ApiKey}
