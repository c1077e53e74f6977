"""Texts and events of a capture: what regions, samples, dispatches and copies refer to."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from tracekit.api_calls import call_kinds
from tracekit.formats.rocpd.database import Capture
from tracekit.formats.rocpd.row_index import RowIndex, looked_up
from tracekit.formats.rocpd.stacking import stacked
from tracekit.tables.activity import CALL_KINDS

Step = Callable[[int, str], None]

ORIGINS = pl.Enum(["hip", "hsa", "marker", "operator", "frame", "other"])

# rocprofv3 writes categories in capitals (HIP_RUNTIME_API_EXT, before ROCm 7 without _EXT),
# rocprof-sys in small letters (rocm_hip_api, host). HIP and HSA calls are calls; a call into RCCL,
# MPI or a decoder is host work around them, so it becomes a range.
_ORIGINS_BY_CATEGORY = (
    (r"^(rocm_)?hip_(runtime_|compiler_)?api", "hip"),
    (r"^(rocm_)?hsa_", "hsa"),
    (r"^(rocm_)?marker_|^user$", "marker"),
    (r"^(rocm_)?(rccl|rocdecode|rocjpeg|ompt|openmp|mpi)", "operator"),
    (r"^(host|python|pthread|kokkos)", "frame"),
)
# Where a file has no events, the name is all there is.
_ORIGINS_BY_NAME = (
    (r"^_*hip", "hip"),
    (r"^hsa_", "hsa"),
    (r"^roctx", "marker"),
    (r"^", "operator"),
)


@dataclass(frozen=True)
class Texts:
    """The string table, and what each text is if it names a category or an API call."""

    index: RowIndex
    texts: pl.Series
    names: pl.Series
    kinds: pl.Series
    origins: pl.Series
    name_origins: pl.Series

    @classmethod
    def read(cls, capture: Capture) -> "Texts":
        """Read `rocpd_string`."""
        rows = capture.rows("rocpd_string", ["id", "string"])
        table = pl.DataFrame(rows, schema={"id": pl.Int64, "text": pl.String}, orient="row")
        texts = table["text"]
        # Only API names are classified one by one: a file may hold very many other texts.
        is_api = texts.str.contains(r"^_*hip").fill_null(value=False)
        kinds = call_kinds(texts.set(~is_api, None))
        return cls(
            RowIndex(table["id"]),
            texts,
            texts.cast(pl.Categorical),
            kinds.fill_null("other").cast(pl.Enum(CALL_KINDS)),
            _origins(texts, _ORIGINS_BY_CATEGORY),
            _origins(texts, _ORIGINS_BY_NAME),
        )

    def ids_of(self, capture: Capture, origin: str) -> list[int]:
        """Return the string ids of the categories of one origin."""
        wanted = set(self.texts.filter(self.origins == origin))
        rows = capture.rows("rocpd_string", ["id", "string"])
        return [int(str(key)) for key, text in rows if text in wanted]


@dataclass(frozen=True)
class Events:
    """Stack id and category of each event."""

    index: RowIndex
    stacks: pl.Series
    categories: pl.Series

    def stack_of(self, event_ids: pl.Series) -> pl.Series:
        """Return the stack id (internal correlation id) of each event; 0 means none."""
        return looked_up(self.index, event_ids, self.stacks)

    def category_of(self, event_ids: pl.Series) -> pl.Series:
        """Return the string id of each event's category."""
        return looked_up(self.index, event_ids, self.categories)


def read_events(capture: Capture, step: Step) -> Events:
    """Read `rocpd_event`: stack id and category only, as the JSON columns are rarely needed."""
    schema = {"id": pl.Int64(), "stack_id": pl.Int64(), "category_id": pl.Int32()}
    events = stacked(_narrowed_slices(capture, step), schema)
    return Events(RowIndex(events["id"]), events["stack_id"], events["category_id"])


def _narrowed_slices(capture: Capture, step: Step) -> Iterator[pl.DataFrame]:
    columns = ["id", "stack_id", "category_id"]
    for part in capture.slices("rocpd_event", columns):
        step(part.height, "rocpd_event")
        yield part.select(
            "id",
            # 0 is the writer's "no stack": it must not tie everything without one together.
            pl.when(pl.col("stack_id") != 0).then("stack_id"),
            pl.col("category_id").cast(pl.Int32, strict=False),
        )


def _origins(texts: pl.Series, patterns: Sequence[tuple[str, str]]) -> pl.Series:
    origin = pl.lit("other")
    for pattern, name in reversed(patterns):
        matches = pl.col("text").str.contains(f"(?i){pattern}")
        origin = pl.when(matches).then(pl.lit(name)).otherwise(origin)
    return texts.alias("text").to_frame().select(origin.cast(ORIGINS)).to_series()
