"""Two starts of one server are never quite alike: so much is drawn at each start."""

import random
from dataclasses import dataclass, replace
from math import exp, log1p, sqrt

from instrumented_runtime.costs import Costs
from instrumented_runtime.options import require

DEFAULT_VARIATION = 0.005


@dataclass(frozen=True, slots=True)
class StartNoise:
    """How this start differs: assumed, not fitted to any server.

    Attributes:
        variation: Standard deviation over mean of either factor, over all starts.
        seed: Of this start; equal seeds give equal starts.
        device_factor: Times this the time of kernels of forwards.
        host_factor: Times this what the host does between calls.
    """

    variation: float
    seed: int
    device_factor: float
    host_factor: float

    @classmethod
    def drawn(cls, variation: float, seed: int) -> "StartNoise":
        """Draw both factors: log-normal, independent, of mean 1.

        Raises:
            ValueError: Names the option and what is allowed.
        """
        require(0 <= variation <= 1, "start-noise", variation, "a share from 0 to 1")
        require(seed >= 0, "start-seed", seed, "a whole number ≥ 0")
        draw = random.Random(f"start {seed}")
        variance = log1p(variation**2)
        factors = [exp(draw.gauss(-variance / 2, sqrt(variance))) for _ in range(2)]
        return cls(variation, seed, *factors)

    def applied(self, costs: Costs) -> Costs:
        """Return the costs of this start."""
        return replace(
            costs,
            device_scale=costs.device_scale * self.device_factor,
            prefill_token_ns=costs.prefill_token_ns * self.device_factor,
            long_context_ns=costs.long_context_ns * self.device_factor,
            host_ns={kind: round(ns * self.host_factor) for kind, ns in costs.host_ns.items()},
        )
