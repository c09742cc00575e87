#!/usr/bin/env python3
"""One command for each thing a developer does here, on a machine that has Python and nothing else of ours.

    python3 dev.py demo            set everything up and run the demo
    python3 dev.py test            set everything up and run every check
    python3 dev.py test PATH …     set everything up and run pytest with these arguments only
    python3 dev.py run COMMAND …   run a command of the environment, `turnlog up` say

What it makes: `.venv` (this project with its server and development parts), and for the tests `.venv-clients` (the
public clients of the protocol, which need older libraries). Both are reused until what they are made of changes.
It has to start on Pythons that are too old for the project, to say so: no syntax here is newer than 3.7.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

OLDEST = (3, 11)
NEWEST = (3, 14)
ROOT = Path(__file__).resolve().parent
CLIENTS = ("converger-agent==0.1.1", "converger==0.1.1")
CHECKS = (
    ("format", ("ruff", "format", "--check", ".")),
    ("lint", ("ruff", "check", ".")),
    ("types", ("mypy",)),
    ("layers", ("lint-imports",)),
    ("schemas", ("turnlog", "schema", "check")),
)
# Two files at a time: the tests on real servers mostly wait for something else than a processor. A file stays together,
# in one process with one set of servers.
PYTEST = ("pytest", "-n", "2", "--dist", "loadfile", "--durations=10")


class Stop(Exception):
    """Something that the reader has to put right; the message says what and how."""


def main(arguments: list[str]) -> int:
    """Run one command; the exit status is that of what it ran."""
    name, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    try:
        if name == "test" and not rest:
            return check()
        if name == "demo":
            become(environment(), ["turnlog", "demo", *rest])
        if name == "test":
            become(environment(), ["pytest", *rest], clients())
        if name == "run" and rest:
            become(environment(), rest)
    except Stop as stop:
        print(f"dev.py: {stop}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    helped = name in {"-h", "--help"}
    if name and not helped:
        print(f"dev.py: {'which command to run?' if name == 'run' else f'no such command: {name}'}\n", file=sys.stderr)
    print(__doc__, file=sys.stdout if helped else sys.stderr)
    return 0 if helped else 2


def check() -> int:
    """Every check of the project, quick ones first; all of them run, the tests last."""
    programs, variables = environment(), clients()
    failed = []
    for name, command in CHECKS:
        say(f"{name}: {' '.join(command)}")
        if run(programs, list(command), variables):
            failed.append(name)
    if failed:
        say(f"failed: {', '.join(failed)}; the tests follow all the same")
    say(f"tests: {' '.join(PYTEST)}")
    status = run(programs, list(PYTEST), variables)
    return status or (1 if failed else 0)


def environment() -> Path:
    """The folder of programs of `.venv`, which has this project in it as an editable install."""
    stamp = hashlib.sha256((ROOT / "pyproject.toml").read_bytes())
    return virtual_environment(ROOT / ".venv", ["--editable", f"{ROOT}[server,dev]"], stamp.hexdigest())


def clients() -> dict[str, str]:
    """The variables that tell the tests where the public clients are."""
    programs = virtual_environment(ROOT / ".venv-clients", list(CLIENTS), " ".join(CLIENTS))
    return {"TURNLOG_CLIENTS_PYTHON": str(programs / "python")}


def virtual_environment(folder: Path, requirements: list[str], stamp: str) -> Path:
    """The programs of a virtual environment with `requirements`, made anew when `stamp` or the interpreter changed."""
    interpreter = python()
    marker = folder / "turnlog-stamp"
    with Path(f"{folder}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two first runs at once must not install into each other's folder
        if not marker.is_file() or marker.read_text() != f"{interpreter} {stamp}":
            make(folder, interpreter, requirements)
            marker.write_text(f"{interpreter} {stamp}")
    return folder / "bin"


def make(folder: Path, interpreter: str, requirements: list[str]) -> None:
    """Make a virtual environment in `folder`, in place of what is there."""
    say(f"making {folder.name} (a minute, once)")
    started = time.monotonic()
    if folder.exists():
        shutil.rmtree(folder)
    made = subprocess.run([interpreter, "-m", "venv", str(folder)], capture_output=True, text=True, check=False)
    if made.returncode:
        raise Stop(
            f"`{interpreter} -m venv` failed:\n{made.stdout}{made.stderr}\n"
            "On Debian and Ubuntu the modules venv and pip are packages of their own: apt-get install python3-venv"
        )
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if subprocess.run([*pip, *requirements], cwd=ROOT, check=False).returncode:
        raise Stop(f"pip could not install into {folder.name} (its message is above): it must reach a package index")
    say(f"{folder.name} is ready ({time.monotonic() - started:.0f} s)")


def python() -> str:
    """An interpreter of a version that this project supports: this one, or another on PATH."""
    if OLDEST <= sys.version_info[:2] <= NEWEST:
        # The interpreter that a virtual environment was made of: the new one must not depend on that environment.
        return str(Path(getattr(sys, "_base_executable", sys.executable)))
    for minor in range(NEWEST[1], OLDEST[1] - 1, -1):
        found = shutil.which(f"python3.{minor}")
        if found and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0:
            return found
    raise Stop(
        f"this needs Python {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}, and this is {sys.version.split()[0]}; "
        "no other was found as python3.11 … python3.14 on PATH: install one and start again"
    )


def program_of(programs: Path, name: str) -> str:
    """The path of a program of a virtual environment."""
    if not (programs / name).exists():
        raise Stop(f"{name} is not among the programs of {programs}")
    return str(programs / name)


def variables_of(programs: Path, more: dict[str, str] | None) -> dict[str, str]:
    """The environment of a program: only this virtual environment counts, whatever is active around it."""
    kept = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME"}}
    path = f"{programs}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return {**kept, **(more or {}), "PATH": path, "VIRTUAL_ENV": str(programs.parent)}


def run(programs: Path, command: list[str], variables: dict[str, str] | None = None) -> int:
    """Run a program of a virtual environment at the project's root; its exit status."""
    line = [program_of(programs, command[0]), *command[1:]]
    return subprocess.run(line, cwd=ROOT, env=variables_of(programs, variables), check=False).returncode


def become(programs: Path, command: list[str], variables: dict[str, str] | None = None) -> NoReturn:
    """Become a program of a virtual environment: signals reach it, and its exit status is this one's."""
    program = program_of(programs, command[0])
    os.chdir(ROOT)
    os.execve(program, [program, *command[1:]], variables_of(programs, variables))


def say(line: str) -> None:
    """A line about what happens, apart from the output of what runs."""
    print(f"── {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
