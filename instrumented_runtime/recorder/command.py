"""`python -m instrumented_runtime.recorder finalize DIR`: databases of spools left behind."""

import argparse
import sys
from pathlib import Path

from instrumented_runtime.recorder.finalize import finalize_spool
from instrumented_runtime.recorder.spool import RecorderError


def main(arguments: list[str] | None = None) -> int:
    """Finalise every spool of a folder; returns 2 if one, or the folder, could not be."""
    parser = argparse.ArgumentParser(prog="python -m instrumented_runtime.recorder")
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser(
        "finalize", help="make the databases of recordings whose process was killed"
    )
    command.add_argument("directory", type=Path, help="where they were recorded")
    directory: Path = parser.parse_args(arguments).directory
    spools = sorted(directory.glob("virtual_*.spool"))
    if not spools:
        _say(f"{directory}: holds no virtual_*.spool; name the folder of a recording cut short")
        return 2
    status = 0
    for spool in spools:
        try:
            _say(finalize_spool(spool).sentence())
        except RecorderError as error:
            _say(str(error))
            status = 2
        except OSError as error:
            _say(f"{spool}: {error.strerror or error}")
            status = 2
    return status


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
