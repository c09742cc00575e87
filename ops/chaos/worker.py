"""`turnlog worker` as chaos runs it: the same process, with failpoints, and a diary of what it did when.

    python -m ops.chaos.worker worker -o json --lifeline

The parts that the worker's one wiring place puts together are replaced there. TURNLOG_CHAOS_GUARD_OFF names one guard
of the product that is taken out (`guards`): the control, which shows that the suite would see it missing.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ops.chaos import clock, failpoints, guards
from ops.chaos.diary import Diary
from ops.chaos.failpoints import Failpoints, around
from ops.chaos.notes import NOTES_VARIABLE, Notebook
from ops.chaos.schedule import Failpoint


def furnish(points: Failpoints, diary: Diary) -> None:
    """Put the failpoints, and the diary's eyes, where `streams.worker` wires its parts."""
    from streams import worker  # noqa: PLC0415 -- as all that is imported below, after the guards and the clock

    vars(worker).update(_kafka(points) | _postgres(points, diary))


def _kafka(points: Failpoints) -> dict[str, type]:
    """The parts that speak to Kafka, by the name of what each replaces."""
    from streams.runtime.kafka_producers import KafkaJournalProducer  # noqa: PLC0415
    from streams.runtime.kafka_readers import KafkaIntake, KafkaJournalReader  # noqa: PLC0415

    class Producer(KafkaJournalProducer):
        """InitProducerId, begin, append, commit."""

        start = around(points, Failpoint.BEFORE_INIT, Failpoint.AFTER_INIT, KafkaJournalProducer.start)
        # A transaction begins once a batch is decided.
        begin = around(points, Failpoint.AFTER_DECIDE, None, KafkaJournalProducer.begin)
        append = around(points, None, Failpoint.AFTER_SEND, KafkaJournalProducer.append)
        commit = around(points, Failpoint.BEFORE_COMMIT, Failpoint.AFTER_COMMIT, KafkaJournalProducer.commit)

    class IntakeSource(KafkaIntake):
        """A poll that brought something."""

        async def poll(self, *arguments: Any, **named: Any) -> Any:
            polled = await super().poll(*arguments, **named)
            if len(polled):
                points.passing(Failpoint.AFTER_POLL)
            return polled

    class Reader(KafkaJournalReader):
        """The journal's reader at the end of a replay."""

        close = around(points, Failpoint.AFTER_REPLAY, None, KafkaJournalReader.close)

    return {"KafkaJournalProducer": Producer, "KafkaIntake": IntakeSource, "KafkaJournalReader": Reader}


def _postgres(points: Failpoints, diary: Diary) -> dict[str, type]:
    """The parts that speak to PostgreSQL, by the name of what each replaces."""
    from streams.fence.checkpoint import PostgresCheckpoints  # noqa: PLC0415
    from streams.fence.heartbeat import Heartbeat  # noqa: PLC0415
    from streams.fence.lease import PostgresLeases  # noqa: PLC0415

    class Checkpoints(PostgresCheckpoints):
        """A snapshot, and the token in its row."""

        take = diary.taking(PostgresCheckpoints.take)
        save = diary.saving(
            around(points, Failpoint.BEFORE_CHECKPOINT, Failpoint.AFTER_CHECKPOINT, PostgresCheckpoints.save)
        )

    class Leases(PostgresLeases):
        """What was claimed and handed back."""

        _try_claim = diary.claiming(PostgresLeases._try_claim)
        hand_back = diary.handing_back(PostgresLeases.hand_back)
        close = diary.closing(PostgresLeases.close)

    class Beating(Heartbeat):
        """Whether a write may begin."""

        may_write = diary.allowing(Heartbeat.may_write)  # type: ignore[assignment]

    return {"PostgresCheckpoints": Checkpoints, "PostgresLeases": Leases, "Heartbeat": Beating}


def main() -> None:
    """The process."""
    clock.skew()
    guards.take_out()
    furnish(failpoints.listening(), Diary(Notebook(Path(os.environ[NOTES_VARIABLE]))))
    from ops.cli import main as turnlog  # noqa: PLC0415 -- after all of the above

    turnlog()


if __name__ == "__main__":
    main()
