"""A root as another process would open it: over a store and with a clock that the test owns; and old ones."""

import json
import shutil
from pathlib import Path

import sparklog
from sparklog.client import SparkLog
from sparklog.clock import Clock
from sparklog.log.root_config import OWNERS_KEYS
from sparklog.metadata import METADATA_VERSION_KEY, WRITERS_VERSION, MetadataLog, SetConfigs
from sparklog.metadata.documents.paths import DIRECTORY
from sparklog.storage import MemoryStore, Store

_GOLDEN = Path(__file__).parent.parent / "golden" / "roots"


def opened(store: Store, clock: Clock) -> SparkLog:
    """The log; made, if there is none yet."""
    return SparkLog(store, MetadataLog.open(store, clock, create=True), clock)


def founded(store: Store, clock: Clock) -> SparkLog:
    """As `opened`; a root that is made says what every new one does (client/founding.py)."""
    return SparkLog(store, MetadataLog.open(store, clock, create=True), clock)


def own_configs(log: SparkLog) -> dict[str, str]:
    """What the root's settings are, but for what every new root says."""
    return {key: value for key, value in log.refresh().configs.items() if key not in OWNERS_KEYS}


def for_one_broker(root: str) -> str:
    """A root whose owner has not agreed to several brokers, as those were that older sparklogs made."""
    with sparklog.open(root, create=True) as log:
        action = SetConfigs(configs={METADATA_VERSION_KEY: str(WRITERS_VERSION)})
        log.metadata.publish(lambda _: [action])
    return root


def old_root(name: str, directory: Path) -> Path:
    """A copy of a root that an older sparklog made (tests/golden/README.md)."""
    return Path(shutil.copytree(_GOLDEN / name / "root", directory / "old-root"))


def old_store(name: str, clock: Clock) -> MemoryStore:
    """The same in memory, which is faster."""
    store, root = MemoryStore(name, clock=clock), _GOLDEN / name / "root"
    for path in sorted(root.rglob("*")):
        if path.is_file():
            store.put_if_absent(str(path.relative_to(root)), path.read_bytes())
    return store


def newest_version(store: Store) -> int:
    """Of all metadata documents that are there: commits, manifests of snapshots, requests."""
    names = [file.name for file in store.list(DIRECTORY, recursive=True) if file.name.endswith(".json")]
    headers = [json.loads(store.read(name).splitlines()[0]) for name in names]
    return max(int(header["version"]) for header in headers if "kind" in header)
