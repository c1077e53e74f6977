"""The compressors of a DeepSeek-V4 layer on side streams, around its own single-stream code.

SGLang's own code for this on HIP is a second version of how a layer prepares attention, and knows
of one key-value pool only. This way there is one version, that of a single stream: it is called as
it is, without its compressors, which run on the side meanwhile.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# Where a layer keeps its side streams: not in `alt_streams`, for then its `forward` takes the
# second version.
_STREAMS = "_tracekit_side_streams"
# Of these a layer's main compressor is made; ratios 1 and 2 have code of their own.
_RATIOS = (4, 128)


def keeping_streams(
    init: Callable[..., None], wants: Callable[[], bool], is_unified: Callable[[], bool]
) -> Callable[..., None]:
    """Return a layer's `__init__` that keeps the side streams it is given.

    Args:
        init: The original.
        wants: Whether the user wants overlap.
        is_unified: Whether keys and values go to the pool that SGLang's own forks do not know.
    """
    signature = inspect.signature(init)

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        streams = signature.bind(self, *args, **kwargs).arguments.get("alt_streams")
        if not streams or not wants():
            return
        if self.compress_ratio in _RATIOS:
            self.__dict__[_STREAMS] = list(streams[:2])
            self.alt_streams = None
        elif is_unified():
            # Ratios 1 and 2 have a fork of their own, which stores to the other pool.
            self.alt_streams = None

    return __init__


def forking(prepare: Callable[..., Any], module: Any) -> Callable[..., Any]:
    """Return a layer's `_forward_prepare` that forks its compressors off and joins them.

    Args:
        prepare: The original.
        module: Where it comes from, which has the conditions under which SGLang forks.
    """

    @functools.wraps(prepare)
    def _forward_prepare(
        self: Any,
        x: Any,
        positions: Any,
        forward_batch: Any,
        attn_backend: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        streams = self.__dict__.get(_STREAMS)
        if not streams or not _may_fork(self, x, forward_batch, module):
            return prepare(self, x, positions, forward_batch, attn_backend, *args, **kwargs)
        side = _Side(streams)
        indexer = self.indexer
        with side.forked(0):
            attn_backend.forward_core_compressor(x, forward_batch, self.layer_id, self.compressor)
        if indexer is not None:
            with side.forked(-1):
                attn_backend.forward_indexer_compressor(
                    x=x,
                    forward_batch=forward_batch,
                    layer_id=indexer.layer_id,
                    compressor=indexer.compressor,
                )
        with side.joined(), _without_compressors(self, _Joining(indexer, side)):
            return prepare(self, x, positions, forward_batch, attn_backend, *args, **kwargs)

    return _forward_prepare


def _may_fork(layer: Any, x: Any, forward_batch: Any, module: Any) -> bool:
    # As SGLang's `forward` decides. Overlap is for graphs: elsewhere the host is too slow for it.
    if layer.compressor is None or not module.get_is_capture_mode():
        return False
    if sys.modules["torch"].compiler.is_compiling() or module.is_cp_active(forward_batch):
        return False
    limit: int = layer._multi_stream_bs_limit
    return bool(module.is_in_breakable_cuda_graph() or x.shape[0] <= limit)


class _Side:
    """The side streams of one layer, while it prepares."""

    def __init__(self, streams: list[Any]) -> None:
        self._cuda = sys.modules["torch"].cuda
        self._streams = streams
        self._main = self._cuda.current_stream()
        self._used: list[Any] = []

    @contextmanager
    def forked(self, which: int) -> Iterator[None]:
        """Run on a side stream, after what the main stream holds now."""
        stream = self._streams[which]
        stream.wait_stream(self._main)
        self._used.append(stream)
        with self._cuda.stream(stream):
            yield

    def join(self) -> None:
        """Let the main stream wait for what was forked since the last join."""
        for stream in dict.fromkeys(self._used):
            self._main.wait_stream(stream)
        self._used.clear()

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Join at the end, also after a failure: no capture may end with a loose branch."""
        try:
            yield
        finally:
            self.join()


class _Joining:
    """Stands in for an indexer: its compressor has run, and is waited for."""

    def __init__(self, indexer: Any, side: _Side) -> None:
        self._indexer, self._side = indexer, side

    def __call__(self, **given: Any) -> Any:
        self._side.join()
        return self._indexer(**given, skip_compressor=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._indexer, name)


@contextmanager
def _without_compressors(layer: Any, joining: _Joining) -> Iterator[None]:
    # In the table of submodules, past torch's check that a submodule stays one.
    kept = dict(layer._modules)
    layer._modules["compressor"] = None
    if kept.get("indexer") is not None:
        layer._modules["indexer"] = joining
    try:
        yield
    finally:
        layer._modules["compressor"] = kept["compressor"]
        if "indexer" in kept:
            layer._modules["indexer"] = kept["indexer"]
