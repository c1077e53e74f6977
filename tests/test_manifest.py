"""Secrets in command lines and environments never leave the trace file."""

import pytest

from tracekit.manifest import allowed_environment, redacted_command


@pytest.mark.parametrize(
    ("command", "secret"),
    [
        ("serve --api-key abc123 --port 1", "abc123"),
        ("serve --api-key=abc123", "abc123"),
        ("serve --hf-token abc123", "abc123"),
        ("env HF_TOKEN=abc123 python serve.py", "abc123"),
        ("env OPENAI_API_KEY='abc 123' python serve.py", "abc"),
        ("curl -H 'Authorization: Bearer abc123' host", "abc123"),
        ("curl -H 'X-Api-Key: abc123' host", "abc123"),
        ("run --password hunter2", "hunter2"),
        ("run https://user:hunter2@host/path", "hunter2"),
        ("run https://host/path?sig=abc123&x=1", "abc123"),
        ("run hf_abcdefghijklmnop", "abcdefghijklmnop"),
        ("run --model x sk-abcdefghijklmnop", "abcdefghijklmnop"),
    ],
)
def test_the_value_of_a_secret_is_replaced(command, secret):
    assert secret not in redacted_command(command)


@pytest.mark.parametrize(
    "command",
    [
        "python -m sglang.launch_server --model-path meta/Llama-3 --tp 8 --max-new-tokens 128",
        "vllm serve m --tokenizer t --max-num-batched-tokens 8192",
        "./bin/tile_example_batched_gemm -m=128 -k=128",
    ],
)
def test_an_ordinary_command_line_stays_as_it_is(command):
    assert redacted_command(command) == command


def test_only_listed_variables_with_plain_values_are_kept():
    environment = {
        "ROCPROF_KERNEL_TRACE": "1",
        "GPU_MAX_HW_QUEUES": "4",
        "RANK": "3",
        "HF_TOKEN": "abc",
        "HOME": "/home/someone",
        "HIP_VISIBLE_DEVICES": "0 && curl evil",
    }
    assert allowed_environment(environment) == {
        "GPU_MAX_HW_QUEUES": "4",
        "RANK": "3",
        "ROCPROF_KERNEL_TRACE": "1",
    }
