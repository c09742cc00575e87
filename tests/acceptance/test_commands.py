"""The commands on a running stack: what scripts and people get from them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.command import PATIENCE_S, Ended, turnlog, turnlog_async
from tests.support.people import agents
from tests.support.up import Up
from turnlog import Client


def client_of(up: Up) -> dict[str, str]:
    return {"TURNLOG_GATEWAY": up.gateways[0], "TURNLOG_CHANNEL_SECRET": up.secret("web")}


@contextmanager
def tailing(up: Up, conversation: str) -> Iterator[subprocess.Popen[str]]:
    """`turnlog conversation tail`, killed at the end if it is still there."""
    command = [sys.executable, "-m", "ops.cli", "conversation", "tail", conversation]
    environment = {**os.environ, **up.environment}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def done(ended: Ended) -> Ended:
    assert ended.code == 0, ended.err
    return ended


async def test_a_conversation_can_be_held_shown_told_and_proved_from_the_command_line(up: Up) -> None:
    group = f"g{uuid.uuid4().hex[:8]}"
    operator = up.environment
    async with agents(up, group, 1):
        sent = done(await turnlog_async("send", "new", "hello", "--wait", "-o", "json", environment=client_of(up)))
        assert sent.document["answer"]["text"] == "answer to hello"
        conversation = sent.document["conversation"]
        again = [
            done(
                await turnlog_async("send", conversation, "more", "--key", "k", "-o", "json", environment=client_of(up))
            )
            for _ in range(2)
        ]
        assert again[0].document["id"] == again[1].document["id"]
        spoken = done(await turnlog_async("send", conversation, "last", "--wait", environment=client_of(up)))
        assert spoken.out.strip() == "answer to last"
        members = done(await turnlog_async("member", "list", "-o", "json", environment=up.environment)).document
        (member,) = [each for each in members if each["group"] == f"agents/{group}"]
        shown = done(await turnlog_async("conversation", "show", conversation, "-o", "json", environment=operator))
    document = shown.document
    assert document["conversation"] == conversation
    assert (document["head_seq"], document["open_runs"]) == (6, [])
    assert document["owners"] == {f"agents/{group}": member["member"]}
    assert document["writer_epoch"] >= 1
    told = done(await turnlog_async("conversation", "timeline", conversation, environment=up.environment)).out
    assert "operator says: (5 characters)" in told
    assert "hello" not in told
    asked = ("--show-text", "--why", "case 7", "--by", "eve")
    whole = await turnlog_async("conversation", "timeline", conversation, *asked, environment=up.environment)
    assert "operator says: hello" in done(whole).out
    noted = "select count(*) as noted from journal where event = 'OperatorActed'"
    assert done(await turnlog_async("sql", noted, "-o", "json", environment=up.environment)).document[0]["noted"] >= 1
    assert f"turn 1 is answered in agents/{group} by {member['member']} (finished)" in told
    lines = done(await turnlog_async("conversation", "timeline", conversation, "-o", "jsonl", environment=operator))
    events = [json.loads(line)["event"] for line in lines.out.splitlines()]
    assert (events[0], events.count("TurnCommitted"), events.count("RunEnded")) == ("ConversationOpened", 3, 3)
    assert events.count("Duplicate") == 1
    listed = done(await turnlog_async("conversation", "list", "-o", "json", environment=up.environment)).document
    assert conversation in [each["id"] for each in listed]
    proved = await turnlog_async("audit", "verify", "--conversation", conversation, environment=up.environment)
    assert "3 turns, 3 answered" in done(proved).out


@pytest.mark.parametrize("presses", [1, 2])
def test_a_tail_tells_what_there_is_and_ends_with_ctrl_c_however_often_it_is_pressed(up: Up, presses: int) -> None:
    sent = done(turnlog("send", "new", "hello", "-o", "json", environment=client_of(up))).document["conversation"]
    with tailing(up, sent) as tail:
        assert tail.stdout is not None
        assert "the conversation is opened" in tail.stdout.readline()
        for _ in range(presses):
            tail.send_signal(signal.SIGINT)
        assert tail.wait(PATIENCE_S) in {130, -signal.SIGINT}


def test_a_tail_of_what_is_not_there_says_that_it_waits(up: Up) -> None:
    with tailing(up, "no-such") as tail:
        assert tail.stderr is not None
        assert "nothing of a conversation no-such yet" in tail.stderr.readline()
        tail.send_signal(signal.SIGINT)
        assert tail.wait(PATIENCE_S) == 130


async def test_an_answer_that_does_not_come_is_a_no(up: Up) -> None:
    asked = ("send", "new", "anyone?", "--wait", "--timeout", "0.5", "-o", "json")
    ended = await turnlog_async(*asked, environment=client_of(up))
    assert (ended.code, ended.document["answer"]) == (1, None)
    # It would wait for the first agent to come, of whatever test.
    async with Client(up.gateways[0], channel_secret=up.secret("web"), user="operator") as client:
        await (await client.conversation(ended.document["conversation"])).end()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("send", "no-such", "hi"), "conversation_not_found"),
        (("conversation", "show", "no-such"), "there is no conversation no-such"),
        (("conversation", "timeline", "no-such"), "no-such"),
        (("audit", "verify", "--partition", "99"), "there is no partition 99"),
    ],
)
def test_what_is_not_there_is_said(up: Up, arguments: tuple[str, ...], said: str) -> None:
    ended = turnlog(*arguments, environment={**up.environment, **client_of(up)})
    assert (ended.code, ended.out) == (2, "")
    assert said in ended.err
    assert "Traceback" not in ended.err


def test_a_wrong_secret_is_refused_without_being_shown(up: Up) -> None:
    environment = {**client_of(up), "TURNLOG_CHANNEL_SECRET": "not-the-secret"}
    ended = turnlog("send", "new", "hi", environment=environment)
    assert ended.code == 2
    assert "unauthorized" in ended.err
    assert "not-the-secret" not in ended.err


def test_topics_and_channels_are_as_they_should_be_and_a_bad_file_is_refused(up: Up, tmp_path: Path) -> None:
    assert done(turnlog("topic", "ensure", "-o", "json", environment=up.environment)).document == []
    ended = turnlog("topic", "ensure", "--partitions", "5", environment=up.environment)
    assert ended.code == 2
    assert "must have 5 partitions" in ended.err
    channels: Mapping[str, object] = done(turnlog("channel", "list", "-o", "json", environment=up.environment)).document
    kept = tmp_path / "channels.json"
    kept.write_text(json.dumps(channels))
    assert done(turnlog("channel", "apply", str(kept), "--dry-run", environment=up.environment)).out == ""
    for text, said in (
        ("channels: [{id: web, kind: smoke}]", "channels[0].kind"),
        ("channels: [", "channels.yaml"),
        ("routes: []", "channels"),
    ):
        bad = tmp_path / "channels.yaml"
        bad.write_text(text)
        ended = turnlog("channel", "apply", str(bad), "--yes", environment=up.environment)
        assert (ended.code, ended.out) == (64, "")
        assert said in ended.err
    missing = turnlog("channel", "apply", str(tmp_path / "none.yaml"), environment=up.environment)
    assert missing.code == 64


def test_a_changed_document_is_shown_applied_and_undone(up: Up, tmp_path: Path) -> None:
    before = done(turnlog("channel", "list", "-o", "json", environment=up.environment)).document
    file = tmp_path / "channels.json"
    more = {"id": "extra", "kind": "web"}
    file.write_text(json.dumps({**before, "channels": [*before["channels"], more]}))
    planned = turnlog("channel", "apply", str(file), "--dry-run", environment=up.environment)
    assert planned.code == 1
    assert "+ channel extra" in planned.err
    applied = done(turnlog("channel", "apply", str(file), "--yes", "-o", "json", environment=up.environment)).document
    assert applied["version"] == before["version"] + 1
    assert set(applied["secrets"]) == {"extra"}
    file.write_text(json.dumps(before))
    done(turnlog("channel", "apply", str(file), "--yes", environment=up.environment))
    after = done(turnlog("channel", "list", "-o", "json", environment=up.environment)).document
    assert (after["channels"], after["routes"]) == (before["channels"], before["routes"])
