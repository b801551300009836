"""What stands beside us, fetched by Maven into a cache outside the repository: Kafka and what is built on it,
the connector, Delta.

Versions: Kafka's is fixed here; the connector's is that of the installed PySpark where it is published, else
the newest before it (CONNECTORS), and the report says which. Spark's connector also wants its module for
delegation tokens; where the repository has none, stand_in/ is compiled for it: the same four classes,
for clusters without tokens (none of this touches a record).

Not here: starting anything (kafka_process.py). Nothing else of sparklog needs this module.
After a crash: a directory counts only when its `complete` file is there; the rest is fetched again.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pyspark

KAFKA_VERSION = "4.3.1"
SCALA = "2.13"
CONNECTORS = ("4.3.0", "4.2.0")  # newest first; those after PySpark's own version are not tried
DELTA_VERSION = "4.4.0"
FETCH_SECONDS = 900
STAND_IN = Path(__file__).parent / "stand_in"
TOKENS = "spark-token-provider-kafka-0-10"

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>sparklog</groupId><artifactId>peers</artifactId><version>1</version>
<dependencies>{dependencies}</dependencies></project>
"""
DEPENDENCY = (
    "<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>"
    "<exclusions>{exclusions}</exclusions></dependency>"
)
EXCLUSION = "<exclusion><groupId>{group}</groupId><artifactId>{name}</artifactId></exclusion>"
# Part of every PySpark, in its own versions.
IN_SPARK = (
    ("org.scala-lang", "*"),
    ("org.slf4j", "*"),
    ("at.yawk.lz4", "*"),
    ("org.lz4", "*"),
    ("org.xerial.snappy", "*"),
    ("com.github.luben", "*"),
    ("org.apache.spark", "spark-tags_" + SCALA),
)


class NotFetchedError(Exception):
    """A peer that cannot be had from here; the rest runs without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """What to fetch, with everything it depends on but `without`."""

    group: str
    name: str
    version: str
    without: tuple[tuple[str, str], ...] = ()

    def dependency(self) -> str:
        exclusions = "".join(EXCLUSION.format(group=group, name=name) for group, name in self.without)
        return DEPENDENCY.format(
            group=self.group, name=self.name, version=self.version, exclusions=exclusions
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Jars:
    """Fetched files, and the words for the report."""

    version: str
    files: tuple[Path, ...]
    note: str = ""


def cache() -> Path:
    """Where fetched files are kept: SPARKLOG_PEERS_CACHE, or under the user's caches."""
    given = os.environ.get("SPARKLOG_PEERS_CACHE")
    return Path(given) if given else Path.home() / ".cache" / "sparklog-peers"


def kafka() -> Jars:
    """Apache Kafka's server and tools; slf4j-simple lets them tell why they ended."""
    artifacts = (
        Artifact(group="org.apache.kafka", name=f"kafka_{SCALA}", version=KAFKA_VERSION),
        Artifact(group="org.apache.kafka", name="kafka-tools", version=KAFKA_VERSION),
        Artifact(group="org.slf4j", name="slf4j-simple", version="1.7.36"),
    )
    return Jars(version=KAFKA_VERSION, files=_fetch(f"kafka-{KAFKA_VERSION}", artifacts))


def kafka_applications() -> Jars:
    """Kafka Streams, and Connect with its connectors for files; beside what `kafka` has."""
    artifacts = (
        Artifact(group="org.apache.kafka", name="kafka-streams", version=KAFKA_VERSION),
        Artifact(group="org.apache.kafka", name="connect-file", version=KAFKA_VERSION),
    )
    files = {one.name: one for one in _fetch(f"kafka-applications-{KAFKA_VERSION}", artifacts)}
    files |= {one.name: one for one in kafka().files}
    return Jars(version=KAFKA_VERSION, files=tuple(files.values()))


def connector() -> Jars:
    """`format("kafka")` for the installed PySpark, or for the one before it."""
    ours = _numbers(pyspark.__version__)
    candidates = [version for version in CONNECTORS if _numbers(version) <= ours]
    if pyspark.__version__ not in candidates:
        candidates.insert(0, pyspark.__version__)
    refused: NotFetchedError | None = None
    for version in candidates:
        name = f"spark-sql-kafka-0-10_{SCALA}"
        whole = Artifact(group="org.apache.spark", name=name, version=version, without=IN_SPARK)
        tokens = ("org.apache.spark", f"{TOKENS}_{SCALA}")
        bare = Artifact(group="org.apache.spark", name=name, version=version, without=(*IN_SPARK, tokens))
        note = (
            "" if version == pyspark.__version__ else f"on Spark {pyspark.__version__}, the newest there is"
        )
        for artifact, suffix in ((whole, ""), (bare, "-stand-in")):
            try:
                files = _fetch(f"connector-{version}{suffix}", (artifact,))
            except NotFetchedError as error:
                refused = error
                continue
            if suffix:
                files = (*files, _compiled_stand_in(files))
                note = "; ".join(filter(None, (note, "its module for delegation tokens replaced")))
            return Jars(version=version, files=files, note=note)
    raise refused or NotFetchedError("no version of Spark's Kafka connector is known")


def delta() -> Jars:
    """Delta Lake for the installed Spark, or for the one before it."""
    refused: NotFetchedError | None = None
    for spark in dict.fromkeys(".".join(v.split(".")[:2]) for v in (pyspark.__version__, *CONNECTORS)):
        artifact = Artifact(
            group="io.delta", name=f"delta-spark_{spark}_{SCALA}", version=DELTA_VERSION, without=IN_SPARK
        )
        try:
            files = _fetch(f"delta-{DELTA_VERSION}-spark-{spark}", (artifact,))
        except NotFetchedError as error:
            refused = error
            continue
        note = "" if pyspark.__version__.startswith(spark) else f"made for Spark {spark}"
        return Jars(version=DELTA_VERSION, files=files, note=note)
    raise refused or NotFetchedError("no version of Delta is known")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(word) for word in version.split(".") if word.isdigit())


def _fetch(name: str, artifacts: tuple[Artifact, ...]) -> tuple[Path, ...]:
    directory = cache() / name
    if not (directory / "complete").exists():
        if shutil.which("mvn") is None:
            raise NotFetchedError(f"{name}: Maven (mvn) is not installed")
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        pom = directory / "pom.xml"
        pom.write_text(POM.format(dependencies="".join(one.dependency() for one in artifacts)))
        words = ["mvn", "-B", "-q", "-f", str(pom), "dependency:copy-dependencies"]
        words += ["-DincludeScope=runtime", f"-DoutputDirectory={directory}"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False)
        if done.returncode != 0:
            shutil.rmtree(directory)
            raise NotFetchedError(f"{name}: Maven cannot fetch it: {_reason(done.stdout)}")
        (directory / "complete").touch()
    return tuple(sorted(directory.glob("*.jar")))


def _reason(text: str) -> str:
    errors = [line for line in text.splitlines() if "ERROR" in line]
    return errors[0][-300:] if errors else "no reason given"


def _compiled_stand_in(connector_files: tuple[Path, ...]) -> Path:
    jar = connector_files[0].parent / "stand-in" / "token-stand-in.jar"
    if jar.exists():
        return jar
    for program in ("javac", "jar"):
        if shutil.which(program) is None:
            raise NotFetchedError(f"{TOKENS} is not to be had, and there is no {program} to replace it")
    classes = jar.parent / "classes"
    classes.mkdir(parents=True, exist_ok=True)
    spark_jars = Path(pyspark.__file__).parent / "jars"
    words = ["javac", "-nowarn", "-classpath", f"{spark_jars}/*", "-d", str(classes)]
    subprocess.run([*words, *map(str, sorted(STAND_IN.glob("*.java")))], check=True, capture_output=True)
    subprocess.run(["jar", "cf", str(jar), "-C", str(classes), "."], check=True, capture_output=True)
    return jar
