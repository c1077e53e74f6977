"""`tracekit capture`: runs a server under a profiler and leaves one run directory."""

import os
import shlex
import shutil
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tracekit.cli import (
    ALLOCATOR,
    Command,
    progress_bar,
    read_paths,
    say,
    say_losses,
    stages_shown,
)
from tracekit.errors import BadInput, TracekitError

if TYPE_CHECKING:
    from tracekit.capture.captured import Captured
    from tracekit.capture.wanted import Wanted

_PATH = click.Path(path_type=Path)

_HELP = """Launch a server, profile it under load, stop it, and read its traces.

CMD is any command; what it starts is under control too, and nothing of it is left running.
Ctrl-C once stops it in good order and keeps what was captured; twice kills it.

\b
  tracekit capture -o runs/base -- python -m sglang.launch_server --model-path M
  tracekit capture -o runs/try --load load.toml --profiler rocprofv3 -- vllm serve M
  tracekit capture -o runs/job --window run --no-load -- python train.py
"""


@click.command("capture", help=_HELP)
@click.argument("command", metavar="-- CMD…", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("-o", "output", metavar="RUN", required=True, type=_PATH, help="Directory to make.")
@click.option(
    "--profiler",
    default="auto",
    metavar="NAME|auto",
    show_default=True,
    help="What records (tracekit list profilers).",
)
@click.option(
    "--profiler-option",
    "profiler_options",
    metavar="NAME=VALUE",
    multiple=True,
    help="For the profiler; may be given several times.",
)
@click.option("--ready-url", metavar="URL", help="Ready when it answers with a status below 400.")
@click.option("--ready-log", metavar="REGEX", help="Ready when the server prints such a line.")
@click.option("--ready-cmd", metavar="CMD", help="Ready when this shell command returns 0.")
@click.option(
    "--ready-timeout",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=1800.0,
    show_default=True,
    help="Give the server up after this time. Without a --ready-… option each port on which the "
    "command's processes listen is asked for /health, then /v1/models.",
)
@click.option(
    "--load", "load_path", metavar="FILE", type=_PATH, help="Load to drive, as TOML (docs/load.md)."
)
@click.option(
    "--load-cmd",
    metavar="CMD",
    help="Shell command that drives the load instead, once a phase; TRACEKIT_URL says where the "
    "server answers, TRACEKIT_PHASE which phase it is.",
)
@click.option("--no-load", is_flag=True, help="Drive none: until --duration, or the command ends.")
@click.option(
    "--warm-up",
    metavar="N",
    type=click.IntRange(min=0),
    help="Requests of the built-in load before anything is measured; 0 is none.",
)
@click.option(
    "--duration",
    metavar="SECONDS",
    type=click.FloatRange(min=0, min_open=True),
    help="End of the window without a load, and of --load-cmd.",
)
@click.option(
    "--window",
    type=click.Choice(["load", "run"]),
    default="load",
    show_default=True,
    help="Profile while load is driven, or the whole run.",
)
@click.option(
    "--no-untraced",
    is_flag=True,
    help="Do not drive the load once before the window opens, to tell what profiling costs.",
)
@click.option(
    "--hook",
    "hooks",
    metavar="NAME",
    multiple=True,
    help="Instead of the default hooks (tracekit list hooks); may be given several times.",
)
@click.option("--no-hooks", is_flag=True, help="No hooks in the server's processes.")
@click.option(
    "--patch",
    "patches",
    metavar="NAME",
    multiple=True,
    help="Fix to apply to the server (tracekit list patches); may be given several times.",
)
@click.option("--hook-copies", is_flag=True, help="Hooks record tensor copies with addresses.")
@click.option("--keep-raw", is_flag=True, help="Keep the profiler's files after they were read.")
@click.option(
    "--probe",
    metavar="FILE",
    type=_PATH,
    help="What `python -m instrumented_runtime.probe --json` says of this machine, to keep.",
)
@click.option(
    "--grace",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    help="How long the server's processes may take to end and to write their traces, instead of "
    "what its kind is known to need (docs/capture.md).",
)
@click.option(
    "--env",
    "variables",
    metavar="NAME=VALUE",
    multiple=True,
    help="Variable of the server's environment; may be given several times.",
)
@click.option("--force", is_flag=True, help="Replace RUN if it is an earlier run.")
def _capture(**options: Any) -> None:  # noqa: ANN401  click passes every option by name
    """Run a capture and read what it left."""
    from tracekit.capture.captured import exit_code
    from tracekit.capture.lifecycle import capture
    from tracekit.capture.told import without_secrets

    given = (*options["command"], *options["variables"])
    given += tuple(options[name] for name in ("load_cmd", "ready_cmd", "ready_url"))
    with without_secrets(given, os.environ) as redactor, stages_shown() as observer:
        wanted = _wanted(options)
        captured = capture(wanted, observer)
    if captured.problem is not None:
        captured.problem.args = (redactor.known(str(captured.problem)),)
    with closing(captured.run):  # no other capture takes it while it is read
        has_traces = _has_traces(captured.run.raw)
        can_read = has_traces and not captured.is_cut
        is_read = can_read and _ingest(captured, keep_raw=options["keep_raw"])
        _conclude(captured, wanted.directory, is_read=is_read, has_traces=has_traces)
    code = exit_code(captured)
    click.get_current_context().exit(code if code or is_read else TracekitError.exit_code)


def _has_traces(raw: Path) -> bool:
    """Whether there is a file to read; what a profiler hides beside them is its own."""
    paths = (path.relative_to(raw) for path in raw.rglob("*") if path.is_file())
    return any(not any(part.startswith(".") for part in path.parts) for path in paths)


def _is_trace(raw: Path) -> bool:
    """Whether some format claims a file; that it reads is not sure."""
    from tracekit.formats import identify

    for path in filter(Path.is_file, raw.rglob("*")):
        with suppress(TracekitError):
            identify(path)
            return True
    return False


def _wanted(options: dict[str, Any]) -> "Wanted":
    import msgspec

    from tracekit.capture.load.file import Load, read_load
    from tracekit.capture.readiness import Readiness
    from tracekit.capture.run_directory import check
    from tracekit.capture.wanted import Wanted

    check(options["output"], force=options["force"])
    if options["hooks"] and options["no_hooks"]:
        raise BadInput("--no-hooks", "was given beside --hook", "Leave one of them out")
    load = None if options["load_path"] is None else read_load(options["load_path"])
    if (warm_up := options["warm_up"]) is not None:
        try:
            load = msgspec.structs.replace(load or Load(), warm_up=warm_up)
        except ValueError as error:
            raise BadInput("--warm-up", str(error), "Warm up with fewer requests") from error
    hooks = options["hooks"] or None
    environment = {name: value for name, value in os.environ.items() if (name, value) != ALLOCATOR}
    return Wanted(
        command=options["command"],
        directory=options["output"],
        environment=environment | _pairs("--env", options["variables"]),
        profiler=options["profiler"],
        profiler_options=_pairs("--profiler-option", options["profiler_options"]),
        readiness=Readiness(
            options["ready_url"],
            options["ready_log"],
            options["ready_cmd"],
            options["ready_timeout"],
        ),
        load=load,
        load_command=options["load_cmd"],
        has_load=not options["no_load"],
        duration_s=options["duration"],
        has_window=options["window"] == "load",
        has_untraced=not options["no_untraced"],
        hooks=() if options["no_hooks"] else hooks,
        patches=options["patches"],
        has_copies=options["hook_copies"],
        probe=options["probe"],
        grace_s=options["grace"],
        force=options["force"],
    )


def _pairs(option: str, texts: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise BadInput(option, "wants NAME=VALUE", f"Write {option} NAME=VALUE")
        pairs[name] = value
    return pairs


def _ingest(captured: "Captured", *, keep_raw: bool) -> bool:
    """Read the traces into the run; where that fails they stay, and it is said why."""
    from dataclasses import replace

    from tracekit.formats.store import add_run
    from tracekit.pipeline import with_results
    from tracekit.trace import CycleTimes

    run = captured.run
    try:
        with progress_bar() as progress:
            trace = read_paths([run.raw], progress)
            traced, untraced = captured.traced_cycle_ns, captured.untraced_cycle_ns
            if traced and untraced:
                trace = replace(trace, cycle_times=CycleTimes(traced, untraced))
            add_run(with_results(trace, progress), run.path)
    except TracekitError as error:
        say(f"The traces are not read into the run: {error}")
        return False
    except KeyboardInterrupt:
        say(f"Interrupted: the traces stay in {run.raw}, `tracekit report` reads them there")
        raise
    say_losses(trace)
    if not keep_raw:
        shutil.rmtree(run.raw, ignore_errors=True)
    return True


def _conclude(captured: "Captured", directory: Path, *, is_read: bool, has_traces: bool) -> None:
    """Say what went wrong, what is there, and what to do with it."""
    if captured.problem is not None:
        say(f"tracekit: {captured.problem}")
        _say_lines("load.log", getattr(captured.problem, "last_lines", ()))
        _say_lines("server.log", captured.last_lines)
    if is_read:
        say(f"Wrote {directory}")
        say(f"Next: tracekit report {shlex.quote(str(directory))}")
    elif has_traces:
        say(f"Kept the profiler's files in {directory / 'raw'}")
        if captured.is_cut and _is_trace(captured.run.raw):  # else reading it has failed
            say(f"Next: tracekit report {shlex.quote(str(directory))}")
    else:
        if captured.problem is None and captured.outcome == "complete":
            say(f"tracekit: {directory}: no trace was written. See the notes above and server.log")
        say(f"Kept logs and records in {directory}; no trace was written")


def _say_lines(name: str, lines: Sequence[str]) -> None:
    from tracekit.capture.told import printable

    if lines:
        say("\n  ".join((f"Last lines of {name}:", *map(printable, lines))))


COMMAND = Command("capture", _capture)
