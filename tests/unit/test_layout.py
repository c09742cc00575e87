"""The distribution's shape: what a stranger's `pip install turnlog` brings, and what it may rely on."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("turnlog", "streams", "connectors", "ops", "schemas")
SERVER_ONLY = (
    "langchain_core",
    "opentelemetry",
    "pydantic",
    "aiokafka",
    "faust",
    "psycopg",
    "fastavro",
    "starlette",
    "streams",
    "connectors",
    "ops",
    "schemas",
)


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(*extras: str) -> set[str]:
    """The distributions that pyproject.toml names, for the base and these extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    return {normalized(re.split(r"[\[<>=;! ]", line, maxsplit=1)[0]) for line in lines}


def imported(package: str) -> dict[str, str]:
    """The top-level modules that a package imports from elsewhere, each with a file that does."""
    found: dict[str, str] = {}
    top = ROOT / package
    for path in sorted(top.rglob("*.py")) if top.is_dir() else [top]:
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            for name in names:
                found.setdefault(name.partition(".")[0], str(path.relative_to(ROOT)))
    return {name: path for name, path in found.items() if name not in {*sys.stdlib_module_names, *PACKAGES}}


def test_importing_the_sdk_loads_nothing_of_the_server() -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, turnlog; print('\\n'.join(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert "turnlog" in loaded
    assert not set(SERVER_ONLY) & {name.partition(".")[0] for name in loaded}


@pytest.mark.parametrize("package", PACKAGES)
def test_what_a_package_imports_is_declared_and_not_there_by_chance(package: str) -> None:
    own = (
        ("langchain", "data", "faust", "tracing") if package == "turnlog" else ("server", "data", "tracing", "console")
    )
    allowed = declared(*own)
    providers = importlib.metadata.packages_distributions()
    undeclared = {
        module: path
        for module, path in imported(package).items()
        if not {normalized(name) for name in providers.get(module, [module])} & allowed
    }
    assert undeclared == {}


def test_only_the_module_of_an_extra_imports_it() -> None:
    extra = declared("langchain") - declared()
    providers = importlib.metadata.packages_distributions()
    users = {
        path
        for module, path in imported("turnlog").items()
        if {normalized(name) for name in providers.get(module, [])} & extra
    }
    assert users == {"turnlog/langchain.py"}


def test_the_agents_part_of_the_sdk_imports_nothing_of_the_extra_data() -> None:
    extra = declared("data") - declared()
    providers = importlib.metadata.packages_distributions()
    users = {
        path
        for path in (ROOT / "turnlog").rglob("*.py")
        if "data" not in path.relative_to(ROOT / "turnlog").parts
        for module in imported(str(path.relative_to(ROOT)))
        if {normalized(name) for name in providers.get(module, [])} & extra
    }
    assert users == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_every_folder_with_modules_is_a_package(package: str) -> None:
    folders = {path.parent for path in (ROOT / package).rglob("*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []
