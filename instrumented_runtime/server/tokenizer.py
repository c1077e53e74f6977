"""A toy tokenizer: a word is a token. It has no meaning, as the model has none."""

import re
from collections.abc import Iterable, Mapping, Sequence
from zlib import crc32

from instrumented_runtime.model import VOCABULARY

_OWN_WORD = re.compile(r"w(0|[1-9][0-9]{0,2})")
# A chat has to begin with something, even an empty one.
_BEGIN = "<begin>"


def tokens_of(text: str) -> tuple[int, ...]:
    """Return one token per word between white space.

    `w0` to `w511` are what the tokens of answers are written as, and those tokens again; any other
    word is a token by its hash, so that equal words are equal tokens.
    """
    return tuple(_token(word) for word in text.split())


def tokens_of_chat(messages: Iterable[tuple[str, str]]) -> tuple[int, ...]:
    """Return the tokens of a chat of (role, text): who speaks and what, and who is to answer."""
    words = [_BEGIN]
    for role, text in messages:
        words += [f"<{role}>", *text.split()]
    return tuple(map(_token, [*words, "<assistant>"]))


def text_of(tokens: Sequence[int], *, is_first: bool) -> str:
    """Return the words of an answer's tokens; before each but the answer's first is a space."""
    text = "".join(f" w{token}" for token in tokens)
    return text[1:] if is_first else text


def _token(word: str) -> int:
    own = _OWN_WORD.fullmatch(word)
    if own and int(own[1]) < VOCABULARY:
        return int(own[1])
    return crc32(word.encode(errors="replace")) % VOCABULARY


def said_in(content: object) -> str:
    """Return the text of a chat message's content, which may come in parts.

    Raises:
        ValueError: It is no text.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = [
            part["text"]
            for part in content
            if isinstance(part, Mapping)
            and part.get("type") == "text"
            and isinstance(part.get("text"), str)
        ]
        if len(texts) == len(content):
            return "\n".join(texts)
    raise ValueError("messages: content is not allowed; give text, or a list of parts of text")
