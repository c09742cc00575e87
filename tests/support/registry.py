"""A Confluent schema registry in memory, on a real port: the few calls that Turnlog makes, as the API defines them.

https://docs.confluent.io/platform/current/schema-registry/develop/api.html
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from schemas.definitions import records


class FakeRegistry:
    """What it holds: schemas by id, and the ids of each subject. `broken` makes it answer 500; `calls` counts."""

    def __init__(self, password: str | None = None) -> None:
        self.schemas: dict[int, str] = {}
        self.subjects: dict[str, list[int]] = {}
        self.levels: dict[str, str] = {}
        self.broken = False
        self.calls: list[str] = []
        self.password = password
        self.url = ""

    def put(self, definition: str) -> int:
        """Hold a schema, as another producer registers it; the same one has the same id."""
        known = [schema_id for schema_id, held in self.schemas.items() if held == definition]
        schema_id = known[0] if known else len(self.schemas) + 1
        self.schemas[schema_id] = definition
        return schema_id

    def answer(self, method: str, path: str, body: Any, authorization: str | None) -> tuple[int, Any]:
        self.calls.append(f"{method} {path}")
        expected = None if self.password is None else "Basic " + base64.b64encode(self.password.encode()).decode()
        if authorization != expected:
            return 401, {"error_code": 401, "message": "Unauthorized"}
        if self.broken:
            return 500, {"error_code": 50001, "message": "Error in the backend data store"}
        match method, path.partition("?")[0].strip("/").split("/"):
            case "GET", ["schemas", "ids", asked]:
                held = self.schemas.get(int(asked))
                return (200, {"schema": held}) if held else (404, {"error_code": 40403, "message": "Schema not found"})
            case "POST", ["subjects", subject, "versions"]:
                schema_id = self.put(body["schema"])
                ids = self.subjects.setdefault(subject, [])
                if schema_id not in ids:
                    ids.append(schema_id)
                return 200, {"id": schema_id}
            case "POST", ["subjects", subject]:
                ids = [i for i in self.subjects.get(subject, []) if self.schemas[i] == body["schema"]]
                found = {"subject": subject, "id": ids[0], "version": 1} if ids else None
                return (200, found) if found else (404, {"error_code": 40401, "message": "Subject not found"})
            case _:
                return self._managed(method, path.partition("?")[0].strip("/").split("/"), body)

    def _managed(self, method: str, path: list[str], body: Any) -> tuple[int, Any]:
        """Versions and compatibility: what pipelines ask of it, and no process of Turnlog."""
        match method, path:
            case "GET", ["subjects", subject, "versions"] if self.subjects.get(subject):
                return 200, list(range(1, len(self.subjects[subject]) + 1))
            case "GET", ["subjects", subject, "versions", "latest"] if self.subjects.get(subject):
                ids = self.subjects[subject]
                return 200, {"subject": subject, "version": len(ids), "id": ids[-1], "schema": self.schemas[ids[-1]]}
            case "GET", ["config", subject] if subject in self.levels:
                return 200, {"compatibilityLevel": self.levels[subject]}
            case "PUT", ["config", subject]:
                self.levels[subject] = body["compatibility"]
                return 200, body
            case "POST", ["compatibility", "subjects", subject, "versions"] if self.subjects.get(subject):
                problems = _problems(self.schemas[self.subjects[subject][-1]], body["schema"])
                return 200, {"is_compatible": not problems, "messages": problems}
            case _:
                return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}


def _problems(before: str, after: str) -> list[str]:
    """As the registry's own check has it, as far as tests go: a new field that older records cannot fill."""
    old, new = ({r["name"]: r for r in records(json.loads(text))} for text in (before, after))
    return [
        f"READER_FIELD_MISSING_DEFAULT_VALUE: {name}.{field['name']}"
        for name, record in new.items()
        if name in old
        for field in record["fields"]
        if "default" not in field and field["name"] not in {known["name"] for known in old[name]["fields"]}
    ]


@contextmanager
def running(registry: FakeRegistry) -> Iterator[FakeRegistry]:
    """Serve `registry` on a free port of 127.0.0.1, at its `url`, until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._serve()

        def do_POST(self) -> None:
            self._serve()

        def _serve(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            status, answer = registry.answer(self.command, self.path, body, self.headers.get("Authorization"))
            payload = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def do_PUT(self) -> None:
            self._serve()

        def log_message(self, *_: Any) -> None:
            """Say nothing: the test looks at `calls`."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    registry.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
