"""`dev.py`: sets up once, says what is missing, and starts even where it cannot work."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import dev

ROOT = Path(__file__).parents[2]


def run_dev(*arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **({"PATH": path} if path is not None else {})}
    command = [sys.executable, str(ROOT / "dev.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_its_syntax_is_one_that_old_pythons_read() -> None:
    ast.parse((ROOT / "dev.py").read_text(), feature_version=(3, 7))


def test_it_imports_nothing_but_the_standard_library() -> None:
    tree = ast.parse((ROOT / "dev.py").read_text())
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    modules |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert modules <= {*sys.stdlib_module_names}


def test_help_goes_to_stdout_and_a_wrong_word_gets_it_on_stderr() -> None:
    helped, wrong = run_dev("--help"), run_dev("frobnicate")
    assert (helped.returncode, wrong.returncode) == (0, 2)
    assert "python3 dev.py demo" in helped.stdout
    assert "python3 dev.py demo" in wrong.stderr
    assert wrong.stderr.startswith("dev.py: no such command: frobnicate\n")
    assert wrong.stdout == ""


@pytest.mark.parametrize("command", ["python3 dev.py demo", "python3 dev.py test"])
def test_the_readme_states_the_two_commands_on_its_first_screen(command: str) -> None:
    first_screen = (ROOT / "README.md").read_text().splitlines()[:30]
    assert any(line.startswith(command) for line in first_screen)


def test_too_old_a_python_looks_for_another_and_else_says_what_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 2, "final", 0))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(dev.Stop, match=r"needs Python 3\.11 to 3\.14.*install one"):
        dev.python()
    newer = tmp_path / "python3.13"
    newer.write_text("#!/bin/sh\nexit 0\n")
    newer.chmod(0o755)
    assert dev.python() == str(newer)
    newer.write_text("#!/bin/sh\nexit 127\n")  # as a version manager's shim for a version that is not installed
    with pytest.raises(dev.Stop, match="no other was found"):
        dev.python()


@pytest.fixture
def interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for Python that makes environments and installs at once, and writes down what it was asked."""
    script = tmp_path / "python3.13"
    script.write_text(
        f"""#!/bin/sh
echo "$@" >> {tmp_path}/asked
[ -e {tmp_path}/no-venv ] && echo "No module named venv" && exit 1
case "$2" in
venv) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
pip) [ ! -e {tmp_path}/no-index ] ;;
esac
"""
    )
    script.chmod(0o755)
    monkeypatch.setattr(dev, "python", lambda: str(script))
    return script


def asked(tmp_path: Path) -> list[str]:
    return (tmp_path / "asked").read_text().splitlines()


def test_an_environment_is_made_once_until_what_it_is_made_of_changes(tmp_path: Path, interpreter: Path) -> None:
    folder = tmp_path / "env"
    for stamp in ("one", "one", "two"):
        assert dev.virtual_environment(folder, ["thing==1"], stamp) == folder / "bin"
    venv, pip = f"-m venv {folder}", "-m pip install --quiet --disable-pip-version-check thing==1"
    assert asked(tmp_path) == [venv, pip, venv, pip]


def test_an_installation_that_failed_is_not_taken_for_a_whole_one(tmp_path: Path, interpreter: Path) -> None:
    (tmp_path / "no-index").touch()
    with pytest.raises(dev.Stop, match="pip could not install into env"):
        dev.virtual_environment(tmp_path / "env", ["thing==1"], "one")
    (tmp_path / "no-index").unlink()
    dev.virtual_environment(tmp_path / "env", ["thing==1"], "one")
    assert len(asked(tmp_path)) == 4


def test_a_python_without_venv_is_told_the_package_to_install(tmp_path: Path, interpreter: Path) -> None:
    (tmp_path / "no-venv").touch()
    with pytest.raises(dev.Stop, match=r"(?s)No module named venv.*apt-get install python3-venv"):
        dev.virtual_environment(tmp_path / "env", [], "one")


def test_a_program_sees_its_own_environment_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("VIRTUAL_ENV", "/elsewhere")
    seen = dev.variables_of(tmp_path / "env" / "bin", {"MORE": "1"})
    assert "PYTHONPATH" not in seen
    assert seen["VIRTUAL_ENV"] == str(tmp_path / "env")
    assert seen["PATH"].startswith(f"{tmp_path}/env/bin{os.pathsep}")
    assert seen["MORE"] == "1"


def test_an_unknown_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(dev.Stop, match=r"frobnicate is not among the programs"):
        dev.program_of(tmp_path, "frobnicate")


def test_all_checks_run_though_one_fails_and_the_status_tells(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []

    def run(_programs: Path, command: list[str], _variables: dict[str, str] | None = None) -> int:
        ran.append(command[0])
        return int(command[0] == "mypy")

    monkeypatch.setattr(dev, "environment", lambda: tmp_path)
    monkeypatch.setattr(dev, "clients", dict)
    monkeypatch.setattr(dev, "run", run)
    assert dev.check() == 1
    assert ran == [command[0] for _, command in dev.CHECKS] + ["pytest"]
    assert "failed: types" in capsys.readouterr().err
