"""The document of channels and routes: what is accepted, what each mistake is called, what a change looks like."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streams.core.routing import parse_config
from streams.fence.channels import InvalidDocument, Versioned, changes, parse_document

GOOD: dict[str, Any] = {
    "channels": [{"id": "web", "kind": "web"}, {"id": "agents", "kind": "websocket", "group_settle_ms": 0}],
    "routes": [{"from": "web", "to": ["agents"]}],
}


def with_channel(**fields: Any) -> dict[str, Any]:
    return {**GOOD, "channels": [*GOOD["channels"], {"id": "more", "kind": "web", **fields}]}


def test_defaults_are_written_out() -> None:
    [web, agents] = parse_document(GOOD).plain()["channels"]
    assert web == {
        "id": "web",
        "kind": "web",
        "active": True,
        "group_settle_ms": 1000,
        "ungrouped": "shared",
        "on_owner_loss": None,
        "adopt_ms": 5000,
        "watchdog_ms": 300_000,
        "begin_ms": 0,
        "wait_ms": 0,
        "unassigned": "wait",
        "interrupt_ttl_ms": 86_400_000,
        "deadline_ms": 0,
        "policy": "deliver",
        "max_waiting": 100,
        "busy": "wait",
        "grace_ms": 30_000,
        "sees": "participant",
        "groups": {},
        "middleware": [],
        "retain_days": None,
    }
    assert agents["group_settle_ms"] == 0


def test_what_is_broadcast_is_what_the_core_reads() -> None:
    document = Versioned(version=3, document=parse_document(GOOD)).broadcast()
    assert json.loads(document)["version"] == 3
    config = parse_config(3, document)
    assert config.routes == {"web": ("agents",)}
    assert (config.channel("agents").kind, config.channel("agents").group_settle_ms) == ("websocket", 0)


def test_how_long_a_channel_keeps_what_was_said_reaches_the_core_and_is_shown_as_a_change() -> None:
    kept, retained = parse_document(with_channel()), parse_document(with_channel(retain_days=30))
    assert (kept.retained(), retained.retained()) == ({}, {"more": 30})
    config = parse_config(1, Versioned(version=1, document=retained).broadcast())
    assert (config.channel("more").retain_days, config.channel("web").retain_days) == (30, None)
    assert changes(kept, retained) == ["~ channel more: retain_days null → 30"]


@pytest.mark.parametrize("days", [0, -1, 36_501, 1.5, "30", True], ids=repr)
def test_it_is_a_whole_number_of_days(days: object) -> None:
    with pytest.raises(InvalidDocument, match=r"^channels\[2\]\.retain_days: "):
        parse_document(with_channel(retain_days=days))


def test_people_of_another_channel_may_be_let_in() -> None:
    desk = {"id": "desk", "kind": "web", "sees": "all"}
    route = {"from": "web", "to": ["agents", "desk"], "replies": "origin"}
    document = parse_document({"channels": [*GOOD["channels"], desk], "routes": [route]})
    config = parse_config(1, Versioned(version=1, document=document).broadcast())
    assert (config.routes["web"], config.channel("desk").sees) == (("agents", "desk"), "all")
    assert config.replies_to_origin == {"web"}


def test_the_core_takes_a_groups_own_settings_before_its_channels() -> None:
    own = {"slow": {"policy": "enqueue", "deadline_ms": 60_000}, "strict": {"busy": "refuse"}}
    channel = {"id": "bots", "kind": "websocket", "policy": "reject", "on_owner_loss": "fail", "groups": own}
    document = parse_document({"channels": [channel]})
    config = parse_config(1, Versioned(version=1, document=document).broadcast())
    policies = {group: config.group(group).policy for group in ("bots", "bots/slow", "bots/strict", "bots/~m1")}
    assert policies == {"bots": "reject", "bots/slow": "enqueue", "bots/strict": "reject", "bots/~m1": "reject"}
    slow, strict = config.group("bots/slow"), config.group("bots/strict")
    assert (slow.deadline_ms, slow.busy, slow.on_owner_loss) == (60_000, "wait", "fail")
    assert (strict.deadline_ms, strict.busy) == (0, "refuse")


def test_a_listed_document_can_be_applied_as_it_is() -> None:
    document = parse_document(GOOD)
    assert parse_document({"version": 7, **document.plain()}) == document


def test_middleware_is_written_as_it_was_meant() -> None:
    steps = [
        {"mask": {"pattern": "a+", "with": "***"}},
        {"filter": {"types": ["tool_call", "skill"]}},
        {"transform": {"types": ["text"], "set": {"metadata.brand": "acme"}, "drop": ["data.debug"]}},
    ]
    document = parse_document(with_channel(middleware=steps))
    assert document.plain()["channels"][2]["middleware"] == steps
    assert parse_document(document.plain()) == document


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ([], "must be an object"),
        ({}, "channels: Field required"),
        ({"channels": []}, "channels: must not be empty"),
        (
            with_channel(policy="later"),
            "channels[2].policy: Input should be 'deliver', 'enqueue', 'reject' or 'interrupt'",
        ),
        (with_channel(busy="never"), "channels[2].busy: Input should be 'wait' or 'refuse'"),
        (
            with_channel(groups={"x": {"policy": "later"}}),
            "channels[2].groups.x.policy: Input should be 'deliver', 'enqueue', 'reject' or 'interrupt'",
        ),
        (with_channel(groups={"x": {"settle": 1}}), "channels[2].groups.x.settle: Extra inputs are not permitted"),
        (with_channel(groups={"a/b": {}}), "channels[2].groups.a/b"),
        (with_channel(deadline_ms=-1), "channels[2].deadline_ms: Input should be greater than or equal to 0"),
        (with_channel(kind="fax"), "channels[2].kind: Input should be 'web', 'websocket'"),
        (with_channel(id="Über"), "channels[2].id: String should match pattern"),
        (with_channel(id="a/b"), "channels[2].id: String should match pattern"),
        (with_channel(group_settle_ms=-1), "channels[2].group_settle_ms: Input should be greater than or equal to 0"),
        (
            with_channel(on_owner_loss="hope"),
            "channels[2].on_owner_loss: Input should be 'continue', 'restart' or 'fail'",
        ),
        (with_channel(wait_ms=-1), "channels[2].wait_ms: Input should be greater than or equal to 0"),
        (
            with_channel(middleware=[{"mask": {"pattern": "a"}}, {"mask": {"pattern": "(a"}}]),
            "channels[2].middleware[1].mask.pattern: no regular expression of RE2's syntax: missing ): (a",
        ),
        (
            with_channel(middleware=[{"mask": {"pattern": r"(a)\1"}}]),
            "channels[2].middleware[0].mask.pattern: no regular expression of RE2's syntax: invalid escape sequence",
        ),
        (
            with_channel(middleware=[{"mask": {"pattern": "a*"}}]),
            "channels[2].middleware[0].mask.pattern: must not match the empty text",
        ),
        (
            with_channel(middleware=[{"mask": {"pattern": "(a{1000}){1000}"}}]),
            "channels[2].middleware[0].mask.pattern: no regular expression of RE2's syntax: invalid repetition size",
        ),
        (
            with_channel(middleware=[{"mask": {"pattern": "x" * 501}}]),
            "channels[2].middleware[0].mask.pattern: String should have at most 500 characters",
        ),
        (with_channel(middleware=[{"hide": {}}]), "channels[2].middleware[0].hide: Extra inputs are not permitted"),
        (
            with_channel(middleware=[{"mask": {"pattern": "a"}, "filter": {"types": ["run"]}}]),
            "channels[2].middleware[0]: each step is one of mask, filter, transform",
        ),
        (with_channel(middleware=[{}]), "channels[2].middleware[0]: each step is one of mask, filter, transform"),
        (
            with_channel(middleware=[{"filter": {"types": []}}]),
            "channels[2].middleware[0].filter.types: must not be empty",
        ),
        (
            with_channel(middleware=[{"filter": {"types": ["skill", "ack"]}}]),
            "channels[2].middleware[0].filter.types: ack: the protocol needs it, it cannot be filtered",
        ),
        (
            with_channel(middleware=[{"transform": {"drop": ["seq"]}}]),
            "channels[2].middleware[0].transform.drop[0]: String should match pattern",
        ),
        (with_channel(middleware=[{"transform": {}}]), "channels[2].middleware[0].transform: needs `set` or `drop`"),
        (
            with_channel(middleware=[{"filter": {"types": ["run"]}}] * 17),
            "channels[2].middleware: Tuple should have at most 16 items",
        ),
        (
            with_channel(kind="websocket", middleware=[{"filter": {"types": ["run"]}}]),
            "channels[2]: middleware: it is of people's channels",
        ),
        (with_channel(secret="s"), "channels[2].secret: Extra inputs are not permitted"),
        (with_channel(id="web"), "channels: web more than once"),
        ({**GOOD, "routes": [{"from": "web", "to": ["nobody"]}]}, "routes: channel nobody is not in channels"),
        ({**GOOD, "routes": [{"from": "web", "to": []}]}, "routes[0].to: must not be empty"),
        ({**GOOD, "routes": [{"from": "agents", "to": ["agents"]}]}, "a channel is not routed to itself"),
        ({**GOOD, "routes": [{"from": "web", "to": ["web"]}]}, "a channel is not routed to itself"),
        ({**GOOD, "routes": 2 * GOOD["routes"]}, "routes: web more than once"),
        ({**GOOD, "routes": [{"from": "web", "to": ["agents", "agents"]}]}, "route from web: agents more than once"),
    ],
)
def test_a_mistake_is_named_by_field_and_rule(document: object, named: str) -> None:
    with pytest.raises(InvalidDocument) as refused:
        parse_document(document)
    assert named in str(refused.value)


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ({"channels": [{"id": "web", "kind": "fax"}]}, ["channels[0].kind"]),
        ({**GOOD, "routes": [{"from": "web", "to": [7]}]}, ["routes[0].to[0]"]),
    ],
)
def test_a_mistake_is_not_told_a_second_time_as_something_else(document: object, named: list[str]) -> None:
    with pytest.raises(InvalidDocument) as refused:
        parse_document(document)
    assert [line.partition(":")[0] for line in str(refused.value).splitlines()] == named


def test_all_mistakes_are_named_at_once() -> None:
    with pytest.raises(InvalidDocument) as refused:
        parse_document(with_channel(kind="fax", watchdog_ms="soon"))
    assert [line.partition(":")[0] for line in str(refused.value).splitlines()] == [
        "channels[2].kind",
        "channels[2].watchdog_ms",
    ]


def test_a_document_over_itself_changes_nothing() -> None:
    assert changes(parse_document(GOOD), parse_document(GOOD)) == []


def test_each_change_is_one_line() -> None:
    new = parse_document(
        {
            "channels": [
                {"id": "agents", "kind": "websocket", "group_settle_ms": 5, "active": False},
                {"id": "bots", "kind": "websocket"},
                {"id": "web", "kind": "web"},
            ],
            "routes": [{"from": "web", "to": ["agents", "bots"]}],
        }
    )
    lines = changes(parse_document(GOOD), new)
    assert lines[0] == "~ channel agents: active true → false"
    assert lines[1] == "~ channel agents: group_settle_ms 0 → 5"
    assert lines[2].startswith('+ channel bots {"id": "bots", "kind": "websocket"')
    assert lines[3] == '~ route from web: to ["agents"] → ["agents", "bots"]'
    assert (
        changes(None, parse_document(GOOD))[2] == '+ route from web {"from": "web", "to": ["agents"], "replies": "all"}'
    )
    assert "- channel bots" in changes(new, parse_document(GOOD))
