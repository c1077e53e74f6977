"""Which requests a load sends: lengths, contents, arrivals, all from its seed."""

import random
from dataclasses import dataclass

from tracekit.capture.load.file import Load, bounds
from tracekit.errors import BadInput

# Common enough to be one token each, with the space before it, in most vocabularies.
_TEXT = (
    "time year people way day man thing woman life child world school state family student group "
    "country problem hand part place case week company system program question work government "
    "number night point home water room mother area money story fact month lot right study book "
    "eye job word business issue side kind head house service friend father power hour game line "
    "end member law car city community name president team minute idea body information back "
    "parent face others level office door health person art war history party result change "
    "morning reason research girl guy moment air teacher force education foot boy age policy music "
    "market sense nation plan college interest death experience effect use class control field "
    "development role effort rate heart drug show leader light voice wife police mind price "
    "report decision son view relationship town road arm difference value building action season "
    "society tax director position player record paper space ground form event official matter"
)
_WORDS = tuple(_TEXT.split())
_ATTEMPTS = 100


@dataclass(frozen=True, slots=True)
class Planned:
    """One request before it is sent.

    Attributes:
        rid: Unique within the phase; sorts as requests are numbered.
        burst: Burst it belongs to.
        prompt: Words, or token numbers.
        prompt_tokens: Length drawn for it.
        output_tokens: Limit drawn for it.
        due_after_ns: Arrival, counted from the start of the burst; 0 in a closed loop.
    """

    rid: str
    burst: int
    prompt: str | list[int]
    prompt_tokens: int
    output_tokens: int
    due_after_ns: int


def planned(load: Load, phase: str, contents: str = "") -> list[list[Planned]]:
    """Return the requests of a phase, by burst; no two prompts are the same.

    Lengths and arrivals depend on the seed alone, so that two phases carry the same load.

    Args:
        load: What to send.
        phase: Name for the requests; `warm_up` is one burst of `load.warm_up` requests.
        contents: Prompts of different `contents` differ, for a server whose cache stays warm.

    Raises:
        BadInput: Prompts are so short that they cannot all differ.
    """
    is_warm_up = phase == "warm_up"
    sizes = [load.warm_up] if is_warm_up else [load.requests] * load.bursts
    shapes = random.Random(f"shapes {load.seed} {is_warm_up}")
    prompts = _Prompts(load, random.Random(f"contents {load.seed} {is_warm_up} {contents}"))
    bursts = []
    for burst, size in enumerate(sizes):
        requests: list[Planned] = []
        due_after_ns = 0
        for number in range(size):
            prompt_tokens = shapes.randint(*bounds(load.prompt_tokens))
            output_tokens = shapes.randint(*bounds(load.output_tokens))
            if load.rate_per_s is not None and not is_warm_up:
                due_after_ns += round(shapes.expovariate(load.rate_per_s) * 1e9)
            prompt = prompts.of(prompt_tokens)
            rid = f"{phase}-{burst:03}-{number:05}"
            requests.append(Planned(rid, burst, prompt, prompt_tokens, output_tokens, due_after_ns))
        bursts.append(requests)
    return bursts


class _Prompts:
    """Draws prompts of given lengths that all differ after the prefix they share."""

    def __init__(self, load: Load, draw: random.Random) -> None:
        self._load = load
        self._draw = draw
        self._seen: set[tuple[str | int, ...]] = set()
        self._shared = self._tokens(load.shared_prefix_tokens)

    def of(self, length: int) -> str | list[int]:
        for _ in range(_ATTEMPTS):
            own = self._tokens(length - len(self._shared))
            if own not in self._seen:
                self._seen.add(own)
                return self._joined((*self._shared, *own))
        raise BadInput(
            f"prompt_tokens = {length}",
            "is too short for so many prompts that all differ",
            "Make prompts longer, share less of them, or send fewer",
        )

    def _tokens(self, count: int) -> tuple[str | int, ...]:
        if self._load.prompts == "words":
            return tuple(self._draw.choices(_WORDS, k=count))
        low, high = self._load.token_range
        return tuple(self._draw.randrange(low, high) for _ in range(count))

    def _joined(self, tokens: tuple[str | int, ...]) -> str | list[int]:
        if self._load.prompts == "words":
            return " ".join(map(str, tokens))
        return [int(token) for token in tokens]
