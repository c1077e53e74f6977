"""What the kernels of collectives say about their message, as PyTorch writes it beside them.

PyTorch copies the arguments of `record_param_comms` onto the kernels that its profiler could link
to that operator. `Seq` and `Comms Id` are there in newer versions only.
"""

from typing import Any

import msgspec
import polars as pl

from tracekit.formats.kineto.depth import shallow


class Message(msgspec.Struct, gc=False):
    """The arguments that speak of the message, in the order in which they are packed."""

    collective: Any = msgspec.field(default=None, name="Collective name")
    dtype: Any = None
    in_elements: Any = msgspec.field(default=None, name="In msg nelems")
    out_elements: Any = msgspec.field(default=None, name="Out msg nelems")
    group_size: Any = msgspec.field(default=None, name="Group size")
    group: Any = msgspec.field(default=None, name="Process Group Name")
    group_ranks: Any = msgspec.field(default=None, name="Process Group Ranks")
    communicator: Any = msgspec.field(default=None, name="Comms Id")
    sequence: Any = msgspec.field(default=None, name="Seq")


_NUMBERS = ("in_elements", "out_elements", "group_size", "sequence")
_MESSAGE = msgspec.json.Decoder(Message)


def packed(arguments: bytes) -> str | None:
    """Return what an event's arguments say about a message: a JSON list of texts and nulls.

    One column of text costs the events that have no message nothing.
    """
    try:
        values = msgspec.structs.astuple(_MESSAGE.decode(shallow(arguments)))
    except msgspec.DecodeError:  # a number beyond all bounds
        return None
    texts = [None if value is None else str(value) for value in values]
    return msgspec.json.encode(texts).decode()


def messages_of(ops: pl.DataFrame) -> pl.DataFrame:
    """Return the `messages` table: a row per op that carries a message.

    Args:
        ops: `op_id`, `process_id`, `message` (`packed`).
    """
    carrying = ops.filter(pl.col("message").is_not_null())
    values = carrying["message"].str.json_decode(pl.List(pl.String())).list
    names = Message.__struct_fields__
    return carrying.select("op_id", "process_id").with_columns(
        values.get(place, null_on_oob=True).alias(name).cast(pl.Int64, strict=False)
        if name in _NUMBERS
        else values.get(place, null_on_oob=True).alias(name)
        for place, name in enumerate(names)
    )
