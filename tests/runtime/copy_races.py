"""Which copies of a program are racy: found by running it in many orders and watching accesses.

A copy and another piece of work that touch one buffer, at least one of them writing, race if and only
if two orders made their accesses in two orders: then the bytes that the later one finds differ. Bytes
are told apart by who wrote them, so a copy of equal bytes counts as well. Two accesses inside one replay
of a graph are left out: what a graph orders inside is not in a trace.
"""

import random
from typing import NamedTuple

from hip_machine import Entry, Machine
from oracle import _Schedule
from programs import Capture, Copy, CopyAsync, EndCapture, Launch, Program, Replay

SCHEDULES = 100


class Site(NamedTuple):
    """Where a copy is made: its instruction, or the replay's and the two buffers for one in a graph."""

    instruction: int
    destination: int
    source: int


class _Access(NamedTuple):
    instruction: int
    replay: int
    buffer: int
    writes: bool


class _Watched(Machine):
    """A machine that keeps the order of accesses."""

    def __init__(self, program: Program) -> None:
        super().__init__(program, lambda read, value: None)
        self.accesses: list[_Access] = []

    def _look(self, entry: Entry, buffer: int) -> int:
        self.accesses.append(_Access(entry.instruction, entry.replay, buffer, False))
        return super()._look(entry, buffer)

    def _end(self, lane: int, entry: Entry) -> None:
        super()._end(lane, entry)
        work = entry.work
        written = work.writes if isinstance(work, Launch) else ()
        if isinstance(work, Copy | CopyAsync):
            written = (work.destination,)
        for buffer in written:
            self.accesses.append(_Access(entry.instruction, entry.replay, buffer, True))


def all_copies(program: Program) -> set[Site]:
    """Every copy that runs."""
    return {site for site in _sites(program).values() if site}


def racy_copies(program: Program, schedules: int = SCHEDULES, seed: int = 0) -> set[Site]:
    """The copies that race with work outside their own replay; more schedules only add some."""
    graph_of = _graphs(program)
    sites = _sites(program)
    first: dict[tuple[_Access, _Access], bool] = {}
    racy: set[Site] = set()
    copies = all_copies(program)
    steps = 1
    for number in range(schedules):
        if racy == copies:
            break
        machine = _Watched(program)
        schedule = _Schedule(random.Random(f"{seed} {number}"), program, steps)
        while actors := machine.movable():
            actor = schedule.pick(machine, actors)
            machine.move(actor, schedule.at_end(machine.reads_at(actor)))
        steps = schedule.step
        places = {access: place for place, access in enumerate(machine.accesses)}
        for one, other in _conflicts(list(places), sites, graph_of):
            order = places[one] < places[other]
            if first.setdefault((one, other), order) != order:
                racy |= {sites[a.instruction, a.replay] for a in (one, other)} - {None}
    return racy


def _conflicts(accesses, sites, graph_of):
    accesses = sorted(accesses)
    for place, one in enumerate(accesses):
        for other in accesses[place + 1 :]:
            if one.buffer != other.buffer or not (one.writes or other.writes):
                continue
            same = one.instruction == other.instruction
            graph = graph_of[one.instruction]
            inside = graph is not None and graph == graph_of[other.instruction]
            if (same or inside) and one.replay == other.replay:
                continue
            if sites[one.instruction, one.replay] or sites[other.instruction, other.replay]:
                yield one, other


def _graphs(program: Program) -> list[int | None]:
    graphs, graph = [], None
    for each in program.instructions:
        graph = each.graph if isinstance(each, Capture) else graph
        graphs.append(graph)
        graph = None if isinstance(each, EndCapture) else graph
    return graphs


def _sites(program: Program) -> dict[tuple[int, int], Site | None]:
    """By instruction and replay: the copy it is, None if it is none."""
    replays: dict[int, list[int]] = {}
    for number, each in enumerate(program.instructions):
        if isinstance(each, Replay):
            replays.setdefault(each.graph, []).append(number)
    sites: dict[tuple[int, int], Site | None] = {}
    for number, (each, graph) in enumerate(
        zip(program.instructions, _graphs(program), strict=True)
    ):
        runs = [number] if graph is None else replays.get(graph, [])
        is_copy = isinstance(each, Copy | CopyAsync)
        for replay, run in enumerate(runs):
            sites[number, replay] = Site(run, each.destination, each.source) if is_copy else None
    return sites
