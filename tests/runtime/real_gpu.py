"""Marks tests that need a GPU which torch sees; elsewhere they are skipped with the reason."""

import importlib.util

import pytest


def _what_is_missing():
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    import torch

    return "" if torch.cuda.is_available() else f"torch {torch.__version__} sees no GPU"


MISSING = _what_is_missing()


def gpu(test):
    return pytest.mark.gpu(pytest.mark.skipif(bool(MISSING), reason=MISSING)(test))
