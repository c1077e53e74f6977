"""How the scheduler waits for the lengths that the forward before publishes, and on which stream.

Three ways, each with its price:

- `host-sync`: the host blocks until they are published. Nothing of the next step is prepared
  meanwhile, so the device idles for the preparation, once a step.
- `event-wait`: a stream of the scheduler's own waits; the host runs on. But on HIP without ordering
  edges a wait that is pending in another hardware queue delays every dispatch of the forward.
- `forward-stream`: the scheduler works on the forward stream itself, whose order satisfies the
  wait. Nothing blocks, but its kernels are no longer beside the forward.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from instrumented_runtime.config import POLICY_NAMES, PolicyName
from instrumented_runtime.devices import Event, Platform, Stream
from instrumented_runtime.marks.marked_device import MarkedDevice

# torch hands out 32 streams in turn.
_DRAWS = 64


@dataclass(frozen=True, slots=True)
class StreamPolicy:
    """One way of waiting.

    Attributes:
        name: Any but `auto`.
    """

    name: Literal["host-sync", "event-wait", "forward-stream"]

    def wait(self, device: MarkedDevice, published: Event, stream: Stream) -> None:
        """Let what follows on `stream` come after an event, by this policy."""
        if self.name == "host-sync":
            device.sync(published)
        else:
            device.wait(published, stream)

    def place(self, forward: Stream, draw: Callable[[], Stream]) -> Stream:
        """Return the stream that the scheduler works on.

        Streams may come from a pool that hands out the forward's own handle. Then another is drawn,
        since a scheduler that shares the forward's stream by accident has no overlap; one that is
        put there by `forward-stream` stays there.

        Raises:
            RuntimeError: Only the forward's own handle is ever drawn.
        """
        if self.name == "forward-stream":
            return forward
        for _ in range(_DRAWS):
            stream = draw()
            if stream.handle != forward.handle:
                return stream
        raise RuntimeError(f"no stream but the forward's own in {_DRAWS} draws")


def stream_policy(
    name: PolicyName,
    *,
    platform: Platform,
    has_overlap: bool,
    is_speculative: bool,
    pipeline_parallel_size: int = 1,
) -> StreamPolicy:
    """Return the policy of a name; `auto` is decided by what the engine is.

    On HIP with overlap, speculation and no pipeline parallelism it is `forward-stream`. Without
    speculation nothing is published that the scheduler waits for, and on other devices a pending
    wait costs nothing: a stream of its own. What remains is HIP with speculation where the
    forward stream cannot be shared: there the host has to block.

    Raises:
        ValueError: There is no policy of that name, or `forward-stream` is asked for with pipeline
            parallelism, whose stages the scheduler cannot all share.
    """
    if name == "auto":
        if platform != "hip" or not is_speculative:
            return StreamPolicy("event-wait")
        can_share = has_overlap and pipeline_parallel_size == 1
        return StreamPolicy("forward-stream" if can_share else "host-sync")
    if name not in POLICY_NAMES:
        raise ValueError(f"policy: {name!r} is not allowed; give one of {', '.join(POLICY_NAMES)}")
    if name == "forward-stream" and pipeline_parallel_size > 1:
        raise ValueError(
            f"policy: forward-stream is not allowed with pipeline_parallel_size "
            f"{pipeline_parallel_size}; give host-sync, event-wait or auto"
        )
    return StreamPolicy(name)
