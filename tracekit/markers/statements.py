"""Grammar v1 of marker text, read with string expressions; docs/markers.md is the contract.

Only distinct texts are parsed: a program says the same of the same buffers over and over.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl

MAX_BYTES = 200
# A control character counts as space too: such a text is meant for us, and refused.
_IS_TK1 = r"^tk1(?:[\s\x1c-\x1f]|$)"
_WORD = r"[!#-:<-\[\]-~]"
_WORDS = rf"^tk1(?: {_WORD}+)+$"
_KEYED = r"(?: [a-z][a-z0-9_]*=[^ ]*)*"
_HEX = r"0x(?:0|[1-9a-f][0-9a-f]{0,15})"
_NUMBER = r"(?:0|[1-9][0-9]{0,17})"
_NAME = rf"{_WORD}{{1,64}}"


@dataclass(frozen=True, slots=True)
class _Verb:
    """Patterns of what a statement holds: subject, keys, and the words right after the subject."""

    subject: str = _HEX
    required: Mapping[str, str] = field(default_factory=dict)
    optional: Mapping[str, str] = field(default_factory=dict)
    bare: tuple[str, str] | None = None


_VERBS = {
    "stream": _Verb(
        required={"flags": "blocking|nonblocking|null", "device": _NUMBER},
        optional={"name": _NAME},
    ),
    "step": _Verb(
        _NUMBER,
        optional={"kind": _NAME} | dict.fromkeys(("bs", "tokens", "waiting", "free"), _NUMBER),
    ),
    "buffer": _Verb(
        required={"addr": _HEX, "size": _NUMBER},
        optional={"name": _NAME, "place": "device|pinned|pageable"},
    ),
    "use": _Verb(optional={"stream": _HEX}, bare=("mode", "[rw]")),
    "graph": _Verb(bare=("declares", rf"declares(?: [rw]:{_HEX})*")),
    "replay": _Verb(optional={"stream": _HEX}),
    "record": _Verb(required={"stream": _HEX}),
    "wait": _Verb(required={"stream": _HEX}),
    "sync": _Verb(),
}
_TEXTS = ("mode", "declares", "flags", "name", "place", "stream")
_TEXT = pl.col("text")


def statements(ranges: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Return what the markers of the grammar say, and how many begin like one and are none.

    Costs a look at the first bytes of each text where there is no marker.

    Args:
        ranges: The `ranges` table.

    Returns:
        By start, at one instant in the order of the table: `range_id`, `process_id`, `thread_id`,
        `start_ns`, `end_ns`, `verb`, `subject` and the values, null where not said: `mode`,
        `declares`, `flags`, `name`, `place`, `stream` as text (a number has one spelling only),
        `addr` UInt64, `size` Int64.
    """
    ours = ranges.filter(_TEXT.str.starts_with("tk1")).filter(_TEXT.str.contains(_IS_TK1))
    marked = ours.select("range_id", "process_id", "thread_id", "start_ns", "end_ns", "text")
    parsed = parsed_texts(marked["text"].unique())
    said = marked.join(parsed, on="text", maintain_order="left").drop("text")
    return said.sort("start_ns", maintain_order=True), marked.height - said.height


def parsed_texts(texts: pl.Series) -> pl.DataFrame:
    """Return `text`, `verb`, `subject` and values of each text that is of the grammar."""
    well_formed = texts.to_frame("text").filter(
        (_TEXT.str.len_bytes() <= MAX_BYTES) & _TEXT.str.contains(_WORDS)
    )
    keys = _TEXT.str.extract_all(r" [a-z][a-z0-9_]*=")
    single = well_formed.filter(keys.list.n_unique() == keys.list.len())
    return pl.concat([_of_verb(single, name, verb) for name, verb in _VERBS.items()])


def _of_verb(texts: pl.DataFrame, name: str, verb: _Verb) -> pl.DataFrame:
    bare = rf" ({verb.bare[1]})" if verb.bare else ""
    shape = rf"^tk1 {name} ({verb.subject}){bare}{_KEYED}$"
    is_valid = _TEXT.str.contains(shape)
    if verb.bare:
        is_valid &= ~_TEXT.str.contains(f" {verb.bare[0]}=", literal=True)
    for key, pattern in {**verb.required, **verb.optional}.items():
        fits = _value(key).str.contains(rf"^(?:{pattern})$")
        is_valid &= fits.fill_null(value=key in verb.optional)
    values = {key: _value(key) for key in (*verb.required, *verb.optional)}
    if verb.bare:
        values[verb.bare[0]] = _TEXT.str.extract(shape, 2)
    none = pl.lit(None, pl.String)
    return texts.filter(is_valid).select(
        "text",
        verb=pl.lit(name),
        subject=_TEXT.str.extract(shape, 1),
        **{key: values.get(key, none) for key in _TEXTS},
        addr=handles(values.get("addr", none)),
        size=values.get("size", none).cast(pl.Int64),
    )


def _value(key: str) -> pl.Expr:
    return _TEXT.str.extract(rf" {key}=([^ ]*)")


def handles(texts: pl.Expr) -> pl.Expr:
    """Return `0x…` as UInt64."""
    return texts.str.strip_prefix("0x").str.to_integer(base=16, dtype=pl.UInt64)
