"""Which kernels are collectives, and of what sort: one list of names."""

import re

import polars as pl

# First match wins, on names of kernels and on what PyTorch calls a collective (`allreduce`,
# `_allgather_base`). NCCL and RCCL name kernels `ncclKernel_AllReduce_RING_LL_Sum_float` (to 2.18)
# and `ncclDevKernel_AllReduce_Sum_f32_RING_LL`; RCCL and unrolled builds hide the sort
# (`ncclDevKernel_Generic`). Kernels of servers: `cross_device_reduce_1stage` (vLLM, SGLang, AITER),
# `allreduce_prototype_twoshot` (quick reduce), `allreduce_fusion_kernel` (AITER, FlashInfer),
# `one_shot_all_reduce_kernel` (PyTorch symmetric memory), `deep_ep::` (DeepEP).
_SORTS = tuple(
    (re.compile(pattern, re.IGNORECASE), sort)
    for pattern, sort in (
        # Inductor names a kernel after the operators around it; it is no collective itself.
        (r"^triton_[a-z]+_fused", None),
        (r"reduce_?scatter", "reduce-scatter"),
        (r"all_?reduce|cross_device_reduce", "all-reduce"),
        (r"all_?gather", "all-gather"),
        (r"all_?to_?all|deep_ep::", "all-to-all"),
        (r"(nccl|rccl)\w*broadcast|^_?broadcast", "broadcast"),
        (r"(nccl|rccl)\w*sendrecv|^(send|recv)$", "send-recv"),
        (r"(nccl|rccl)\w*kernel\w*_reduce", "reduce"),
        (r"^(nccl|rccl)\w*kernel", "other"),
    )
)
SORTS = tuple(dict.fromkeys(sort for _, sort in _SORTS if sort is not None))


def collective_sort(name: str) -> str | None:
    """Return what a collective does by its kernel's name, None for a kernel that is none."""
    return next((sort for pattern, sort in _SORTS if pattern.search(name)), None)


def collective_sorts(names: pl.Series) -> pl.Series:
    """Return `collective_sort` of each name, worked out once per distinct name."""
    texts = names.cast(pl.String)
    sorts = {name: collective_sort(name) for name in texts.unique().drop_nulls()}
    return texts.replace_strict(sorts, default=None, return_dtype=pl.Enum(SORTS))


# Bytes of an element by PyTorch's name of its type.
_SIZES = {
    "double": 8,
    "long": 8,
    "float": 4,
    "int": 4,
    "half": 2,
    "bfloat16": 2,
    "short": 2,
    "byte": 1,
    "char": 1,
    "bool": 1,
}


def element_bytes(dtype: pl.Expr) -> pl.Expr:
    """Return the bytes of an element; 1 for eight-bit floats, null for a type not known."""
    name = dtype.str.to_lowercase()
    known = name.replace_strict(_SIZES, default=None, return_dtype=pl.Int64)
    return pl.when(name.str.starts_with("float8")).then(1).otherwise(known)
