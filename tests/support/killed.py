"""Archives and seals a history in processes that are killed: `python -m tests.support.killed FOLDER SEED KILLS`.

One process makes the history, and forks the others, so that each of them begins at once. Prints how many were killed
before they had come to their end.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from pathlib import Path

from ops.archive.copying import Archiver
from ops.archive.segment import Source
from ops.digest.keys import Trust, new_key, signing_key
from ops.digest.sealing import Sealer
from ops.digest.statements import Digests
from ops.history.place import place_at
from streams.runtime.framing import SINGLE_OBJECT
from tests.support.histories import MemoryHistory
from tests.support.journals import answered, taken_over

SEGMENT_RECORDS = 20
LIFE_S = (0.0, 0.08)


def history_of(rounds: int) -> MemoryHistory:
    """Two partitions of some hundred records."""
    return MemoryHistory([answered().entries * rounds, taken_over().entries * rounds], chunk=7)


def ignore(_: str) -> None:
    """No progress wanted."""


async def work(history: MemoryHistory, folder: Path) -> None:
    """Archive and seal what there is, both at once."""
    key = signing_key(str(folder / "key.pem"))
    source = Source(history=history, topic="conversations", framing=SINGLE_OBJECT)
    archiver = Archiver(place_at(str(folder / "archive")), source, segment_records=SEGMENT_RECORDS, notify=ignore)
    digests = Digests(place_at(str(folder / "digests")), Trust([key.public]))
    sealer = Sealer(history, digests, key, segment_records=SEGMENT_RECORDS, notify=ignore)
    await archiver.open()
    await asyncio.gather(archiver.copy(), sealer.seal())
    await archiver.clean()


def lived(history: MemoryHistory, folder: Path, seconds: float) -> bool:
    """Whether a process that does the work came to its end within `seconds`, after which it is killed."""
    child = os.fork()
    if child == 0:
        asyncio.run(work(history, folder))
        os._exit(0)
    time.sleep(seconds)  # the fault: nothing waits for it
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.WIFEXITED(status)


def main(folder: Path, seed: int, kills: int) -> None:
    """Kill `kills` processes at their work, then let one come to its end."""
    history = history_of(40)
    new_key(folder / "key.pem")
    chance = random.Random(seed)
    survived = sum(lived(history, folder, chance.uniform(*LIFE_S)) for _ in range(kills))
    asyncio.run(work(history, folder))
    sys.stdout.write(f"{kills - survived}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
