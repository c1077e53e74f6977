"""Which reads of a program can see different bytes: found by running it in many orders.

A read is *racy* if and only if two orders showed it two values. Nothing here reasons about what is
ordered with what: `hip_machine` offers the actions that HIP allows now, and a schedule picks one.

A uniform choice at each step is a poor schedule: for one stream to be far behind the others it has to
lose dozens of tosses in a row. So a schedule gives each actor (the host, each stream, each branch of a
replayed graph) a random priority, always moves the first that can move, and draws a few priorities anew
at random steps [Burckhardt et al., "A randomized scheduler with probabilistic guarantees of finding
bugs", ASPLOS 2010]. It also holds some actions back until only held ones can move, and takes those in
random order: all that touch one buffer, so that its accesses come in an order of their own, and a few
others.

A read that is called racy is. One that is not may be: of 4540 racy reads, in 1157 programs of at most 15
instructions of which all orders were tried, 50 schedules missed 43 (58 with another seed), 100 missed 16,
200 missed 7 and 400 missed 5. Most of these need one access exactly between two neighbours of a long row.
"""

import random
from itertools import product

from hip_machine import Machine
from programs import Program, Read

Observations = dict[Read, set[int]]

SCHEDULES = 50
MOST_CHANGES, MOST_HELD = 3, 3
NOT_HELD = 1.0


def observations(program: Program, schedules: int = SCHEDULES, seed: int = 0) -> Observations:
    """Return the values each read saw in random schedules; the same for the same seed.

    More schedules only ever add values.
    """
    seen: Observations = {}
    steps = _run(program, _Schedule(random.Random(f"{seed} first"), program, steps=1), seen)
    for number in range(1, schedules):
        _run(program, _Schedule(random.Random(f"{seed} {number}"), program, steps), seen)
    return seen


def every_observation(program: Program, most_states: int = 200_000) -> Observations:
    """Return the values each read can see in any schedule, by trying all; for tiny programs.

    Raises:
        ValueError: The program has more than `most_states` states.
    """
    seen: Observations = {}
    start = Machine(program, _recorder(seen))
    known, ahead = {start.state()}, [start]
    while ahead:
        machine = ahead.pop()
        for actor in machine.movable():
            for at_end in product((False, True), repeat=machine.reads_at(actor)):
                twin = machine.fork()
                twin.move(actor, at_end)
                if twin.state() not in known:
                    known.add(twin.state())
                    ahead.append(twin)
        if len(known) > most_states:
            raise ValueError(f"more than {most_states} states")
    return seen


def racy(seen: Observations) -> set[Read]:
    return {read for read, values in seen.items() if len(values) > 1}


class _Schedule:
    """Picks who moves.

    Args:
        random_: Of this schedule alone.
        program: What it is for.
        steps: About how many moves a run of the program takes.
    """

    def __init__(self, random_: random.Random, program: Program, steps: int) -> None:
        self.random = random_
        self.priorities: dict[int, float] = {}
        self.changes = set(random_.choices(range(steps), k=random_.randint(0, MOST_CHANGES)))
        # A place is met once per run, and a program of n steps has about n places.
        self.held_share = random_.randint(0, MOST_HELD) / steps
        self.contested = random_.randrange(len(program.buffers))
        self.held: dict[tuple[str, int], float] = {}
        self.late_share = random_.choice((0.0, 0.5, 1.0))
        self.step = 0

    def pick(self, machine: Machine, actors: list[int]) -> int:
        self.step += 1
        if self.step in self.changes:
            self.priorities[self.random.choice(actors)] = self.random.random()
        return max(actors, key=lambda actor: self._rank(machine, actor))

    def at_end(self, count: int) -> list[bool]:
        return [self.random.random() < self.late_share for _ in range(count)]

    def _rank(self, machine: Machine, actor: int) -> tuple[float, float]:
        place = machine.position(actor)
        if place not in self.held:
            is_held = (
                self.contested in machine.touches(actor) or self.random.random() < self.held_share
            )
            self.held[place] = self.random.random() if is_held else NOT_HELD
        if actor not in self.priorities:
            self.priorities[actor] = self.random.random()
        return (self.held[place], self.priorities[actor])


def _run(program: Program, schedule: _Schedule, seen: Observations) -> int:
    machine = Machine(program, _recorder(seen))
    while actors := machine.movable():
        actor = schedule.pick(machine, actors)
        machine.move(actor, schedule.at_end(machine.reads_at(actor)))
    return schedule.step


def _recorder(seen: Observations):
    def saw(read: Read, value: int) -> None:
        seen.setdefault(read, set()).add(value)

    return saw
