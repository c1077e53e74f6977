"""The room of commands: one module per command, each defining `COMMAND`.

`main` is the only place that turns an error into text and an exit code. What commands share is
here too: reading with progress, and writing a file whole or not at all. Modules of this room import
what is slow inside their functions, so that `tracekit --help` answers at once.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracekit import __version__
from tracekit.errors import BadInput, OutputExists, TracekitError, os_problem
from tracekit.registry import load_room
from tracekit.unheard import stderr_may_break

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from tracekit.capture.stages import Observer
    from tracekit.formats import Progress
    from tracekit.trace import Trace

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_CLOSED_PIPE = 141

# Of polars' allocator (jemalloc), which reads it when polars is loaded. By default a column above
# 8 MiB goes back to the system as soon as it is dropped, and the next one is fetched from there
# page by page, which takes longer than some analyses do.
ALLOCATOR = ("_RJEM_MALLOC_CONF", "oversize_threshold:0,narenas:1,muzzy_decay_ms:10000")

_TOLD_EVERY_S = 10.0

_HELP = """Where does the GPU's time go, and why?

\b
  tracekit report trace.json.gz            read it in the terminal
  tracekit report trace.json.gz -o a.html  or in a browser
  tracekit info trace.json.gz              what the trace holds

Exit codes: 0 done, 1 gate failed, 2 usage or bad input, 3 undecided, 130 interrupted, 141 closed
pipe.
"""


@dataclass(frozen=True, slots=True)
class Command:
    """One command: its name, and what click makes of its function."""

    name: str
    run: click.Command


def program() -> click.Group:
    """Return the command line: a group of every command of the room."""
    commands = load_room(__name__, "COMMAND", Command)
    group = click.Group(
        "tracekit",
        commands={name: command.run for name, command in commands.items()},
        help=_HELP,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    return click.version_option(__version__, prog_name="tracekit")(group)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; nothing a user can cause ends in a traceback.

    click's own `main` is not used: it answers a closed pipe with 1 and an interrupt with a message.
    """
    os.environ.setdefault(*ALLOCATOR)
    # A shell can close our outputs before we start (`>&-`); what is written then goes nowhere.
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115
    with stderr_may_break() as heard:
        code = _run(sys.argv[1:] if arguments is None else arguments)
    return code or heard.exit_code()


def _run(arguments: Sequence[str]) -> int:
    try:
        with program().make_context("tracekit", list(arguments)) as context:
            context.command.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except TracekitError as error:
        say(f"tracekit: {error}")
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes stdout once more at exit, which must not fail again (Python's
        # "Note on SIGPIPE").
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_CLOSED_PIPE
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        problem = os_problem(error).rstrip(".")
        say(f"tracekit: {where}{problem}. Check path and disk")
        return EXIT_USAGE
    return 0


def say(text: str) -> None:
    """Tell the user something on stderr: stdout is for data."""
    click.echo(text, err=True)


def emit(text: str) -> None:
    """Write data to stdout, as UTF-8 wherever it goes."""
    click.echo(text.encode(), nl=False)


def check_output(path: Path, *, force: bool) -> None:
    """Refuse an output path before the long work, not after it.

    Raises:
        OutputExists: Something is there and `force` is not given.
        BadInput: It cannot be written there, or what is there is not a plain file (`/dev/null`).
    """
    if not path.parent.is_dir():
        raise BadInput(path, "its folder does not exist", f"Make it: mkdir -p {path.parent}")
    if path.is_dir() or (path.exists() and not path.is_file()):
        raise BadInput(path, "is not a plain file", "Name a file to write")
    if not force and (path.exists() or path.is_symlink()):
        raise OutputExists(path)


def write_whole(path: Path, write: Callable[[Path], object], *, force: bool) -> None:
    """Write a file whole or not at all: `write` fills a sibling, which then takes the name.

    Raises:
        OutputExists: Something is there and `force` is not given.
        BadInput: It cannot be written.
    """
    check_output(path, force=force)
    # A link keeps pointing where it points: the file behind it is replaced.
    target = path.resolve()
    sibling = target.with_name(f".tracekit-{os.getpid()}.partial")
    try:
        write(sibling)
        check_output(path, force=force)
        sibling.replace(target)
    except OSError as error:
        problem = os_problem(error)
        raise BadInput(path, f"cannot be written: {problem}", "Choose another place") from error
    finally:
        sibling.unlink(missing_ok=True)
    say(f"Wrote {path}")


@contextmanager
def progress_bar() -> Iterator["Progress"]:
    """Draw progress on stderr if it is a terminal; yields what readers and analyses report to."""
    if not sys.stderr.isatty():
        from tracekit.formats import silent

        yield silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def report(done: int, total: int, what: str, /) -> None:
            bar.update(task, completed=done, total=total or None, description=what)

        yield report


@contextmanager
def stages_shown() -> "Iterator[Observer]":
    """Show the stages of a long command on stderr: one that changes on a terminal, else lines."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console

    console = Console(stderr=True)
    screen = _Screen(console)
    with console.status(screen):
        yield screen


class _Lines:
    """Says each stage, and how far it is every 10 s."""

    def __init__(self) -> None:
        self._start_s = self._told_s = time.monotonic()
        self._name = ""

    def stage(self, name: str, /) -> None:
        """Say that a stage begins."""
        self._name = name
        self._say(name)

    def at(self, what: str, /) -> None:
        """Say how far it is, now and then."""
        if time.monotonic() - self._told_s > _TOLD_EVERY_S:
            self._say(f"{self._name}: {what}")

    def note(self, text: str, /) -> None:
        """Say something at once."""
        say(f"note: {text}")

    def _say(self, text: str) -> None:
        self._told_s = time.monotonic()
        say(f"[{self._told_s - self._start_s:7.1f} s] {text}")


class _Screen:
    """Keeps one line with running times up to date, and stages that are over above it."""

    def __init__(self, console: "Console") -> None:
        self._console = console
        self._start_s = self._stage_s = time.monotonic()
        self._name = self._what = ""

    def __rich__(self) -> "Text":
        """Return the line as it is now: drawn again many times a second."""
        from rich.text import Text

        now = time.monotonic()
        elapsed = f"{now - self._stage_s:.0f} s, {now - self._start_s:.0f} s in all"
        shown = ": ".join(filter(None, (self._name, self._what)))
        return Text(f"{shown} ({elapsed})")

    def stage(self, name: str, /) -> None:
        """Leave the stage that is over on the screen with what it took."""
        now = time.monotonic()
        if self._name:
            self._print(f"{self._name:14} {now - self._stage_s:7.1f} s")
        self._name, self._stage_s, self._what = name, now, ""

    def at(self, what: str, /) -> None:
        """Say it in the line."""
        self._what = what

    def note(self, text: str, /) -> None:
        """Put a line above it."""
        self._print(f"note: {text}")

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)


def read_paths(paths: Sequence[Path], progress: "Progress") -> "Trace":
    """Read the paths a command was given as one trace."""
    from tracekit.formats import read_trace

    # polars has installed a handler of its own by now, under which a blocked read starts over: the
    # user's Ctrl-C would wait for the pipe or the network disk.
    signal.siginterrupt(signal.SIGINT, True)
    return read_trace(paths, progress)


def say_losses(trace: "Trace") -> None:
    """Say on stderr what is missing, where the output has no place for it."""
    from tracekit.tables.notes import Severity

    for note in trace.notes:
        if note.severity in {Severity.DATA_LOSS, Severity.ERROR}:
            say(f"{note.severity}: {note.code} ({note.count:,}×): {note.message}")


def width_of_terminal() -> int:
    """Return how many characters fit a line; 100 where no terminal says."""
    import shutil

    return shutil.get_terminal_size((100, 24)).columns
