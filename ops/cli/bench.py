"""`turnlog bench`: measure the real thing on this machine."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from ops.cli.common import Output, OutputOption, progress, show_document, translated_failures
from ops.cli.errors import USAGE, CommandFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

TABS_A_CONVERSATION = 2

app = typer.Typer(
    name="bench",
    help="Measure the real thing on this machine: on servers of its own, or on those that TURNLOG_KAFKA and "
    "TURNLOG_POSTGRES name (under a namespace of its own, removed after).",
    no_args_is_help=True,
)


class FaultName(StrEnum):
    """What can be done to a process."""

    KILL_WORKER = "kill_worker"
    STOP_WORKER = "stop_worker"
    KILL_AGENT = "kill_agent"
    KILL_GATEWAY = "kill_gateway"
    DRAIN = "drain"


PartitionsOption = Annotated[int, typer.Option("--partitions", min=1, help="Partitions of each topic.")]


@app.command("floor")
def floor(
    turns: Annotated[int, typer.Option("--turns", min=1, help="Turns to copy.")] = 300_000,
    partitions: PartitionsOption = 8,
    output: OutputOption = Output.TABLE,
) -> None:
    """How fast Kafka and Avro alone are here: consume, decode, encode, produce, commit; nothing is decided.

    Example:

      turnlog bench floor --turns 300000 -o json
    """
    from ops.bench.run import floor_bench

    _run(lambda: floor_bench(turns, partitions, progress), output)


@app.command("sequencer")
def sequencer(
    turns: Annotated[int, typer.Option("--turns", min=1, help="Turns to commit.")] = 300_000,
    partitions: PartitionsOption = 8,
    output: OutputOption = Output.TABLE,
) -> None:
    """How fast one worker commits turns: its own process, all layers, checkpoints on, 5,000 conversations.

    The intake is filled first; then the worker starts and is timed from its first turn to its last commit. The floor is
    measured on the same broker in the same run, before and after; the mean of the two counts.

    Example:

      turnlog bench sequencer --turns 300000 -o json
    """
    from ops.bench.run import sequencer_bench

    _run(lambda: sequencer_bench(turns, partitions, progress), output)


@app.command("latency")
def latency(
    turns: Annotated[int, typer.Option("--turns", min=1, help="Turns to send.")] = 3_000,
    rate: Annotated[float, typer.Option("--rate", min=0.1, help="Turns a second, at even distances.")] = 100.0,
    partitions: PartitionsOption = 8,
    output: OutputOption = Output.TABLE,
) -> None:
    """How long a turn takes from the HTTP request that brings it in to the socket of the agent that it is given to.

    Turns are sent at a fixed rate whatever the answers take (open loop), so that a pause delays what comes after it,
    and shows.

    Example:

      turnlog bench latency --rate 100 -o json
    """
    from ops.bench.run import latency_bench

    _run(lambda: latency_bench(turns, rate, partitions, progress), output)


@app.command("takeover")
def takeover(
    partitions: Annotated[int, typer.Option("--partitions", min=1, help="Partitions of each topic.")] = 64,
    conversations: Annotated[int, typer.Option("--conversations", min=1, help="Known conversations.")] = 100_000,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="How often each fault is made.")] = 5,
    load: Annotated[float, typer.Option("--load", min=0.1, help="Turns a second meanwhile, over all of them.")] = 2.0,
    fault: Annotated[
        list[FaultName] | None, typer.Option("--fault", help="Make this one only; may be given several times.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """How long a fault is felt: from ending a process to the next committed event of the conversations that it had.

    Two workers, two gateways and two agents under light load. Workers: a turn written to each partition of the worker
    that was killed (SIGKILL), stopped (SIGSTOP, once: its lease must end) or drained (SIGTERM, while people talk over
    HTTP; their failed requests are `drain_errors`). Agents and gateways: the runs that the killed one held.

    Example:

      turnlog bench takeover --partitions 64 --conversations 100000 -o json
    """
    from ops.bench.run import takeover_bench
    from ops.bench.takeover import Fault, TakeoverPlan

    faults = tuple(Fault(each.value) for each in fault or list(FaultName))
    plan = TakeoverPlan(faults=faults, partitions=partitions, conversations=conversations, rounds=rounds, load=load)
    _run(lambda: takeover_bench(plan, progress), output)


@app.command("recovery")
def recovery(
    conversations: Annotated[
        int, typer.Option("--conversations", min=1, help="Conversations in a checkpoint.")
    ] = 100_000,
    events: Annotated[int, typer.Option("--events", min=1, help="Events behind it, to be replayed.")] = 100_000,
    weighed: Annotated[
        int, typer.Option("--weighed", min=250, help="Conversations weighed, each with 64 keys.")
    ] = 5_000,
    output: OutputOption = Output.TABLE,
) -> None:
    """How long a worker takes to go on where another was killed, and what conversations cost in memory.

    One partition has them all, and no checkpoint holds the events: from the kill to the heir's first commit. Weighed
    are idle conversations with their 64 newest keys and last 16 runs, by what the process grows for each;
    `worker_rss_mib` is the most that a whole worker had at any time, of those that opened them, were killed and took
    over; `resident` how many conversations it had something of in memory, the others being in PostgreSQL alone
    (`TURNLOG_IDLE_CONVERSATIONS_MAX`).

    Example:

      turnlog bench recovery --conversations 100000 --events 100000 -o json

      turnlog bench recovery --conversations 1000000 -o json
    """
    from ops.bench.run import recovery_bench

    _run(lambda: recovery_bench(conversations, events, weighed, progress), output)


@app.command("audit")
def audit(
    events: Annotated[int, typer.Option("--events", min=1_000, help="Events of the journal.")] = 1_000_000,
    partitions: PartitionsOption = 8,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="How often it is read, and audited.")] = 3,
    output: OutputOption = Output.TABLE,
) -> None:
    """How fast `turnlog audit verify` is: events a second of CPU, and as a ratio to reading and decoding them alone.

    The journal is made by the core's own decisions, with its intake and its checkpoints: turns that are answered at
    once or in pieces, some that come twice, members that go and come. Each round reads and decodes it in one process,
    and then audits it in as many as there are cores, all invariants. `travel_s`: how long `turnlog replay` takes to any
    of ten points, all partitions, once states are kept.

    Example:

      turnlog bench audit --events 1000000 -o json
    """
    from ops.bench.run import audit_bench

    _run(lambda: audit_bench(events, partitions, rounds, progress), output)


@app.command("grow")
def grow(
    events: Annotated[int, typer.Option("--events", min=1_000, help="Events of the journal.")] = 500_000,
    partitions: PartitionsOption = 8,
    times: Annotated[int, typer.Option("--times", min=2, help="New partitions of each old one.")] = 2,
    output: OutputOption = Output.TABLE,
) -> None:
    """How fast `turnlog topic grow` moves a journal: events a second, beside those of reading and decoding it alone.

    The deployment stands still for so long. `rss_mib` is the most that the process had, the making of the journal
    included.

    Example:

      turnlog bench grow --events 500000 --times 4 -o json
    """
    from ops.bench.run import growth_bench

    _run(lambda: growth_bench(events, partitions, times, progress), output)


@app.command("archive")
def archive(
    events: Annotated[int, typer.Option("--events", min=1_000, help="Events of the journal.")] = 400_000,
    output: OutputOption = Output.TABLE,
) -> None:
    """What an archive and digests cost: records a second of CPU to seal, compare, archive and read back.

    No servers: the journal is made by the core's own decisions and held in memory, so that reading it costs nothing.
    Files go to the folder for temporary ones.

    Example:

      turnlog bench archive --events 400000 -o json
    """
    import asyncio

    from ops.bench.keeping import measure

    _run(lambda: asyncio.run(measure(events, progress)), output)


@app.command("connections")
def connections(
    agents: Annotated[int, typer.Option("--agents", min=1, help="Agents' connections, all of one group.")] = 1_000,
    conversations: Annotated[int, typer.Option("--conversations", min=1, help="Conversations with an owner.")] = 5_000,
    people: Annotated[
        int, typer.Option("--people", min=2, help="People's sockets: two for each watched conversation.")
    ] = 10_000,
    turns: Annotated[int, typer.Option("--turns", min=1, help="Turns of each of the three measurements.")] = 1_000,
    rate: Annotated[float, typer.Option("--rate", min=0.1, help="Turns a second.")] = 50.0,
    partitions: PartitionsOption = 8,
    output: OutputOption = Output.TABLE,
) -> None:
    """What one gateway holds, and what a reader that stops reading costs the others.

    A turn is felt from when it was due to its answer at both sockets of its conversation. It is measured alone, while
    an agent floods a conversation beside it whose viewer reads, and while it floods one whose viewer does not.

    This process needs an open file for each connection, and the gateway too: `ulimit -n` must exceed them.

    Example:

      turnlog bench connections --agents 1000 --people 10000 -o json
    """
    from ops.bench.connections import ConnectionsPlan
    from ops.bench.run import connections_bench

    if people > TABS_A_CONVERSATION * conversations:
        raise CommandFailed(f"--people: at most {TABS_A_CONVERSATION} for each of the --conversations", USAGE)
    plan = ConnectionsPlan(agents=agents, conversations=conversations, people=people, turns=turns, rate=rate)
    _run(lambda: connections_bench(plan, partitions, progress), output)


def _run(bench: Callable[[], Mapping[str, Any]], output: Output) -> None:
    with translated_failures():
        show_document(bench(), output)
