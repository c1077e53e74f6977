"""The byte opens and closes the gate, and whoever listens is done before the process says so."""

import json

import pytest

from instrumented_runtime.hooks.process import Process


@pytest.fixture
def followed(tmp_path):
    """A process that follows a byte when told to look, and what its listener was told."""
    (tmp_path / "window").write_bytes(b"\0")
    process = Process({"TRACEKIT_HOOKS_DIR": str(tmp_path)})
    told = []

    def listener(is_open):
        if not told or told[-1] != (is_open, process.gate[0]):
            told.append((is_open, process.gate[0]))
        return False

    process.listeners.append(listener)

    def look(value):
        with (tmp_path / "window").open("r+b") as file:
            file.write(bytes([value]))
        process.look()
        (path,) = tmp_path.glob("*.json")
        return process.gate[0], json.loads(path.read_text())["window"]

    return look, told, process


def test_the_gate_opens_after_the_listeners_and_closes_before_them(followed):
    look, told, _ = followed
    assert [look(1), look(1), look(2), look(3), look(4)] == [(1, 1), (1, 1), (0, 2), (2, 3), (0, 4)]
    # At each opening the listener is told while the gate is closed still, then with it open.
    assert told == [(True, 0), (True, 1), (False, 0), (True, 0), (False, 0)]


def test_a_window_that_closed_and_opened_between_two_looks_is_another_window(followed):
    look, told, _ = followed
    assert [look(1), look(3)] == [(1, 1), (2, 3)]
    assert told == [(True, 0), (False, 0), (True, 0)]


def test_one_that_came_and_went_between_two_looks_is_none_and_the_byte_may_wrap(followed):
    look, told, _ = followed
    assert look(254) == (0, 254)
    assert look(255) == (1, 255)
    assert look(0) == (0, 0)
    assert told == [(True, 0), (False, 0)]


def test_a_listener_that_begins_late_makes_the_streams_be_told_again(followed):
    look, _, process = followed
    begins = iter([False, True, False])
    process.listeners.append(lambda is_open: is_open and next(begins))
    assert [look(1), look(1), look(1)] == [(1, 1), (2, 1), (2, 1)]


def test_a_listener_that_fails_is_reported_and_the_others_are_told(followed):
    look, told, process = followed
    process.listeners.insert(0, lambda is_open: 1 // 0)
    assert look(1) == (1, 1)
    assert told == [(True, 0)]
    assert "ZeroDivisionError" in process.report.problems[0]
    process.report.problems.clear()


def test_a_process_that_ends_in_the_window_lets_them_finish(followed):
    look, told, process = followed
    look(1)
    process.close()
    assert (told[-1], process.gate) == ((False, 0), [0])


def test_the_window_of_a_process_that_has_ended_is_not_opened_again(followed):
    look, told, process = followed
    look(1)
    process.close()
    told.clear()
    # Its thread looks on while the interpreter ends, and the byte is odd as before.
    look(1)
    assert (told, process.gate) == ([], [0])
