"""Streams and events that only say what was asked of them: who waits, where, for whom."""

from types import SimpleNamespace


class FakeDevice:
    """A device module of torch, as far as schedulers use one.

    Attributes:
        log: What happened, in order: `("host-sync", recorded)`, `("wait", waiting, recorded)` with
            the names of streams.
        current: The current stream.
    """

    def __init__(self):
        self.log = []
        self.drawn = 0
        self.current = self.stream_named("default", 0)

    def stream_named(self, name, handle):
        device = self

        class Stream:
            def __init__(self):
                self.name, self.cuda_stream = name, handle

            def wait_stream(self, other):
                device.log.append(("wait", self.name, other.name))

            def wait_event(self, event):
                device.log.append(("wait", self.name, event.recorded))

        return Stream()

    def Stream(self, priority=0):
        self.drawn += 1
        return self.stream_named(f"drawn-{self.drawn}", 100 + self.drawn)

    def Event(self):
        device = self

        class Event:
            recorded = None

            def record(self, stream=None):
                self.recorded = (stream or device.current).name

            def wait(self, stream=None):
                device.log.append(("wait", (stream or device.current).name, self.recorded))

            def synchronize(self):
                device.log.append(("host-sync", self.recorded))

        return Event()

    def StreamContext(self, stream):
        device = self

        class Context:
            def __enter__(self):
                self.before, device.current = device.current, stream

            def __exit__(self, *_problem):
                device.current = self.before

        return Context()

    stream = StreamContext

    def current_stream(self):
        return self.current

    def module(self):
        """Return it as a namespace, for code that looks names up in a module."""
        names = ("Stream", "Event", "StreamContext", "stream", "current_stream")
        return SimpleNamespace(**{name: getattr(self, name) for name in names})
