"""What the decoder keeps on the device: parameters, caches, and the table of requests."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from instrumented_runtime.config import EngineConfig
from instrumented_runtime.devices import Buffer, Stream
from instrumented_runtime.marks.marked_device import MarkedDevice
from instrumented_runtime.model import LAYERS, WIDTH, WINDOW, Weights
from instrumented_runtime.model_kernels import PAGES

Values = NDArray[np.float32] | NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """Buffers on the device.

    Attributes:
        embedding: As `Weights`, float32; so are `values`, `attention`, `head` and `tie`.
        back: `[WINDOW] int64`: 0, 1, 2, …
        steps: `[k + 1] int64`: 0, 1, 2, …
        cache: `[pages · page_size, LAYERS, WIDTH] float32`: the target's values.
        draft_cache: The same of the draft.
        table: `[rows, PAGES + pages_per_request] int64`: seed and threshold of the draft's misses,
            then the pages of each request. Written on the forward stream only.
    """

    embedding: Buffer
    values: Buffer
    attention: Buffer
    head: Buffer
    tie: Buffer
    back: Buffer
    steps: Buffer
    cache: Buffer
    draft_cache: Buffer
    table: Buffer
    page_size: int


def model_memory(device: MarkedDevice, config: EngineConfig) -> ModelMemory:
    """Allocate everything; the parameters are yet to be loaded."""
    slots = [config.pages * config.page_size, LAYERS, WIDTH]
    columns = PAGES + config.pages_per_request
    return ModelMemory(
        **{
            name: device.allocate(values.shape, values.dtype.name, name)
            for name, values in _parameters(config).items()
        },
        cache=device.allocate(slots, "float32", "cache"),
        draft_cache=device.allocate(slots, "float32", "draft_cache"),
        table=device.allocate([config.max_running + 1, columns], "int64", "table"),
        page_size=config.page_size,
    )


def load_parameters(
    device: MarkedDevice, memory: ModelMemory, config: EngineConfig, stream: Stream
) -> None:
    """Queue the copies of all parameters."""
    for name, values in _parameters(config).items():
        source = device.pinned(values.shape, values.dtype.name, f"{name}_host")
        if config.has_tensors:
            tensor = source.on_host()
            tensor.copy_(tensor.new_tensor(values))
        device.copy_async(getattr(memory, name), source, stream)


def _parameters(config: EngineConfig) -> dict[str, Values]:
    """Return what is loaded, by the name of its buffer."""
    weights = Weights.of(config.seed)
    return {
        "embedding": weights.embedding,
        "values": weights.values,
        "attention": weights.attention,
        "head": weights.head,
        "tie": weights.tie,
        "back": np.arange(WINDOW),
        "steps": np.arange(config.speculative_tokens + 1),
    }
