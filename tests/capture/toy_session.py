"""A profiler whose traces are those that `toy_tree.py` really writes."""

import dataclasses
import sys
from pathlib import Path

from tracekit.capture.profilers import Profiler

TOY = [sys.executable, "-I", "-S", str(Path(__file__).with_name("toy_tree.py"))]


class ToySession:
    """Says what lies in the folder; notes when its window opened and closed."""

    hooks = ()
    records_instead = None
    needs_http = False

    def __init__(self, asked):
        self.environment = {"TOY_PROFILED": "1"}
        self.command = asked.command
        self.raw = asked.raw
        self.said = []

    def open_window(self, server):
        self.said.append(("open", server.base_url))

    def close_window(self, server):
        self.said.append(("close", server.base_url))

    def written(self):
        found = {}
        for path in self.raw.glob("*.trace.json"):
            found[int(path.name.split(".")[0])] = (path,)
        return found

    def has_begun(self):
        return {int(path.stem) for path in self.raw.glob("*.begun")}

    def rescue(self):
        return []


@dataclasses.dataclass
class RawOnly:
    """What `ToySession` needs of what is asked, where there is no capture around it."""

    raw: Path
    command: tuple = ()


PROFILER = Profiler("toy", "Of tests.", lambda asked: 0, "off", ToySession)
