"""How the virtual device behaves, and the constants of its time."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType

from instrumented_runtime.options import refuse_unknown, require
from instrumented_runtime.recorder.layout import APIS

ROCM_VERSIONS = ("7.2", "10")
# Of any time or count: 2.8 hours in nanoseconds, of which a million fit a clock of 64 bits.
MOST = 10_000_000_000_000
_SWITCHES = {"0": False, "1": True, "": False}


@dataclass(frozen=True, slots=True)
class Timing:
    """What device and host take, in nanoseconds.

    Two constants are fitted to two published figures, a graph of 512 kernels that takes 853 µs
    alone and 1541 µs with a wait pending in another hardware queue (public pull requests to
    SGLang): `pending_wait_dispatch_ns` is (1541 − 853) µs ÷ 512, and `graph_dispatch_ns` is
    853 µs ÷ 512 less kernels of 1200 ns. All others are assumed, of the size that traces show.

    Attributes:
        launch_latency_ns: Until a packet is in the hardware queue, from when its call has taken the
            time that it takes without waiting.
        dispatch_ns: From when a packet can run (it is there, the packet before is done) to its
            start.
        graph_dispatch_ns: The same between kernels of a graph.
        pending_wait_dispatch_ns: Added to each dispatch that begins while a wait is pending in
            another hardware queue; once, however many are pending.
        wait_release_ns: From the end of the awaited work to the release of a wait that was pending.
        wake_up_ns: From the end of the awaited work to the return of a host call that waits for it.
        copy_ns: A copy on the device, whatever its length.
        copy_bytes_per_ns: What a copy moves in a nanosecond.
        staging_bytes_per_ns: What the host moves of pageable memory in a nanosecond.
        call_ns: A host call that waits for nothing, unless it is in `calls_ns`.
        calls_ns: The same of single HIP calls.
    """

    launch_latency_ns: int = 3_000
    dispatch_ns: int = 900
    graph_dispatch_ns: int = 466
    pending_wait_dispatch_ns: int = 1_344
    wait_release_ns: int = 1_000
    wake_up_ns: int = 5_000
    copy_ns: int = 2_000
    copy_bytes_per_ns: float = 40.0
    staging_bytes_per_ns: float = 10.0
    call_ns: int = 700
    calls_ns: Mapping[str, int] = field(
        default_factory=lambda: MappingProxyType(
            {"hipLaunchKernel": 2_500, "hipGraphLaunch": 12_000, "hipMemcpyAsync": 3_000}
        )
    )

    def __post_init__(self) -> None:
        """Refuse times and rates that cannot be.

        Raises:
            ValueError: Names the field and what is allowed.
        """
        for name in _names(self):
            value = getattr(self, name)
            if name.endswith("_per_ns"):
                require(
                    _is_number(value) and 1e-6 <= value <= 1e6,
                    f"timing.{name}",
                    value,
                    "a number from 1e-6 to 1e6",
                )
            elif name != "calls_ns":
                require(is_count(value), f"timing.{name}", value, "a whole number ≥ 0")
        require(isinstance(self.calls_ns, Mapping), "timing.calls_ns", self.calls_ns, "a table")
        refuse_unknown(self.calls_ns, [api.name for api in APIS], "HIP call")
        for call, value in self.calls_ns.items():
            require(is_count(value), f"timing.calls_ns[{call!r}]", value, "a whole number ≥ 0")


@dataclass(frozen=True, slots=True)
class Config:
    """What kind of device, driver and environment is modelled.

    Attributes:
        seed: Of everything random; equal seeds give equal runs.
        tensors: Whether kernels and copies work on CPU tensors when they run in virtual time, so
            that a race corrupts data. Off, only time passes.
        max_hw_queues: Hardware queues per stream priority (`GPU_MAX_HW_QUEUES`).
        serialize_copy: `AMD_SERIALIZE_COPY`: 1 waits for the device before each copy, 2 after it,
            3 both.
        launch_blocking: `HIP_LAUNCH_BLOCKING`: each launch waits for its kernel.
        rocm: `7.2`: the null stream shares the hardware queues of all streams, so that a blocking
            copy may stand behind work it is not ordered with. `10`: it has one of its own. That
            this is the difference between the two is assumed.
        null_follows_share: On ROCm 7.2, how often the null stream goes to the hardware queue that
            holds the most when it has work again after a while, rather than to the one of the
            others that the fewest streams use. None: it keeps the queue of its first work.
        ordering_edges: Whether a wait pending in another queue costs dispatches nothing.
        kernel_jitter: Spread of kernel times: each is drawn between 1 − jitter and 1 + jitter of
            its cost.
        host_costs_ns: What `elapse` knows: the host's work, in nanoseconds each.
        timing: The constants.
    """

    seed: int = 0
    tensors: bool = True
    max_hw_queues: int = 4
    serialize_copy: int = 0
    launch_blocking: bool = False
    rocm: str = "7.2"
    null_follows_share: float | None = None
    ordering_edges: bool = False
    kernel_jitter: float = 0.0
    host_costs_ns: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    timing: Timing = field(default_factory=Timing)

    def __post_init__(self) -> None:
        """Refuse what cannot be modelled.

        Raises:
            ValueError: Names the field and what is allowed.
        """
        require(is_count(self.seed), "seed", self.seed, "a whole number ≥ 0")
        for name in ("tensors", "launch_blocking", "ordering_edges"):
            value = getattr(self, name)
            require(isinstance(value, bool), name, value, "true or false")
        queues = self.max_hw_queues
        require(
            is_count(queues) and 1 <= queues <= 64,
            "max_hw_queues",
            queues,
            "a number from 1 to 64",
        )
        copies = self.serialize_copy
        require(is_count(copies) and copies <= 3, "serialize_copy", copies, "0, 1, 2 or 3")
        require(self.rocm in ROCM_VERSIONS, "rocm", self.rocm, " or ".join(ROCM_VERSIONS))
        follows = self.null_follows_share
        is_share = follows is None or (_is_number(follows) and 0 <= follows <= 1)
        require(is_share, "null_follows_share", follows, "a share from 0 to 1, or nothing")
        jitter = self.kernel_jitter
        require(
            _is_number(jitter) and 0 <= jitter < 1, "kernel_jitter", jitter, "a share from 0 to 1"
        )
        costs = self.host_costs_ns
        require(isinstance(costs, Mapping), "host_costs_ns", costs, "a table")
        for kind, cost in costs.items():
            require(is_count(cost), f"host_costs_ns[{kind!r}]", cost, "a whole number ≥ 0")
        require(isinstance(self.timing, Timing), "timing", self.timing, "a table of constants")

    @classmethod
    def from_options(cls, options: Mapping[str, object]) -> "Config":
        """Return the configuration of named options, as from a file; `timing` is a mapping too.

        Raises:
            ValueError: An option is unknown or its value is not allowed.
        """
        given = dict(options)
        known = _names(cls)
        refuse_unknown(given, known, "option")
        timing = given.get("timing")
        if isinstance(timing, Mapping):
            refuse_unknown(timing, _names(Timing), "option of timing")
            given["timing"] = Timing(**timing)
        return cls(**given)  # type: ignore[arg-type]

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], **options: object) -> "Config":
        """Return the configuration that HIP's environment variables ask for.

        Read are `GPU_MAX_HW_QUEUES`, `AMD_SERIALIZE_COPY` and `HIP_LAUNCH_BLOCKING`, over which
        `options` win, and `DEBUG_CLR_DISABLE_ORDERING_EDGE`, which switches off what
        `ordering_edges` asks for.

        Raises:
            ValueError: A variable or an option is not allowed.
        """
        read: dict[str, object] = {}
        for variable, name in (
            ("GPU_MAX_HW_QUEUES", "max_hw_queues"),
            ("AMD_SERIALIZE_COPY", "serialize_copy"),
        ):
            if text := environment.get(variable):
                require(
                    text.isascii() and text.isdecimal() and len(text) < 9,
                    variable,
                    text,
                    "a whole number",
                )
                read[name] = int(text)
        if (text := environment.get("HIP_LAUNCH_BLOCKING")) is not None:
            read["launch_blocking"] = _switch("HIP_LAUNCH_BLOCKING", text)
        config = cls.from_options({**read, **options})
        text = environment.get("DEBUG_CLR_DISABLE_ORDERING_EDGE", "0")
        is_off = _switch("DEBUG_CLR_DISABLE_ORDERING_EDGE", text)
        return replace(config, ordering_edges=False) if is_off else config

    def as_options(self) -> dict[str, object]:
        """Return all of it as `from_options` takes it, for a trace to say what was modelled."""
        options: dict[str, object] = {name: getattr(self, name) for name in _names(self)}
        timing = {name: getattr(self.timing, name) for name in _names(self.timing)}
        timing["calls_ns"] = dict(self.timing.calls_ns)
        return options | {"host_costs_ns": dict(self.host_costs_ns), "timing": timing}

    def environment(self) -> dict[str, str]:
        """Return the variables that ask for this, as a trace of it records them."""
        return {
            "GPU_MAX_HW_QUEUES": str(self.max_hw_queues),
            "AMD_SERIALIZE_COPY": str(self.serialize_copy),
            "HIP_LAUNCH_BLOCKING": str(int(self.launch_blocking)),
            "DEBUG_CLR_DISABLE_ORDERING_EDGE": str(int(not self.ordering_edges)),
        }


def _names(of: "Timing | Config | type[Timing | Config]") -> list[str]:
    return [part.name for part in fields(of)]


def _switch(variable: str, text: str) -> bool:
    require(text in _SWITCHES, variable, text, "0 or 1")
    return _SWITCHES[text]


def is_count(value: object) -> bool:
    """Whether a value is a whole number from 0 to `MOST`."""
    return type(value) is int and 0 <= value <= MOST


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
