"""Streams of requests of random length."""

import random
from dataclasses import dataclass

from instrumented_runtime.model import VOCABULARY
from instrumented_runtime.request import Request


@dataclass(frozen=True, slots=True)
class RequestStream:
    """Requests of random length, so many at a time.

    Attributes:
        concurrency: A request comes in when one of so many is done.
        prompts: In all.
        seed: Of lengths and tokens.
        prompt_tokens: The longest prompt; lengths are uniform from `least` of it.
        new_tokens: The same of outputs.
        least: As a share.
    """

    concurrency: int
    prompts: int
    seed: int
    prompt_tokens: int = 8192
    new_tokens: int = 1024
    least: float = 0.8

    def requests(self) -> list[Request]:
        """Return all of them; prompts are pieces of one random text, none the start of another."""
        draw = random.Random(self.seed)
        lengths = [
            (self._length(draw, self.prompt_tokens), self._length(draw, self.new_tokens))
            for _ in range(self.prompts)
        ]
        text = tuple(draw.choices(range(VOCABULARY), k=self.prompts + self.prompt_tokens))
        return [
            Request(number, text[number : number + length], new)
            for number, (length, new) in enumerate(lengths)
        ]

    def _length(self, draw: random.Random, most: int) -> int:
        return draw.randint(max(round(self.least * most), 1), most)
