"""Grammar v1 of the marker text: declared once, written and parsed from the declaration.

`docs/markers.md` is the contract in words. The text is printable ASCII, so that a byte is a
character on every backend.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

PREFIX = "tk1"
MAX_BYTES = 200
MAX_NAME = 64
# All printable ASCII but three: rocprofv3 strips `;`, and in PyTorch's JSON a `"` ends the string
# and a backslash becomes a slash.
_IN_NAMES = r"!#-:<-\[\]-~"
_NOT_IN_NAMES = re.compile(rf"[^{_IN_NAMES}]")
_NOT_IN_TEXT = re.compile(rf"[^ {_IN_NAMES}]")
_IS_TK1 = re.compile(rf"{PREFIX}(?:\s|$)")
_KEY = re.compile(r"[a-z][a-z0-9_]*")

Declared = tuple[tuple[str, int], ...]
Value = int | str | Declared
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    """A kind of value: what it is in words, what it looks like, and both ways between the two."""

    what: str
    pattern: re.Pattern[str]
    value: Callable[[str], T]
    text: Callable[[T], str]


_HEX = r"0x(?:0|[1-9a-f][0-9a-f]{0,15})"


def _accesses(text: str) -> Declared:
    return tuple((mode, int(buffer, 16)) for mode, buffer in re.findall(rf"([rw]):({_HEX})", text))


def _declaration(accesses: Declared) -> str:
    return " ".join(["declares", *(f"{mode}:{buffer:#x}" for mode, buffer in accesses)])


# 18 digits always fit a signed 64-bit integer.
NUMBER = Kind("a decimal number below 10^18", re.compile(r"0|[1-9][0-9]{0,17}"), int, "{:d}".format)
HANDLE = Kind(
    "a lower-case hexadecimal number of 64 bits, 0x…",
    re.compile(_HEX),
    lambda text: int(text, 16),
    "{:#x}".format,
)
NAME = Kind(
    f"a name of 1 to {MAX_NAME} characters", re.compile(rf"[{_IN_NAMES}]{{1,{MAX_NAME}}}"), str, str
)
FLAGS = Kind("blocking, nonblocking or null", re.compile("blocking|nonblocking|null"), str, str)
PLACE = Kind("device, pinned or pageable", re.compile("device|pinned|pageable"), str, str)
MODE = Kind("r or w", re.compile("[rw]"), str, str)
DECLARES = Kind(
    "declares r:0x… w:0x…", re.compile(rf"declares(?: [rw]:{_HEX})*"), _accesses, _declaration
)


@dataclass(frozen=True, slots=True)
class Verb:
    """What a statement of one verb holds.

    Attributes:
        subject: Kind of what it is about, the word after the verb.
        keys: Kind of each value by key, in the order they are written.
        optional: Keys that may be absent.
        bare: The key whose value is written alone, right after the subject.
    """

    subject: Kind[int]
    keys: Mapping[str, Kind[Any]] = field(default_factory=dict)
    optional: frozenset[str] = frozenset()
    bare: str | None = None


VERBS = {
    "stream": Verb(HANDLE, {"flags": FLAGS, "device": NUMBER, "name": NAME}, frozenset({"name"})),
    "step": Verb(
        NUMBER,
        {"kind": NAME, "bs": NUMBER, "tokens": NUMBER, "waiting": NUMBER, "free": NUMBER},
        frozenset({"kind", "bs", "tokens", "waiting", "free"}),
    ),
    "buffer": Verb(
        HANDLE,
        {"addr": HANDLE, "size": NUMBER, "name": NAME, "place": PLACE},
        frozenset({"name", "place"}),
    ),
    "use": Verb(HANDLE, {"mode": MODE, "stream": HANDLE}, frozenset({"stream"}), bare="mode"),
    "graph": Verb(HANDLE, {"declares": DECLARES}, bare="declares"),
    "replay": Verb(HANDLE, {"stream": HANDLE}, frozenset({"stream"})),
    "record": Verb(HANDLE, {"stream": HANDLE}),
    "wait": Verb(HANDLE, {"stream": HANDLE}),
    "sync": Verb(HANDLE),
}


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement.

    Attributes:
        verb: One of `VERBS`.
        subject: What it is about: a handle, or the number of a step.
        values: What it says, by key; an optional key may be absent.
    """

    verb: str
    subject: int
    values: Mapping[str, Value] = field(default_factory=dict)


def clean(name: str) -> str:
    """Return a name as the grammar allows it, cut to `MAX_NAME` characters.

    Every character outside printable ASCII, and every space, `;`, `"` and backslash, becomes one
    `_`. Two names may become one: names are for people, handles tell buffers and streams apart.
    """
    return _NOT_IN_NAMES.sub("_", name[:MAX_NAME])


def write(statement: Statement) -> str:
    """Return the text of a statement.

    Raises:
        ValueError: A value is missing, unknown, or not what its key holds (names are not cleaned
            here), or the text is longer than `MAX_BYTES`.
    """
    verb = _verb(statement.verb)
    values = statement.values
    words = [PREFIX, statement.verb, _spelled(verb.subject, statement.subject, statement.verb)]
    for key, kind in verb.keys.items():
        if key in values:
            text = _spelled(kind, values[key], key)
            words.append(text if key == verb.bare else f"{key}={text}")
        elif key not in verb.optional:
            raise ValueError(f"{statement.verb} {statement.subject}: {key} is missing")
    if not values.keys() <= verb.keys.keys():
        unknown = ", ".join(sorted(values.keys() - verb.keys.keys()))
        raise ValueError(f"{statement.verb} {statement.subject}: no value is called {unknown}")
    text = " ".join(words)
    _check_length(text)
    return text


def parse(text: str) -> Statement | None:
    """Return the statement, or None if the text does not begin with the word `tk1`.

    Keys may come in any order; unknown ones are ignored, so that a later writer may add some.

    Raises:
        ValueError: It begins so and is not grammar v1; the message names what is wrong.
    """
    if not _IS_TK1.match(text):
        return None
    try:
        _check_text(text)
        return _statement(text.split(" ")[1:])
    except ValueError as error:
        raise ValueError(f"{text[:MAX_BYTES]!r}: {error}") from None


def _statement(words: list[str]) -> Statement:
    if "" in words:
        raise ValueError("words are separated by one space, and none ends the text")
    if len(words) < 2:
        raise ValueError("a statement begins with a verb and what it is about")
    name, subject, *rest = words
    verb = _verb(name)
    texts = _texts(verb, rest)
    if missing := [key for key in verb.keys if key not in verb.optional and key not in texts]:
        raise ValueError(f"{', '.join(missing)} is missing")
    values = {key: _read(kind, texts[key], key) for key, kind in verb.keys.items() if key in texts}
    return Statement(name, _read(verb.subject, subject, name), values)


def _texts(verb: Verb, words: list[str]) -> dict[str, str]:
    """Return the values still as text, by key, unknown keys among them."""
    texts = {}
    if verb.bare is not None:
        keyed = next((i for i, word in enumerate(words) if "=" in word), len(words))
        texts[verb.bare] = " ".join(words[:keyed])
        words = words[keyed:]
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not _KEY.fullmatch(key) or key == verb.bare:
            raise ValueError(f"{word!r} is not key=value")
        if key in texts:
            raise ValueError(f"{key} is there twice")
        texts[key] = text
    return texts


def _verb(name: str) -> Verb:
    if name not in VERBS:
        raise ValueError(f"no statement is called {name!r}; there are {', '.join(VERBS)}")
    return VERBS[name]


def _read(kind: Kind[T], text: str, key: str) -> T:
    if not kind.pattern.fullmatch(text):
        raise ValueError(f"{key} {text!r} is not {kind.what}")
    return kind.value(text)


def _spelled(kind: Kind[T], value: T, key: str) -> str:
    text = kind.text(value)
    if not kind.pattern.fullmatch(text):
        raise ValueError(f"{key} {value!r} is not {kind.what}")
    return text


def _check_text(text: str) -> None:
    if bad := _NOT_IN_TEXT.search(text):
        raise ValueError(f"character {bad[0]!r} is not allowed")
    _check_length(text)


def _check_length(text: str) -> None:
    if len(text) > MAX_BYTES:
        raise ValueError(f"{len(text)} bytes are more than {MAX_BYTES}")
