"""What is registered, and that its documentation says the same."""

import re
import sys

import pytest
from kio.index import load_request_schema

from sparklog_server.protocol.registry import WAITING_APIS, ApiEntry, api, load_apis

# Beyond these something would be advertised that does not work.
HIGHEST = {0: 12, 1: 12, 3: 12, 8: 9, 9: 9, 10: 4}


@pytest.mark.parametrize("entry", load_apis().values(), ids=lambda entry: entry.name)
def test_the_module_says_what_is_registered(entry: ApiEntry) -> None:
    doc = sys.modules[entry.handler.__module__].__doc__ or ""
    versions = f"{entry.versions.start}-{entry.versions.stop - 1}"
    if len(entry.versions) == 1:
        versions = str(entry.versions.start)
    match = re.match(r"(\w+) \(key (\d+)\), versions? ([\d-]+)\.", doc)
    assert match is not None, doc.splitlines()[:1]
    assert match.groups() == (entry.name, str(entry.key), versions)
    assert re.search(r"^Does: ", doc, re.MULTILINE)


@pytest.mark.parametrize("entry", load_apis().values(), ids=lambda entry: entry.name)
def test_kio_knows_every_version(entry: ApiEntry) -> None:
    for version in entry.versions:
        load_request_schema(entry.key, version)
    assert entry.versions.stop - 1 <= HIGHEST.get(entry.key, 99)


def test_only_produce_is_pipelined_and_only_those_who_wait_may_be_cancelled() -> None:
    entries = load_apis().values()
    assert [entry.name for entry in entries if entry.pipelined] == ["Produce"]
    assert {entry.key for entry in entries if entry.cancellable} == WAITING_APIS


def test_an_api_is_registered_once() -> None:
    async def handle_twice(_request: object, _context: object, _broker: object) -> None: ...

    with pytest.raises(RuntimeError, match=r"registered by sparklog_server\.api\.metadata"):
        api(key=3, versions=range(1))(handle_twice)
