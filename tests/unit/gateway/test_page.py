"""The chat page as it is served: to anybody, whole, under a policy that lets nothing else run."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

import pytest

from connectors.web.page import files
from ops.cli.chat import chat_link
from tests.support.gateway_world import Served


async def test_the_page_is_served_under_a_strict_policy(served: Served) -> None:
    answer = await served.http.get("/chat/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy


async def test_the_bare_path_leads_to_the_page(served: Served) -> None:
    answer = await served.http.get("/chat")
    assert (answer.status_code, answer.headers["location"]) == (308, "/chat/")


@pytest.mark.parametrize("name", sorted(files()))
async def test_every_file_that_a_file_names_is_served_and_is_not_sent_twice(served: Served, name: str) -> None:
    answer = await served.http.get(f"/chat/{name}")
    assert answer.status_code == 200
    for mentioned in re.findall(r"""(?:from "\./|src="|href=")([a-z]+\.(?:js|css))""", answer.text):
        assert (await served.http.get(f"/chat/{mentioned}")).status_code == 200, mentioned
    again = await served.http.get(f"/chat/{name}", headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


async def test_there_is_nothing_else(served: Served) -> None:
    answer = await served.http.get("/chat/page.py")
    assert answer.status_code == 404


async def test_the_link_has_a_token_behind_the_fragment(served: Served) -> None:
    link = await chat_link(served.url, "web-secret", "ana")
    parts = urlsplit(link)
    assert (parts.path, parts.query) == ("/chat/", "")
    [token] = parse_qs(parts.fragment)["token"]
    opened = await served.http.post("/api/v1/converger/conversations", headers={"Authorization": f"Bearer {token}"})
    assert opened.status_code == 201
