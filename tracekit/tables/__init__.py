"""The canonical tables, declared as data: column, dtype, unit, meaning.

Times are integer nanoseconds and intervals half-open `[start_ns, end_ns)`; unknown is null; an id
is unique inside a `Trace` within its key space. Readers build frames with `Table.conform`, so a
frame that reaches an analysis has exactly the declared columns.
"""

from dataclasses import dataclass

import polars as pl

from tracekit.units import Unit


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a declared table.

    Attributes:
        name: Column name; a quantity carries its unit (`start_ns`, `copied_bytes`).
        dtype: Polars dtype.
        meaning: One sentence for `docs/tables.md`.
        unit: What the number means.
        space: Key space of an id ("op", "call", ...): two columns with one space hold the same ids,
            and joining several traces shifts them together.
    """

    name: str
    dtype: pl.DataType
    meaning: str
    unit: Unit = Unit.NONE
    space: str | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A declared table: what a row is, and its columns in order.

    Attributes:
        name: The user's name of it.
        row: What a row is.
        columns: Its columns.
        sorted_by: The column by which its rows are in ascending order, if they are; analyses of
            large traces rely on it instead of sorting again.
        answers: Names of the columns for which the table is read: where there is no room for all,
            these are left out last.
    """

    name: str
    row: str
    columns: tuple[Column, ...]
    sorted_by: str | None = None
    answers: tuple[str, ...] = ()

    @property
    def schema(self) -> pl.Schema:
        """Column names and dtypes, in order."""
        return pl.Schema({column.name: column.dtype for column in self.columns})

    def empty(self) -> pl.DataFrame:
        """Return the table without rows."""
        return pl.DataFrame(schema=self.schema)

    def conform(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return `frame` with exactly the declared columns: cast, in order, missing ones null.

        Raises:
            ValueError: `frame` has a column that the table does not declare.
        """
        if not frame.columns:
            return self.empty()
        unknown = set(frame.columns) - set(self.schema)
        if unknown:
            raise ValueError(f"table {self.name} declares no column {sorted(unknown)}")
        conformed = frame.select(
            (pl.col(column.name) if column.name in frame.columns else pl.lit(None))
            .cast(column.dtype)
            .alias(column.name)
            for column in self.columns
        )
        return self.ordered(conformed)

    def ordered(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return `frame` in the declared order, rows of equal keys as they were."""
        if self.sorted_by is None:
            return frame
        if not frame[self.sorted_by].is_sorted():
            frame = frame.sort(self.sorted_by, maintain_order=True)
        return frame.with_columns(pl.col(self.sorted_by).set_sorted())


def id_column(name: str, space: str, meaning: str, *, narrow: bool = False) -> Column:
    """Return an id column; `narrow` for spaces that stay far below 2^31 (processes, streams)."""
    return Column(name, pl.Int32() if narrow else pl.Int64(), meaning, Unit.ID, space)


def time_column(name: str, meaning: str) -> Column:
    """Return a point-in-time column."""
    return Column(name, pl.Int64(), meaning, Unit.TIME)


def text_column(name: str, meaning: str) -> Column:
    """Return a text column."""
    return Column(name, pl.String(), meaning)


def name_column(name: str, meaning: str) -> Column:
    """Return a column of few distinct texts over many rows (kernel and call names)."""
    return Column(name, pl.Categorical(), meaning)


def enum_column(name: str, values: tuple[str, ...], meaning: str) -> Column:
    """Return a column with a closed list of values."""
    return Column(name, pl.Enum(values), meaning)
