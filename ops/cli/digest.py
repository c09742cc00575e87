"""`turnlog digest`: signed digests of the journal, and what tells of a history that differs from them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ops.cli.common import (
    ArchiveOption,
    EveryOption,
    FollowOption,
    KafkaOption,
    MetricsPortOption,
    NamespaceOption,
    OfflineOption,
    Output,
    OutputOption,
    PartitionOption,
    emit,
    progress,
    resumable,
    show_rows,
    translated_failures,
)
from ops.cli.durations import seconds_of
from ops.cli.errors import NEGATIVE, USAGE, CommandFailed
from ops.cli.servers import NO_POSTGRES, settings_of

if TYPE_CHECKING:
    from ops.digest.against import Evidence
    from ops.digest.keys import Trust
    from ops.digest.statements import Digests
    from streams.settings import Settings

app = typer.Typer(
    name="digest",
    help="Signed digests of the journal: whoever alters, removes or inserts an event is found out.",
    no_args_is_help=True,
)

DigestsArgument = Annotated[
    str,
    typer.Argument(metavar="URL", help="Where the digests are: a folder, or such as s3://…", show_default=False),
]
KeyOption = Annotated[
    str | None,
    typer.Option(
        "--key",
        metavar="FILE",
        help="The key to sign with (default: TURNLOG_DIGEST_KEY, a file's name or the PEM text).",
        show_default=False,
    ),
]
TrustOption = Annotated[
    list[str] | None,
    typer.Option(
        "--trust",
        metavar="FILE",
        help="A public key that is believed, or a folder of *.pub; may be repeated (default: TURNLOG_DIGEST_TRUST).",
        show_default=False,
    ),
]
STATEMENTS: Final = ("partition", "start", "end", "records", "sealed_at", "key_id", "believed", "hash")
EVIDENCE: Final = ("partition", "ok", "records", "sealed", "unsealed", "violations_total", "head")


def trust_from(given: Sequence[str] | None, key: Any = None) -> Trust:
    """The keys that are believed. `CommandFailed` when there is none, or one that is none."""
    from ops.digest.keys import trusted

    with key_failures():
        return trusted(given or (), key)


def digests_at(url: str, trust: Trust) -> Digests:
    """The digests at `url`; `trust`: whose signatures are believed."""
    from ops.digest.statements import Digests
    from ops.history.place import place_at

    return Digests(place_at(url), trust)


@contextmanager
def key_failures() -> Iterator[None]:
    """A key that cannot be used is wrong input."""
    from ops.digest.keys import DigestKeyError

    try:
        yield
    except DigestKeyError as error:
        raise CommandFailed(str(error), USAGE) from error


@app.command("seal")
def seal(
    url: DigestsArgument,
    key: KeyOption = None,
    trust: TrustOption = None,
    follow: FollowOption = False,
    every: EveryOption = "5m",
    segment_records: Annotated[
        int, typer.Option("--segment-records", min=1, max=1_000_000, help="Most records of a digest.")
    ] = 100_000,
    after_gap: Annotated[
        bool, typer.Option("--after-gap", help="Where the journal misses something: note the gap, and go on.")
    ] = False,
    metrics_port: MetricsPortOption = None,
    archive: ArchiveOption = None,
    offline: OfflineOption = False,
    kafka: KafkaOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Hash what is committed in the journal, and not sealed yet; chain it to what was sealed before, and sign it.

    What was sealed can be proved from then on; what was done to it before cannot be found out. So seal often, keep the
    key where nobody who can write to Kafka gets at it, and the digests where nobody can take back what is written.

    Examples:

      turnlog key digest new /etc/turnlog/digest.pem

      turnlog digest seal s3://vault/digests --key /etc/turnlog/digest.pem

      turnlog digest seal s3://vault/digests --follow --every 1m
    """
    every_s = seconds_of(every, "--every")
    settings = settings_of(kafka, NO_POSTGRES, namespace, archive=archive, offline=offline)
    with translated_failures(), key_failures():
        from ops.digest.keys import signing_key, trusted

        signer = signing_key(key)
        work = _Sealing(url, signer, trusted(trust or (), signer), segment_records, after_gap)
        with resumable("interrupted; run the same command again to go on"):
            sealed = asyncio.run(work.run(settings, (archive, offline), every_s if follow else None, metrics_port))
    if output is Output.TABLE:
        progress(f"{sealed:,} records sealed in {url} with key {signer.id}")
    else:
        emit({"digests": url, "records": sealed, "key_id": signer.id})


class _Sealing:
    def __init__(self, url: str, signer: Any, trust: Trust, segment_records: int, after_gap: bool) -> None:
        self._where = (url, trust)
        self._signer = signer
        self._how: dict[str, Any] = {"segment_records": segment_records, "after_gap": after_gap}

    async def run(
        self, settings: Settings | None, where: tuple[str | None, bool], every_s: float | None, metrics_port: int | None
    ) -> int:
        """`where`: the history's archive, and whether that alone is read."""
        from ops.digest.sealing import Sealer
        from ops.history import open_history
        from ops.history.following import follow
        from ops.history.rounds import RoundMetrics, counted, shown

        sealed = 0
        digests = digests_at(*self._where)
        archive, offline = where
        async with open_history(settings, archive, offline=offline) as history:
            sealer = Sealer(history, digests, self._signer, notify=progress, **self._how)

            async def once() -> None:
                nonlocal sealed
                sealed += await sealer.seal()

            if every_s is None:
                await once()
            else:
                metrics = RoundMetrics("digests", digests.place.address, every_s)
                host = "127.0.0.1" if settings is None else settings.host
                async with shown(metrics, history, sealer.upto, (host, metrics_port), progress):
                    await follow(counted(once, metrics), every_s, progress)
        return sealed


@app.command("list")
def list_statements(
    url: DigestsArgument,
    trust: TrustOption = None,
    partition: Annotated[int | None, typer.Option("--partition", min=0, help="Of this partition only.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the digests: offsets (end exclusive), records, key, whether the key is trusted, and the hash of each.

    The last hash of a partition is its head. Note it elsewhere (`turnlog digest verify --head`): that the last digests
    were taken away shows by nothing else.

    Example:

      turnlog digest list s3://vault/digests --trust /etc/turnlog/trusted
    """
    with translated_failures(), key_failures():
        rows = _statements(url, trust_from(trust), partition)
    show_rows(rows, STATEMENTS, output, empty="nothing is sealed yet: `turnlog digest seal`")


def _statements(url: str, trust: Trust, partition: int | None) -> list[dict[str, Any]]:
    import msgspec

    from ops.digest.statements import partitions_at

    digests = digests_at(url, trust)
    wanted = partitions_at(digests.place) if partition is None else [partition]
    return [
        {
            **msgspec.structs.asdict(sealed.statement),
            "believed": sealed.problem(trust) is None,
            "hash": sealed.hash,
        }
        for each in wanted
        for sealed in digests.chain(each)
    ]


@app.command("verify")
def verify(
    url: DigestsArgument,
    trust: TrustOption = None,
    head: Annotated[
        list[str] | None,
        typer.Option(
            "--head", metavar="PARTITION:HASH", help="A head noted earlier: it must be in the chain. Repeatable."
        ),
    ] = None,
    partition: PartitionOption = None,
    archive: ArchiveOption = None,
    offline: OfflineOption = False,
    kafka: KafkaOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Compare a history, live or archived, with its digests: name each event that was altered, removed or inserted.

    The digests themselves are checked first: signatures by trusted keys, and a chain without a break. What was sealed
    and cannot be read is the first line. `turnlog audit verify --against URL` does this beside all else.

    Exit code 0: all that was sealed is as it was. 1: it is not, or is missing. 2: it could not be compared.

    Examples:

      turnlog digest verify s3://vault/digests --trust /etc/turnlog/trusted

      turnlog digest verify s3://vault/digests --offline \\
        --archive s3://bucket/turnlog
    """
    settings = settings_of(kafka, NO_POSTGRES, namespace, archive=archive, offline=offline)
    heads = [_head(text) for text in head or ()]
    with translated_failures():
        trusted = trust_from(trust)
        chosen = None if partition is None else [partition]
        evidence = asyncio.run(compare(settings, (archive, offline), url, trusted, chosen))
        absent = _absent(url, trusted, heads)
    for line in [*told_of(evidence), *(f"VIOLATION: {problem}" for problem in absent)]:
        progress(line)
    show_rows([each.document() for each in evidence], EVIDENCE, output, empty="nothing is sealed yet")
    if absent or not all(each.ok for each in evidence):
        raise typer.Exit(NEGATIVE)


def _head(text: str) -> tuple[int, str]:
    partition, _, digest = text.partition(":")
    if not partition.isdecimal() or len(digest) != 64:
        raise CommandFailed(f"--head: {text!r} is not PARTITION:HASH, as `turnlog digest list` shows them", USAGE)
    return int(partition), digest


def _absent(url: str, trust: Trust, heads: Sequence[tuple[int, str]]) -> list[str]:
    digests = digests_at(url, trust)
    return [
        f"partition {partition}: the head {digest} that was noted is not in the chain: digests were taken away, or "
        "others put in their place"
        for partition, digest in heads
        if digest not in {sealed.hash for sealed in digests.chain(partition)}
    ]


async def compare(
    settings: Settings | None,
    where: tuple[str | None, bool],
    url: str,
    trust: Trust,
    partitions: Sequence[int] | None,
    conversation: str | None = None,
) -> list[Evidence]:
    """What the digests at `url` say of a history: `where` is its archive, and whether that alone is read.

    `partitions`: of these (None: all), or of the one that `conversation` lies in.
    """
    from ops.digest.against import against
    from ops.history import HistoryUnavailable, open_history
    from streams.runtime.partitioning import partition_of

    def told(partition: int, offset: int, end: int) -> None:
        progress(f"digests of partition {partition}: {offset:,} of {end:,}")

    archive, offline = where
    async with open_history(settings, archive, offline=offline) as history:
        if conversation is not None:
            partitions = [partition_of(conversation, history.partitions)]
        evidence = await against(history, digests_at(url, trust), partitions=partitions, progress=told)
    if not any(len(each.sealed) or each.count for each in evidence):
        # To say that all is well of what nobody sealed, or at a mistyped address, would be worse than to say nothing.
        raise HistoryUnavailable(f"nothing is sealed at {url}: there is nothing to compare with")
    return evidence


def told_of(evidence: Sequence[Evidence]) -> list[str]:
    """For people: what is missing, then each violation, then partitions of which nothing is sealed."""
    missing = [f"MISSING: offsets {gone} of partition {each.partition}" for each in evidence for gone in each.missing]
    violations = [f"VIOLATION: {tampering.problem}" for each in evidence for tampering in each.found]
    bare = [
        f"NOT SEALED: partition {each.partition}, all of its {each.unsealed:,} offsets: nobody sealed it yet, or its "
        "digests were taken away (a head that was noted tells: `turnlog digest verify --head`)"
        for each in evidence
        if each.unsealed and not len(each.sealed) and not each.count
    ]
    return [*missing, *violations, *bare]
