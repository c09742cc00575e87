"""The chat page in a real browser, against a whole Turnlog."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import unquote

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, expect

from ops.cli.chat import chat_link
from tests.support.browser import browser, chromium
from tests.support.up import Up
from turnlog import Agent, Client, Reply, Turn
from turnlog.backoff import Backoff

pytestmark = [
    pytest.mark.skipif(chromium() is None, reason="no Chromium on this machine"),
    pytest.mark.asyncio(loop_scope="module"),
]

ANSWER = "It was sent this morning and should be with you soon"


async def answer(turn: Turn, reply: Reply) -> None:
    """What the page has to show: by the person's first word."""
    match (turn.text or "").split()[:1]:
        case ["stream"]:
            async with reply.stream() as stream:
                for word in ANSWER.split():
                    await stream.write(f"{word} ")
                    await stream.flush()  # each in a chunk of its own
        case ["tool"]:
            async with reply.tool("get_order", {"id": "ORD-42"}) as call:
                call.result = {"total": 249.9}
            await reply.text("249.90 in all")
        case ["ask"]:
            approved = await reply.ask(
                "Refund 249.90?", actions=[("Approve", {"approved": True}), ("Reject", {"approved": False})]
            )
            await reply.text(f"approved: {approved['approved']}")
        case ["chips"]:
            await reply.text("Which one?", actions=["The first", "The second"])
        case ["hang"]:
            await reply.text("working on it")
            await asyncio.Event().wait()
        case _:
            await reply.text(f"you said {turn.text}")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def started() -> AsyncIterator[Browser]:
    """One browser; each test has a profile of its own in it."""
    async with browser() as running:
        yield running


@asynccontextmanager
async def opened(up: Up, started: Browser) -> AsyncIterator[tuple[BrowserContext, Page]]:
    """A browser whose one tab shows a new conversation, and an agent that answers it."""
    agent = Agent(
        up.gateways[1], channel_secret=up.secret("agents"), group=f"g{uuid.uuid4().hex[:8]}",
        backoff=Backoff(first=0.05, most=0.5),
    )  # fmt: skip
    agent.on_turn(answer)
    await agent.start()
    try:
        async with await started.new_context() as context:
            context.set_default_timeout(20_000)
            page = await context.new_page()
            await page.goto(await chat_link(up.gateways[0], up.secret("web"), f"ana-{uuid.uuid4().hex[:8]}"))
            await expect(page.get_by_role("status")).to_have_text("Connected")
            yield context, page
    finally:
        await agent.stop(budget=0)


async def say(page: Page, text: str) -> None:
    await page.get_by_label("Your message").fill(text)
    await page.keyboard.press("Enter")


async def texts(page: Page) -> list[str]:
    return await page.locator("#log .bubble").all_inner_texts()


async def test_a_stream_is_shown_as_it_grows_and_once(up: Up, started: Browser) -> None:
    async with opened(up, started) as (_, page):
        await say(page, "stream please")
        await expect(page.locator("#log .theirs .bubble")).to_have_text(ANSWER)
        await expect(page.locator("#log .streaming")).to_have_count(0)
        assert [text.strip() for text in await texts(page)] == ["stream please", ANSWER]
        assert "token" not in page.url


async def test_a_tool_call_shows_its_state_input_and_result(up: Up, started: Browser) -> None:
    async with opened(up, started) as (_, page):
        await say(page, "tool please")
        await expect(page.locator("#log .tool summary")).to_have_text("get_order done")
        await page.locator("#log .tool summary").click()
        await expect(page.locator("#log .tool pre").first).to_contain_text("ORD-42")
        await expect(page.locator("#log .bubble").last).to_have_text("249.90 in all")


async def test_a_question_is_answered_by_a_button_and_closes_in_every_tab(up: Up, started: Browser) -> None:
    async with opened(up, started) as (context, page):
        await say(page, "ask me")
        question = page.get_by_role("group", name="Refund 249.90?")
        await expect(question.get_by_role("button", name="Approve")).to_be_visible()
        other = await context.new_page()
        await other.goto(page.url)
        await other.get_by_role("group", name="Refund 249.90?").get_by_role("button", name="Approve").click()
        for tab in (page, other):
            await expect(tab.get_by_role("group", name="Refund 249.90?")).to_contain_text("Answered: Approve")
            await expect(tab.locator("#log .bubble").last).to_have_text("approved: True")


async def test_a_quick_reply_is_said(up: Up, started: Browser) -> None:
    async with opened(up, started) as (_, page):
        await say(page, "chips please")
        await page.get_by_role("button", name="The second").click()
        await expect(page.locator("#log .bubble").last).to_have_text("you said The second")


async def test_two_tabs_show_the_same_in_the_same_order(up: Up, started: Browser) -> None:
    async with opened(up, started) as (context, page):
        other = await context.new_page()
        await other.goto(page.url)
        await expect(other.get_by_role("status")).to_have_text("Connected")
        for number in range(5):
            await say((page, other)[number % 2], f"line {number}")
        for tab in (page, other):
            for number in range(5):
                await expect(tab.locator("#log .theirs .bubble", has_text=f"you said line {number}")).to_have_count(1)
            await expect(tab.locator("#log .pending")).to_have_count(0)
        assert await texts(page) == await texts(other)


async def test_what_is_said_while_the_connection_is_away_is_sent_once_when_it_is_back(up: Up, started: Browser) -> None:
    async with opened(up, started) as (_, page):
        await say(page, "before")
        await expect(page.locator("#log .bubble").last).to_have_text("you said before")
        await page.evaluate("WebSocket.prototype.send = function () { this.close(); }")
        await say(page, "into the void")
        await expect(page.get_by_role("status")).to_contain_text("Connection lost")
        await expect(page.locator("#log .pending")).to_have_count(1)
        await page.reload()
        await expect(page.locator("#log .theirs .bubble", has_text="you said into the void")).to_have_count(1)
        await expect(page.locator("#log .mine .bubble", has_text="into the void")).to_have_count(1)
        await expect(page.locator("#log .pending")).to_have_count(0)


async def test_what_a_message_says_anew_is_shown_as_edited_at_once_and_after_a_reload(up: Up, started: Browser) -> None:
    async with opened(up, started) as (_, page):
        await say(page, "pin 1234")
        await expect(page.locator("#log .bubble").last).to_have_text("you said pin 1234")
        conversation = unquote(page.url.rpartition("conversation=")[2])
        token = await page.evaluate("id => localStorage.getItem(`turnlog.chat.${id}`)", conversation)
        async with Client(up.gateways[1], token=token) as elsewhere:
            shown = await elsewhere.conversation(conversation)
            await shown.edit((await shown.activities())[0].id, "pin 5678")
        for again in (False, True):
            if again:
                await page.reload()
            mine = page.locator("#log .mine")
            await expect(mine.locator(".bubble")).to_have_text("pin 5678")
            await expect(mine.locator(".byline")).to_contain_text("edited")
            await expect(page.locator("#log .theirs .bubble").last).to_have_text("you said pin 5678")
            await expect(page.locator("#log .edited")).to_have_count(1)


async def test_stop_ends_the_answer(up: Up, started: Browser) -> None:
    async with opened(up, started) as (_, page):
        await say(page, "hang please")
        await expect(page.locator("#log .theirs .bubble")).to_have_text("working on it")
        await page.get_by_role("button", name="Stop").click()
        await expect(page.get_by_role("button", name="Stop")).to_be_hidden()
        await say(page, "and now")
        await expect(page.locator("#log .bubble").last).to_have_text("you said and now")


async def test_markup_in_a_message_stays_text(up: Up, started: Browser) -> None:
    async with opened(up, started) as (_, page):
        await say(page, "<img src=x onerror=alert(1)> https://example.test/a?b=1")
        last = page.locator("#log .theirs .bubble")
        await expect(last).to_contain_text("<img src=x onerror=alert(1)>")
        await expect(last.locator("img")).to_have_count(0)
        await expect(last.locator("a")).to_have_attribute("href", "https://example.test/a?b=1")


async def test_a_page_without_a_good_token_says_what_it_needs(up: Up, started: Browser) -> None:
    async with await started.new_context() as context:
        page = await context.new_page()
        await page.goto(f"{up.gateways[0]}/chat/")
        await expect(page.get_by_role("heading", name="This chat needs a token")).to_be_visible()
        await page.get_by_role("textbox", name="Token").fill("wrong")
        await page.get_by_role("button", name="Open the chat").click()
        await expect(page.locator("#sign-in-why")).to_contain_text("could not be opened")


async def test_every_control_has_a_name_and_the_keyboard_reaches_it(up: Up, started: Browser) -> None:
    async with opened(up, started) as (_, page):
        await say(page, "ask me")
        await expect(page.get_by_role("button", name="Approve")).to_be_visible()
        unnamed = await page.evaluate(
            "[...document.querySelectorAll('button, input, textarea, a')].filter(each => !(each.textContent.trim() || "
            "each.labels?.length || each.getAttribute('aria-label'))).map(each => each.outerHTML)"
        )
        assert unnamed == []
        await page.get_by_role("button", name="Approve").focus()
        await page.keyboard.press("Enter")
        await expect(page.locator("#log .bubble").last).to_have_text("approved: True")
        await expect(page.locator("#announcer")).to_have_text("approved: True")
