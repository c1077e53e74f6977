import weakref

import polars as pl

from tracekit.remembered import remembered, remembered_in_use


def counted():
    """A remembered difference of two columns, and the list that grows each time it is worked out."""
    runs = []

    @remembered
    def difference(left: pl.DataFrame, right: pl.DataFrame) -> int:
        runs.append(1)
        return left["x"].sum() - right["x"].sum()

    return difference, runs


def frame(*values):
    return pl.DataFrame({"x": values})


def test_the_very_same_frames_are_worked_out_once():
    difference, runs = counted()
    left, right = frame(5), frame(3)
    assert [difference(left, right), difference(left, right)] == [2, 2]
    assert len(runs) == 1


def test_equal_frames_are_others():
    difference, runs = counted()
    left = frame(5)
    assert [difference(left, frame(3)), difference(left, frame(3))] == [2, 2]
    assert len(runs) == 2


def test_frames_count_by_their_names_however_they_are_given():
    difference, runs = counted()
    left, right = frame(5), frame(3)
    assert difference(left, right) == 2
    assert difference(right=right, left=left) == 2
    assert difference(left=right, right=left) == -2
    assert len(runs) == 2


def test_another_frame_in_the_place_of_one_that_is_gone_is_not_taken_for_it():
    difference, _ = counted()
    right = frame(0)
    for value in range(50):
        assert difference(frame(value), right) == value


def test_no_frame_is_kept():
    difference, _ = counted()
    left, right = frame(5), frame(3)
    difference(left, right)
    gone = weakref.ref(left)
    del left
    assert gone() is None


def test_a_result_in_use_is_given_again_and_no_other_is_kept():
    runs = []

    @remembered_in_use
    def doubled(some: pl.DataFrame) -> pl.DataFrame:
        runs.append(1)
        return some * 2

    asked = frame(5)
    first = doubled(asked)
    assert doubled(asked) is first
    assert len(runs) == 1
    gone = weakref.ref(first)
    del first
    assert gone() is None
    assert doubled(asked)["x"].to_list() == [10]
    assert len(runs) == 2
