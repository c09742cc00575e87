"""Where the processes of a bench that ends some of them on purpose write their logs."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Notify = Callable[[str], None]


@contextmanager
def log_folder(notify: Notify) -> Iterator[tuple[Path, Notify]]:
    """A folder for them, and what to tell people of them: that one has ended, without the end of its log, which says
    nothing of a kill. The folder is removed after a bench that came to its end, kept and named after one that did not.
    """
    folder = Path(tempfile.mkdtemp(prefix="turnlog-bench-"))
    try:
        yield folder, lambda message: notify(message.partition("\n")[0])
    except BaseException:
        notify(f"the logs of its processes are kept in {folder}")
        raise
    shutil.rmtree(folder)
