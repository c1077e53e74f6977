"""The run directory of a capture, and what is in it before and after its traces are ingested."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tracekit.capture.hold import Hold, in_use, is_taken
from tracekit.errors import BadInput, OutputExists, TracekitError, os_problem

_CAPTURE = "capture.json"
_MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Names of what a capture writes.

    Attributes:
        path: Absolute, of the directory.
        hold: Keeps other captures out of it; None if it is not one's own.
    """

    path: Path
    hold: Hold | None = field(default=None, repr=False, compare=False)

    def close(self) -> None:
        """Let other captures have it."""
        if self.hold is not None:
            self.hold.release()

    @property
    def raw(self) -> Path:
        """Folder of the profiler's files."""
        return self.path / "raw"

    @property
    def hooks(self) -> Path:
        """Folder where hooks and capture meet."""
        return self.path / "hooks"

    @property
    def server_pid(self) -> Path:
        """Number of the launched process and its group, while they run."""
        return self.path / "server.pid"

    @property
    def server_log(self) -> Path:
        """What the server printed, redacted."""
        return self.path / "server.log"

    @property
    def load_log(self) -> Path:
        """What the load command printed, redacted."""
        return self.path / "load.log"

    @property
    def capture(self) -> Path:
        """What ran."""
        return self.path / _CAPTURE

    @property
    def client(self) -> Path:
        """What the load's clients saw, by phase."""
        return self.path / "client.json"

    @property
    def requests(self) -> Path:
        """What became of each request."""
        return self.path / "requests.parquet"


@contextmanager
def claimed(path: Path, *, force: bool) -> Iterator[RunDirectory]:
    """Make a run directory; if the context fails it is gone again, and what it replaced is back.

    Raises:
        OutputExists: Something is there and `force` is not given.
        TracekitError: It is something else than a run or an empty folder, which is never replaced;
            another capture is writing it; or the directory cannot be made.
    """
    target = path.absolute()
    check(target, force=force)
    aside = target.with_name(f".{target.name}.replaced-{os.getpid()}")
    # Made and held beside its place: whoever finds it there finds it held.
    made = target.with_name(f".{target.name}.new-{os.getpid()}")
    try:
        before = Hold.on(target, path) if target.exists() else None
        (made / "raw").mkdir(parents=True)
        hold = Hold.on(made, path)
        if before is not None:
            target.rename(aside)
        made.rename(target)
    except OSError as error:
        shutil.rmtree(made, ignore_errors=True)
        if is_taken(error):
            raise in_use(path) from error
        _restore(aside, target)
        problem = os_problem(error)
        raise TracekitError(path, f"cannot be made: {problem}", "Choose another place") from error
    try:
        yield RunDirectory(target, hold)
    except BaseException:
        hold.release()
        shutil.rmtree(target, ignore_errors=True)
        _restore(aside, target)
        raise
    finally:
        if before is not None:
            before.release()
    shutil.rmtree(aside, ignore_errors=True)


def check(path: Path, *, force: bool) -> None:
    """Refuse a run directory before anything is launched; see `claimed`.

    One that is held comes first: until its record is there, it looks like no run.
    """
    whole = str(path.absolute())
    try:
        whole.encode()
    except UnicodeEncodeError as error:
        shown = whole.encode(errors="backslashreplace").decode()
        raise BadInput(shown, "is no UTF-8", "Choose a name that every reader can say") from error
    if not (path.exists() or path.is_symlink()):
        return
    if not force:
        raise OutputExists(path)
    if path.is_dir() and not path.is_symlink():
        with suppress(OSError):
            Hold.on(path, path).release()
    if not _is_replaceable(path):
        remedy = "Remove it yourself, or choose another"
        raise TracekitError(path, "exists and is not a tracekit run", remedy)


def _is_replaceable(path: Path) -> bool:
    if not path.is_dir() or path.is_symlink():
        return False
    marks = {_CAPTURE: b'"run_id"', _MANIFEST: b'"tracekit_run"'}
    return not any(path.iterdir()) or any(
        (path / name).is_file() and mark in (path / name).read_bytes()[:200]
        for name, mark in marks.items()
    )


def _restore(aside: Path, target: Path) -> None:
    if aside.exists():
        aside.rename(target)
