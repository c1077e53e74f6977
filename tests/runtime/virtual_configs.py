"""Every kind of virtual device, for Hypothesis to choose from."""

from hypothesis import strategies as st
from virtual_runs import ROUND

from instrumented_runtime.devices.virtual import Config, Timing

CONFIGS = st.builds(
    Config,
    seed=st.integers(0, 100),
    max_hw_queues=st.integers(1, 4),
    serialize_copy=st.integers(0, 3),
    launch_blocking=st.booleans(),
    rocm=st.sampled_from(["7.2", "10"]),
    null_follows_share=st.sampled_from([None, 0.5]),
    ordering_edges=st.booleans(),
    kernel_jitter=st.sampled_from([0.0, 0.5]),
    timing=st.sampled_from([Timing(), Timing(**ROUND)]),
)
