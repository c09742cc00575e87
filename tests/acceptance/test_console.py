"""The operators' console in a real browser, against a whole Turnlog."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, Route, expect

from tests.support.browser import browser, chromium
from tests.support.command import turnlog
from tests.support.up import Up
from turnlog import Agent, Reply, Turn
from turnlog.backoff import Backoff

pytestmark = [
    pytest.mark.skipif(chromium() is None, reason="no Chromium on this machine"),
    pytest.mark.asyncio(loop_scope="module"),
]

MARKUP = "<img src=x onerror=document.title='broken'> 4711"
WAIT_MS = 20_000


@dataclass
class Story:
    """What there is to be looked at: a conversation whose first turn moved from one agent to another."""

    conversation: str
    user: str
    token: str
    """An operator's."""
    operator: str


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def started() -> AsyncIterator[Browser]:
    """One browser; each test has a profile of its own in it."""
    async with browser() as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def story(up: Up) -> Story:
    """Made once for all tests of this module."""
    return await told_story(up)


async def told_story(up: Up) -> Story:
    """Make an operator, and a conversation to look at."""
    operator = f"eve-{uuid.uuid4().hex[:8]}"
    made = await asyncio.to_thread(
        turnlog, "key", "operator", "add", operator, "-o", "json", environment=up.environment
    )
    user = f"<b>ann-{uuid.uuid4().hex[:8]}</b>"
    async with httpx.AsyncClient(base_url=up.gateways[0], timeout=30.0) as http:
        secret = {"authorization": f"Bearer {up.secret('web')}"}
        login = await http.post("/api/v1/converger/tokens/generate", headers=secret, json={"user": {"id": user}})
        person = {"authorization": f"Bearer {login.json()['token']}"}
        opened = (await http.post("/api/v1/converger/conversations", headers=person)).json()
        person = {"authorization": f"Bearer {opened['token']}"}
        path = f"/api/v1/converger/conversations/{opened['conversationId']}/activities"
        await _tell(up, http, path, person)
    return Story(opened["conversationId"], user, made.document["token"], operator)


async def _tell(up: Up, http: httpx.AsyncClient, path: str, person: dict[str, str]) -> None:
    """A turn that the first agent leaves open when it goes, and two that the second one answers."""
    group, begun, answered = f"g{uuid.uuid4().hex[:8]}", asyncio.Event(), asyncio.Event()

    async def hang(_turn: Turn, _reply: Reply) -> None:
        begun.set()
        await asyncio.Event().wait()

    async def answer(turn: Turn, reply: Reply) -> None:
        await reply.text(f"you said {turn.text}")
        answered.set()

    async def said(text: str, done: asyncio.Event) -> None:
        done.clear()
        assert (await http.post(path, headers=person, json={"text": text})).status_code == 201
        await asyncio.wait_for(done.wait(), 30)

    agents = []
    for handler in (hang, answer):
        agent = Agent(
            up.gateways[1], channel_secret=up.secret("agents"), group=group, backoff=Backoff(first=0.05, most=0.5)
        )
        agent.on_turn(handler)
        agents.append(agent)
    await agents[0].start()
    try:
        await said(MARKUP, begun)
        await agents[1].start()
        await agents[0].stop(budget=0)
        await asyncio.wait_for(answered.wait(), 30)
        for text in ("and then", "thank you"):
            await said(text, answered)
    finally:
        for agent in agents:
            await agent.stop(budget=5)


@asynccontextmanager
async def console(up: Up, started: Browser, story: Story, where: str = "") -> AsyncIterator[Page]:
    """A tab in which the operator signed in."""
    async with await started.new_context(viewport={"width": 1280, "height": 900}) as context:
        context.set_default_timeout(WAIT_MS)
        page = await context.new_page()
        problems: list[str] = []
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        await page.goto(f"{up.gateways[0]}/console/{where}")
        await page.get_by_label("Operator's token").fill(story.token)
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.locator("#operator")).to_have_text(story.operator)
        yield page
        assert problems == []
        assert story.token not in page.url


async def loaded(page: Page) -> int:
    """How many events the conversation's view has, once it has all."""
    await expect(page.locator(".bar-line")).to_contain_text("all that is committed")
    return await page.locator(".events li").count()


async def test_a_wrong_token_is_told_and_kept_nowhere(up: Up, started: Browser) -> None:
    async with await started.new_context() as context:
        page = await context.new_page()
        await page.goto(f"{up.gateways[0]}/console/")
        for wrong in ("wrong", "größe"):
            await page.get_by_label("Operator's token").fill(wrong)
            await page.get_by_role("button", name="Sign in").click()
            await expect(page.get_by_role("alert").first).to_contain_text("no operator's token")
            await expect(page.get_by_label("Operator's token")).to_have_value("")
        assert await page.evaluate("sessionStorage.length + localStorage.length") == 0


async def test_a_conversation_is_found_by_its_person_and_opened(up: Up, started: Browser, story: Story) -> None:
    async with console(up, started, story) as page:
        await page.get_by_label("Conversation, participant or external id").fill(story.user)
        await page.keyboard.press("Enter")
        row = page.locator("tbody tr")
        await expect(row).to_have_count(1)
        await expect(row).to_contain_text(story.user)  # as text, not as markup
        await page.get_by_role("link", name=story.conversation).click()
        await expect(page.get_by_role("heading", level=1)).to_contain_text(story.conversation)
        await loaded(page)
        assert story.conversation in await page.title()


async def test_what_is_typed_while_the_list_is_read_is_kept_and_asked_for(
    up: Up, started: Browser, story: Story
) -> None:
    async with console(up, started, story) as page:
        await expect(page.locator("tbody tr").first).to_be_visible()
        go_on, asked = asyncio.Event(), asyncio.Event()

        async def slowly(route: Route) -> None:
            asked.set()
            await go_on.wait()
            await route.continue_()

        await page.get_by_role("button", name="Sign out").click()
        await page.route("**/conversations", slowly)
        await page.get_by_label("Operator's token").fill(story.token)
        await page.get_by_role("button", name="Sign in").click()
        await asyncio.wait_for(asked.wait(), WAIT_MS / 1000)
        await page.get_by_label("Conversation, participant or external id").fill(story.user)
        go_on.set()
        await expect(page.locator("tbody tr").first).to_be_visible()
        await expect(page.locator("#q")).to_be_focused()
        await page.unroute("**/conversations")
        await page.keyboard.press("Enter")
        await expect(page.locator("tbody tr")).to_have_count(1)


async def test_its_lanes_show_who_held_each_turn_and_that_one_moved(up: Up, started: Browser, story: Story) -> None:
    async with console(up, started, story, f"#/conversation/{story.conversation}") as page:
        await loaded(page)
        bars = page.locator(".lanes .bar")
        await expect(bars).to_have_count(4)  # the first turn twice: held, moved, held
        await expect(page.locator(".lanes .bar.answered")).to_have_count(3)
        await expect(page.locator(".lanes .bar.moved")).to_have_count(1)
        await expect(page.locator(".lanes .move")).to_have_count(1)
        await expect(page.locator(".lanes .mark.turn")).to_have_count(3)
        await expect(page.locator(".events")).to_contain_text(re.compile(r"epoch 2 \(member_(left|drained)\)"))


async def test_the_slider_shows_the_state_as_of_each_event(up: Up, started: Browser, story: Story) -> None:
    async with console(up, started, story, f"#/conversation/{story.conversation}") as page:
        count = await loaded(page)
        state = page.locator(".state")
        await expect(page.get_by_label("As of event")).to_have_value(str(count))
        await expect(state.locator("caption").last).to_have_text("Runs: 0 open of 3")
        await page.get_by_role("button", name="First").click()
        await expect(state.locator("caption").last).to_have_text("Runs: 0 open of 0")
        await page.get_by_role("button", name="Next move").click()
        first = state.locator("tbody").last.locator("tr").first
        await expect(state.locator("caption").last).to_have_text("Runs: 1 open of 1")
        await expect(first.locator("td").nth(3)).to_have_text("2")
        await page.get_by_label("As of event").focus()
        await page.keyboard.press("ArrowLeft")
        await expect(first.locator("td").nth(3)).to_have_text("1")
        await expect(page.locator(".events [aria-current]")).to_have_count(1)


async def test_a_deep_link_leads_to_its_event_through_the_sign_in(up: Up, started: Browser, story: Story) -> None:
    async with console(up, started, story, f"#/conversation/{story.conversation}") as page:
        await loaded(page)
        await page.get_by_role("button", name="First").click()
        await page.get_by_role("button", name="Next move").click()
        place, address = await page.locator("output").inner_text(), page.url
        assert "?at=" in address
    async with console(up, started, story, f"#{address.partition('#')[2]}") as page:
        await loaded(page)
        await expect(page.locator("output")).to_have_text(place)
        await expect(page.locator(".events [aria-current]")).to_contain_text("moves to")


async def test_what_was_said_is_shown_as_text_once_it_is_asked_for_and_noted(
    up: Up, started: Browser, story: Story
) -> None:
    async with console(up, started, story, f"#/conversation/{story.conversation}") as page:
        await loaded(page)
        assert "4711" not in await page.content()
        await page.get_by_text("Show what was said", exact=True).click()
        await page.get_by_label("Why? The journal notes it").fill("ticket 12")
        await page.get_by_role("button", name="Show it").click()
        await expect(page.locator(".events")).to_contain_text(MARKUP)
        await expect(page.locator(".words")).to_contain_text("the journal notes")
        await expect(page.locator("img")).to_have_count(0)
        assert await page.title() != "broken"


async def test_members_and_partitions_are_shown(up: Up, started: Browser, story: Story) -> None:
    async with console(up, started, story) as page:
        await page.get_by_role("link", name="Partitions").click()
        await expect(page.locator("caption")).to_contain_text("8 partitions, 8 with a live lease")
        await expect(page.locator("tbody tr")).to_have_count(8)
        await page.get_by_role("link", name="Members").click()
        await expect(page.get_by_role("heading", name="Members")).to_be_visible()
        await page.get_by_role("button", name="Look again").click()
        await expect(page.get_by_role("heading", name="Members")).to_be_visible()


async def test_signing_out_forgets_the_token_and_what_was_shown(up: Up, started: Browser, story: Story) -> None:
    async with console(up, started, story, f"#/conversation/{story.conversation}") as page:
        await loaded(page)
        await page.get_by_role("button", name="Sign out").click()
        await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        assert await page.evaluate("sessionStorage.length + localStorage.length") == 0
        assert story.user not in await page.content()


async def test_every_control_has_a_name_and_the_page_its_landmarks(up: Up, started: Browser, story: Story) -> None:
    async with console(up, started, story, f"#/conversation/{story.conversation}") as page:
        await loaded(page)
        unnamed = await page.evaluate(
            "[...document.querySelectorAll('button, input, select, a, [tabindex=\"0\"]')].filter(each => "
            "!(each.textContent.trim() || each.labels?.length || each.getAttribute('aria-label')))"
            ".map(each => each.outerHTML)"
        )
        assert unnamed == []
        for landmark in ("banner", "navigation", "main"):
            await expect(page.get_by_role(landmark)).to_have_count(1)
        await expect(page.get_by_role("navigation").locator("[aria-current]")).to_have_text("Conversations")
        await expect(page.get_by_role("img")).to_have_count(1)
