"""What a test sees of a capture, and waiting for it."""

import time

import psutil


class Told:
    """An observer that keeps what it was told."""

    def __init__(self):
        self.stages, self.words, self.notes = [], [], []

    def stage(self, name):
        self.stages.append(name)

    def at(self, what):
        self.words.append(what)

    def note(self, text):
        self.notes.append(text)


def soon(condition, within_s=20.0):
    """Wait for a condition; fail if it does not come."""
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "it does not come true"
        time.sleep(0.01)
    return value


def is_gone(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def read(path):
    return path.read_text() if path.exists() else ""
