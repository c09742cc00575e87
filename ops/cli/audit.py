"""`turnlog audit`: proof from the log."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ops.cli.audit_report import report
from ops.cli.common import (
    ArchiveOption,
    KafkaOption,
    NamespaceOption,
    OfflineOption,
    Output,
    OutputOption,
    PartitionOption,
    PostgresOption,
    emit,
    printable,
    progress,
    told_time,
    translated_failures,
)
from ops.cli.digest import TrustOption, compare, told_of, trust_from
from ops.cli.errors import INTERRUPTED, NEGATIVE, USAGE, CommandFailed
from ops.cli.servers import settings_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ops.audit.asked import Scope, Where
    from ops.audit.violations import Verdict
    from ops.digest.against import Evidence
    from ops.digest.keys import Trust
    from streams.settings import Settings

app = typer.Typer(name="audit", help="Proof from the log.", no_args_is_help=True)
app.command("report")(report)

CORES: Final = os.cpu_count() or 1
ConversationOption = Annotated[
    str | None, typer.Option("--conversation", help="Look at this conversation's partition; tell of it alone.")
]
ProcessesOption = Annotated[
    int, typer.Option("--processes", min=1, help="At most so many share the partitions.", show_default="one a core")
]
ResumeOption = Annotated[
    str | None, typer.Option("--resume", metavar="NAME", help="Go on with an audit that was interrupted: it said how.")
]
AgainstOption = Annotated[
    str | None,
    typer.Option(
        "--against",
        metavar="URL",
        help="Compare with the digests there (`turnlog digest seal`): finds what was altered, removed, inserted.",
    ),
]


@app.command("verify")
def verify(
    partition: PartitionOption = None,
    conversation: ConversationOption = None,
    processes: ProcessesOption = CORES,
    resume: ResumeOption = None,
    digests: AgainstOption = None,
    trust: TrustOption = None,
    archive: ArchiveOption = None,
    offline: OfflineOption = False,
    kafka: KafkaOption = None,
    postgres: PostgresOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Prove from the journal that no turn was lost, or answered twice, or given to the wrong member.

    Reads every partition's journal up to what is committed now, decides every owner again, folds the state again and
    compares it with the checkpoints, and compares the consumed intake with its outcomes. The system may be running.
    An archive alone has neither checkpoints nor intake: what rests on them is not checked, and that is said.

    Several processes share the partitions of a long journal. Interrupted, it says how to go on where it was.

    Exit code 0: no violation. 1: violations, listed. 2: it could not be checked.

    Examples:

      turnlog audit verify

      turnlog audit verify --conversation 6f9619ff-8b86-d011 -o json

      turnlog audit verify --archive s3://backups/turnlog --offline

      turnlog audit verify --against s3://vault/digests --trust digest.pem.pub
    """
    alone = partition is None and conversation is None and archive is None and digests is None and not offline
    if resume is not None and not alone:
        raise CommandFailed("--resume: an audit goes on with what it began with: give it alone", USAGE)
    trusted = None if digests is None else trust_from(trust)
    settings = settings_of(kafka, postgres, namespace, archive=archive, offline=offline)
    with translated_failures():
        from ops.audit.shared import Interrupted, Team
        from ops.audit.shared import resume as go_on
        from ops.audit.verify import Scope, Where, verify_cluster

        scope, where = Scope(partition=partition, conversation=conversation), Where(archive=archive, offline=offline)
        try:
            if resume is not None:
                compared = _kept(resume)
                verdict = asyncio.run(go_on(settings, resume, Team(processes, progress)))
            else:
                # First: what was meddled with may be what the audit then stumbles over.
                compared = None if trusted is None else _compared(settings, scope, where, str(digests), trusted)
                beside = {} if compared is None else {"digests": compared.document()}
                verdict = asyncio.run(
                    verify_cluster(settings, scope, progress, where, processes=processes, beside=beside)
                )
        except Interrupted as interrupted:
            raise CommandFailed(f"interrupted; go on with: {interrupted}", INTERRUPTED) from None
    raise typer.Exit(0 if _told_all(verdict, compared, output) else NEGATIVE)


@dataclass(frozen=True)
class Compared:
    """What the digests say, and when they were asked, ms since the epoch: an audit that goes on later keeps it."""

    at: int
    evidence: list[Evidence]

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {"at": self.at, "evidence": [each.document() for each in self.evidence]}


def _kept(name: str) -> Compared | None:
    """What the digests said when the audit of this name began; None: they were not asked."""
    from ops.audit.kept import Kept
    from ops.digest.against import Evidence

    kept = Kept.named(name).plan()["beside"].get("digests")
    return kept and Compared(kept["at"], [Evidence.of(each) for each in kept["evidence"]])


def _compared(settings: Settings | None, scope: Scope, where: Where, digests: str, trusted: Trust) -> Compared:
    """What the digests say of it; for people, at once."""
    chosen = None if scope.partition is None else [scope.partition]
    source = (where.archive, where.offline)
    evidence = asyncio.run(compare(settings, source, digests, trusted, chosen, scope.conversation))
    for line in told_of(evidence):
        progress(line)
    return Compared(round(time.time() * 1000), evidence)


def _told_all(verdict: Verdict, compared: Compared | None, output: Output) -> bool:
    """Write what was found, and what the digests say, if they were asked; whether all is well."""
    evidence = [] if compared is None else compared.evidence
    sealed_ok = all(each.ok for each in evidence)
    ok = verdict.ok and sealed_ok
    if output is not Output.TABLE:
        documents = {"digests": [each.document() for each in evidence]}
        sealed = {} if compared is None else {**documents, "digests_compared_at": compared.at}
        emit({**verdict.document(), "ok": ok, **sealed})
        return ok
    lines = [told(verdict.document())]
    if compared is not None:
        records, violations = sum(each.records for each in evidence), sum(each.count for each in evidence)
        said = "ok: all that was sealed is as it was" if sealed_ok else f"NOT ok: {violations} violations"
        unsealed = sum(each.unsealed for each in evidence)
        open_ = f", {unsealed:,} offsets are not sealed" if unsealed else ""
        lines.append(f"digests, compared {told_time(compared.at)} UTC: {said}; {records:,} records{open_}")
    typer.echo(printable("\n".join(lines)))
    return ok


@app.command("explain")
def explain(
    turn: Annotated[
        str, typer.Argument(metavar="CONVERSATION[/SEQ]", help="A conversation, or one turn of it by its seq.")
    ],
    archive: ArchiveOption = None,
    offline: OfflineOption = False,
    kafka: KafkaOption = None,
    postgres: PostgresOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Say why a member owned a turn: who there was, since when, what the hash gave each, and what moved it since.

    What is told of a choice is computed again from the members of that moment. Nobody's text is shown.

    Exit code 1: a choice cannot be explained, which `turnlog audit verify` tells more of. 2: there is no such turn.

    Examples:

      turnlog audit explain 6f9619ff-8b86-d011

      turnlog audit explain 6f9619ff-8b86-d011/7 -o json
    """
    conversation, _, number = turn.rpartition("/")
    if not conversation or not number.isdecimal():
        conversation, number = turn, ""
    settings = settings_of(kafka, postgres, namespace, archive=archive, offline=offline)
    with translated_failures():
        from ops.audit.explain import explain as explained
        from ops.history import open_history
        from ops.replay import Unreachable

        async def asked() -> dict[str, Any] | None:
            async with open_history(settings, archive, offline=offline) as history:
                return await explained(history, conversation, int(number) if number else None)

        try:
            document = asyncio.run(asked())
        except Unreachable as error:
            raise CommandFailed(str(error)) from error
    if document is None or (number and not document["turns"]):
        raise CommandFailed(f"the journal has no turn {turn}" if number else f"the journal has no conversation {turn}")
    if output is Output.TABLE:
        typer.echo(printable("\n".join(explained_lines(document))))
    else:
        emit(document)
    unexplained = any(each["words"].startswith("NOT") for shown in document["turns"] for each in shown["given"])
    raise typer.Exit(NEGATIVE if unexplained else 0)


def explained_lines(document: Mapping[str, Any]) -> Iterator[str]:
    """An explanation for people."""
    for gone in document["missing"]:
        yield f"MISSING: offsets {gone} of partition {document['partition']}"
    for turn in document["turns"]:
        epoch = f"partition {document['partition']}, lsn {turn['lsn']}, writer epoch {turn['writer_epoch']}"
        yield f"turn {turn['seq']} of {turn['sender']}, {told_time(turn['timestamp'])} UTC ({epoch})"
        for words in turn["words"]:
            yield f"  {words}"
        for given in turn["given"]:
            yield f"  {given['group']} → {given['owner'] or 'nobody yet'}: {given['words']}"
            for each in given["candidates"]:
                yield _candidate(each, given["owner"])
        for later in turn["since"]:
            yield f"  {told_time(later['timestamp'])} lsn {later['lsn']}: {later['words']}"
            for each in later.get("candidates", ()):
                yield _candidate(each, later["member"])
        yield ""
    now = document["now"]
    owners = ", ".join(f"{group}: {member or 'nobody'}" for group, member in now["next"].items()) or "nobody"
    yield f"a turn now would go to {owners} (hash {document['hash']}, head seq {now['head_seq']})"
    for soon in document["soon"]:
        yield f"  or to {soon['member']} of {soon['group']}, which joined: it counts from log time {_since(soon)}"


def _candidate(each: Mapping[str, Any], chosen: str | None) -> str:
    mark = "→" if each["member"] == chosen else " "
    why_not = f"; does not count: {each['why_not']}" if each["why_not"] else ""
    return f"    {mark} {each['score']}  {each['member']}, counts from log time {_since(each)}{why_not}"


def _since(member: Mapping[str, Any]) -> str:
    return f"{told_time(member['since'])} UTC"


def _many(number: Any, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def told(verdict: dict[str, object]) -> str:
    """The verdict for people: `document` of a `Verdict` in sentences."""
    counts = (
        f"{_many(verdict['events'], 'event')}: {_many(verdict['turns'], 'turn')}, {verdict['answered']:,} answered, "
        f"{verdict['open']:,} open, {verdict['ended']:,} ended without an answer, {verdict['unrouted']:,} for nobody; "
        f"{_many(verdict['takeovers'], 'takeover')} ({verdict['continued']:,} continued), "
        f"{_many(verdict['fenced'], 'frame')} fenced"
    )
    lines = [counts]
    if verdict["skewed"]:
        late = _many(verdict["skewed"], "turn")
        lines.append(f"{late} came from clocks that are more than a minute off; their order is the log's")
    violations = verdict["violations"]
    assert isinstance(violations, list)  # noqa: S101 -- `Verdict.document`
    for each in violations:
        where = f"partition {each['partition']}, lsn {each['lsn']}, conversation {each['conversation'] or '-'}"
        lines.append(f"VIOLATION of invariant {each['invariant']} ({where}): {each['problem']}")
    unchecked = verdict["unchecked"]
    assert isinstance(unchecked, list)  # noqa: S101 -- as above
    held = "every promise holds"
    if unchecked:
        held = f"no promise is broken; {', '.join(map(str, unchecked))} could not be checked, or not of all"
    lines.append(f"ok: {held}" if verdict["ok"] else f"NOT ok: {verdict['violations_total']} violations")
    return "\n".join(lines)
