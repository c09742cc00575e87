"""The program that downloads Kafka's jars from Maven Central, run by `ops/embedded/kafka.py`.

    python -m ops.embedded.maven FOLDER

A process of its own, because a download that waits for its network can be ended in no other way. Progress goes to
stdout, a line at a time; the checked jars are in FOLDER/jars at the end. What went wrong is on stderr (exit code 1).
"""

from __future__ import annotations

import shutil
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ops.embedded.errors import StackUnavailable
from ops.embedded.kafka import DOWNLOAD_MB, ENDPOINT, KAFKA_VERSION, MEGABYTE
from ops.lifeline import hold_on_to_parent


def main() -> int:
    """Download into the folder that the command line names."""
    hold_on_to_parent(0.0)
    try:
        download(Path(sys.argv[1]), _say)
    except StackUnavailable as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def download(work: Path, progress: Callable[[str], None]) -> Path:
    """Resolve and download into `work`; the folder of checked jars. Raises `StackUnavailable`."""
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


if __name__ == "__main__":
    sys.exit(main())
