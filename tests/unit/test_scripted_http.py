"""The tests' own HTTP server: a mistake in a script, or in a client, fails its test."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.support.scripted_http import CUT, Answer, scripted_http
from tests.support.waiting import until

PATIENCE_S = 10.0


async def test_what_is_scripted_is_answered_and_a_cut_is_no_failure() -> None:
    async with scripted_http(Answer(201, {"a": 1}), CUT) as http, httpx.AsyncClient() as client:
        assert (await client.get(http.url)).json() == {"a": 1}
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get(http.url)


async def test_a_request_that_no_answer_is_left_for_fails_the_test() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with scripted_http() as http, httpx.AsyncClient() as client:
            await asyncio.gather(client.get(http.url), return_exceptions=True)
    assert [type(failure) for failure in caught.value.exceptions] == [IndexError]


async def cut_short() -> None:
    """Half a request to a server of its own."""
    async with scripted_http() as http:
        _, writer = await asyncio.open_connection("127.0.0.1", int(http.url.rsplit(":", 1)[1]))
        writer.write(b"GET / HTTP/1.1\r\n")
        writer.close()
        await writer.wait_closed()
        await until(lambda: bool(http.failures), limit_s=PATIENCE_S)


async def test_a_request_that_is_cut_short_fails_the_test() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await cut_short()
    assert [type(failure) for failure in caught.value.exceptions] == [asyncio.IncompleteReadError]
