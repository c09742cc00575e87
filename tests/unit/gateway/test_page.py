"""The pages as they are served: to anybody, whole, under a policy that lets nothing else run."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

import pytest

from connectors.web.page import CHAT, CONSOLE, Site, files
from ops.cli.chat import chat_link
from tests.support.gateway_world import Served

SITES = pytest.mark.parametrize("site", [CHAT, CONSOLE], ids=lambda site: str(site.folder))


@SITES
async def test_the_page_is_served_under_a_strict_policy(served: Served, site: Site) -> None:
    answer = await served.http.get(f"{site.path}/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy


async def test_nobody_may_frame_the_console_which_loads_nothing_from_elsewhere(served: Served) -> None:
    policy = (await served.http.get("/console/")).headers["content-security-policy"]
    assert "frame-ancestors 'none'" in policy
    assert "http" not in policy


@SITES
async def test_the_bare_path_leads_to_the_page(served: Served, site: Site) -> None:
    answer = await served.http.get(site.path)
    assert (answer.status_code, answer.headers["location"]) == (308, f"{site.path}/")


@pytest.mark.parametrize(("site", "name"), [(site, name) for site in (CHAT, CONSOLE) for name in sorted(files(site))])
async def test_every_file_that_a_file_names_is_served_and_is_not_sent_twice(
    served: Served, site: Site, name: str
) -> None:
    answer = await served.http.get(f"{site.path}/{name}")
    assert answer.status_code == 200
    for mentioned in re.findall(r"""(?:from "\./|src="|href=")([a-z]+\.(?:js|css))""", answer.text):
        assert (await served.http.get(f"{site.path}/{mentioned}")).status_code == 200, mentioned
    again = await served.http.get(f"{site.path}/{name}", headers={"if-none-match": answer.headers["etag"]})
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
