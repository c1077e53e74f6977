"""What the engine is told."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal, get_args

from instrumented_runtime.options import refuse_unknown, require

PolicyName = Literal["host-sync", "event-wait", "forward-stream", "auto"]
POLICY_NAMES: tuple[str, ...] = get_args(PolicyName)
DelayRule = Literal["free-slots", "free-slots-and-waiting"]
PlanWriterName = Literal["direct", "synced", "staged"]
PLAN_WRITER_NAMES: tuple[str, ...] = get_args(PlanWriterName)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How the engine schedules, speculates and caches.

    Attributes:
        policy: How the scheduler waits for the step before; see `scheduling.stream_policy`.
        speculative_tokens: Drafted per step and request; 0 decodes one token a step.
        max_running: Requests that decode at once.
        chunk_tokens: Prompt tokens of one step.
        mix_decode: Whether running requests decode one token beside a prefill, or wait.
        page_size: Tokens of a page of the cache.
        max_tokens: Of one request, prompt and output.
        num_pages: Of the cache; enough for `max_running` requests of `max_tokens` if None.
        min_free_slots: Slots that must be free before a prefill begins; None chooses, 1 or less
            never delays.
        delay_rule: Whether a delay also asks how many requests wait.
        compressor_overlap: Whether compressors run on side streams, in graphs of few tokens; None
            chooses, see `compressor.overlap`.
        side_streams: How many of them.
        plan_writer: Who brings the plan of a prefill's attention to the device, see
            `prefill.staging`; None plans nothing, and one kernel a layer attends.
        draft_miss_share: Of positions at which the draft is wrong, q. A verify of k drafted tokens
            yields (1 − (1 − q)^(k + 1)) / q tokens on average.
        draft_miss_spread: Standard deviation of that share between requests.
        needs_cpu_seq_lens: Whether attention wants lengths on the host, which then has to wait.
        is_checked: Whether reads of what nobody published fail; what the device would find only
            where it computes.
        has_tensors: Whether the device computes. If not, it takes the same time, and the host says
            the same tokens with the same acceptance.
        pipeline_parallel_size: Of the deployment that is modelled; above 1 the scheduler cannot
            share the forward stream.
        seed: Of weights and draft.
    """

    policy: PolicyName = "auto"
    speculative_tokens: int = 5
    max_running: int = 8
    chunk_tokens: int = 4096
    mix_decode: bool = False
    page_size: int = 64
    max_tokens: int = 8192
    num_pages: int | None = None
    min_free_slots: int | None = None
    delay_rule: DelayRule = "free-slots-and-waiting"
    compressor_overlap: bool | None = None
    side_streams: int = 2
    plan_writer: PlanWriterName | None = None
    draft_miss_share: float = 0.258
    draft_miss_spread: float = 0.0
    needs_cpu_seq_lens: bool = False
    is_checked: bool = False
    has_tensors: bool = True
    pipeline_parallel_size: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what the engine cannot do.

        Raises:
            ValueError: Names the field and what is allowed.
        """
        for name, least in (
            ("speculative_tokens", 0),
            ("max_running", 1),
            ("chunk_tokens", 1),
            ("max_tokens", 2),
            ("pipeline_parallel_size", 1),
            ("side_streams", 1),
            ("seed", 0),
            # A padding request verifies within its one page.
            ("page_size", self.speculative_tokens + 1),
            ("num_pages", 1),
            ("min_free_slots", 0),
        ):
            value = getattr(self, name)
            is_open = value is None and name in ("num_pages", "min_free_slots")
            allowed = f"a whole number ≥ {least}"
            require(is_open or (type(value) is int and value >= least), name, value, allowed)
        for name, choices in (
            ("policy", POLICY_NAMES),
            ("delay_rule", get_args(DelayRule)),
            ("plan_writer", PLAN_WRITER_NAMES),
        ):
            value = getattr(self, name)
            if name == "plan_writer" and value is None:
                continue
            require(value in choices, name, value, f"one of {', '.join(choices)}")
        for name in ("draft_miss_share", "draft_miss_spread"):
            value = getattr(self, name)
            is_share = isinstance(value, int | float) and not isinstance(value, bool)
            require(is_share and 0 <= value <= 1, name, value, "a share from 0 to 1")
        for name in ("mix_decode", "needs_cpu_seq_lens", "is_checked", "has_tensors"):
            value = getattr(self, name)
            require(isinstance(value, bool), name, value, "true or false")
        asked = self.compressor_overlap
        is_known = asked is None or isinstance(asked, bool)
        require(is_known, "compressor_overlap", asked, "true, false or nothing")

    @classmethod
    def from_options(cls, options: Mapping[str, object]) -> "EngineConfig":
        """Return the configuration of named options.

        Raises:
            ValueError: An option is unknown or its value is not allowed.
        """
        refuse_unknown(options, [part.name for part in fields(cls)], "option")
        return cls(**options)  # type: ignore[arg-type]

    @property
    def is_speculative(self) -> bool:
        """Whether a step drafts and verifies."""
        return self.speculative_tokens > 0

    @property
    def reserve_tokens(self) -> int:
        """Tokens beyond its last that a request may write: what a step too many verifies."""
        return 2 * (self.speculative_tokens + 1)

    @property
    def pages_per_request(self) -> int:
        """Pages of the longest request."""
        return -(-(self.max_tokens + self.reserve_tokens) // self.page_size)

    @property
    def pages(self) -> int:
        """Pages of the cache, the padding page included."""
        given = self.num_pages
        return 1 + (self.max_running * self.pages_per_request if given is None else given)
