"""Prefill attention by a plan of the host: the plan, its way to the device, the kernels."""
