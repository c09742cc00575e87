"""An agent on the public package `converger-agent`, told by its turns what to do. Runs in the clients' own environment.

    SECRET=… python agent.py URL NAME [GROUP]

What a turn's text begins with decides: `hold` is answered once stdin says `release`, `stream` as a stream, `buttons`
with buttons, `fail` with an exception, `history` with the messages that the client knows, `ask` with what the person
answers to a question, `work` never, `cut` over a connection that has just been lost, `show` with a tool's trace and a
component; all else with `<name>: <text>`. `say CONVERSATION TEXT` on stdin is said there unasked.
What it sees goes to stdout, a line of JSON each.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import uuid
from typing import Any

from converger_agent import Agent, ConvergerError  # type: ignore[import-not-found]

released = asyncio.Event()


def tell(event: str, **fields: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


async def read_stdin(agent: Any) -> None:
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        if line.strip() == "release":
            released.set()
        elif line.startswith("say "):
            _, conversation, text = line.strip().split(" ", 2)
            await say(agent, conversation, text)


async def say(agent: Any, conversation: str, text: str) -> None:
    frame = {"type": "text", "clientId": f"unasked-{uuid.uuid4().hex}", "data": {"text": text}}
    try:
        ack = await agent.send(conversation, frame)
        tell("said", text=text, seq=ack["seq"])
    except ConvergerError as error:
        tell("refused", text=text, code=error.code)


async def work() -> None:
    """Without end; whoever ends it is told of."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        tell("cancelled")
        raise


async def handle(agent: Any, turn: Any, reply: Any, name: str) -> None:
    tell("turn", conversation=turn.conversation_id, seq=turn.seq, id=turn.id, text=turn.text)
    word = turn.text.split(" ")[0]
    if word == "hold":
        await released.wait()
    if word == "fail":
        raise RuntimeError("as the turn asked")
    if word == "work":
        await work()
    if word == "cut":
        agent._ws.transport.abort()  # the network goes away under the client; it does not know
    if word == "ask":
        answer = await reply.ask({"title": turn.text}, actions=[{"label": "Yes", "value": {"approved": True}}])
        await reply.text(f"{name}: {json.dumps(answer)}")
    elif word == "stream":
        async with reply.stream() as stream:
            for piece in (f"{name}", ": ", turn.text):
                await stream.write(piece)
    elif word == "buttons":
        await reply.message("buttons", {"text": f"{name}: {turn.text}", "buttons": [{"label": "Yes", "value": "yes"}]})
    elif word == "show":
        await reply.typing()
        await reply.tool_call("t1", "running", name="look_up", params={"id": 7})
        await reply.tool_call("t1", "completed", result={"total": 9})
        await reply.ui("card", {"total": 9})
        await reply.text(f"{name}: shown", actions=["Again"], metadata={"k": 1}, reply_to=turn.id)
    elif word == "history":
        frames = await turn.history()
        await reply.text(f"{name}: {[frame['seq'] for frame in frames]}")
    else:
        ack = await reply.text(f"{name}: {turn.text}")
        tell("ack", conversation=turn.conversation_id, id=ack["id"], seq=ack["seq"])


async def main() -> None:
    url, name, *group = sys.argv[1:]
    agent = Agent(
        url,
        channel_secret=os.environ["SECRET"],
        group=group[0] if group else None,
        stream_flush=0,
        backoff_initial=0.1,
        refresh_margin=float(os.environ.get("REFRESH_MARGIN", "60")),
    )
    agent.on_turn(lambda turn, reply: handle(agent, turn, reply, name))
    agent.on_frame(lambda conversation, frame: tell("frame", conversation=conversation, frame=frame))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: asyncio.ensure_future(agent.stop()))
    running = asyncio.ensure_future(agent.run())
    connected = asyncio.ensure_future(agent.wait_connected())
    reading = asyncio.ensure_future(read_stdin(agent))
    await asyncio.wait({running, connected}, return_when=asyncio.FIRST_COMPLETED)
    if connected.done():
        tell("ready")
    try:
        await running
    except ConvergerError as error:
        tell("ended", code=error.code, message=str(error))
    connected.cancel()
    reading.cancel()
    os._exit(0)  # the thread that reads stdin cannot be cancelled


asyncio.run(main())
