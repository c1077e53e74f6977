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
        ("env PGPASSWORD=abc123 psql", "abc123"),
        ("env HFTOKEN=abc123 python serve.py", "abc123"),
        ("env DB_PASS=abc123 python serve.py", "abc123"),
        ("train --wandb-key abc123", "abc123"),
        ("serve --private-key abc123", "abc123"),
        ("serve --accessToken abc123", "abc123"),
        ("serve --api-keys abc123 def456 --port 1", "abc123"),
        ("serve --api-keys abc123 def456 --port 1", "def456"),
        ("serve --api-tokens abc123", "abc123"),
        ("curl -u me:hunter2 host", "hunter2"),
        ("curl -sSu 'me too:hunter2' host", "hunter2"),
        ("curl --proxy-user me:hunter2 host", "hunter2"),
        ("mysql -phunter2 db", "hunter2"),
        ("mysqldump -uroot -p'hunter two' db", "two"),
        ("mysql -P 3306 -e 'a; b' -phunter2", "hunter2"),
        ("redis-cli -a hunter2", "hunter2"),
        ("sshpass -p hunter2 ssh host", "hunter2"),
        ("""serve --config '{"api_key":"abc123"}'""", "abc123"),
        ("""serve --config {"token": "abc123"}""", "abc123"),
        ("""serve --config '{"token": "abc 123", "n": 1}'""", "123"),
        ('serve --config "{\\"api_key\\":\\"abc 123\\"}"', "123"),
        ("""serve --config {"max_tokens": 5, "api_keys": ["abc", "def456"]}""", "def456"),
        ("""run ["--token","abc123"]""", "abc123"),
        ("run --password -abc123", "abc123"),
        ("run --use-auth --api-key -abc123", "abc123"),
        ("run --password 'my hunter2'", "hunter2"),
        ("run --password my hunter2 --port 1", "hunter2"),
        ("curl --header=X-Api-Key:abc123 host", "abc123"),
        ("curl --header=Authorization:Basic abc123", "abc123"),
        ("curl --header=Authorization: Bearer abc123", "abc123"),
        ("bash -c 'serve --api-key abc123' --port 1", "abc123"),
        ("PASSWORD=a' 'hunter2 run", "hunter2"),
        ("run https://me:p@hunter2@host/path", "hunter2"),
        ("serve --max-tokens 128 --hf-token=abc123", "abc123"),
        ("env TOKENIZERS_PARALLELISM=false HF_TOKEN=123456 serve", "123456"),
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
        "env TOKENIZERS_PARALLELISM=false vllm serve m --skip-tokenizer-init --tokenizer-mode auto",
        "vllm serve m --kv-cache-dtype fp8 --max-token-len=128 --host 0.0.0.0:8000",
        """vllm serve m --speculative-config '{"num_speculative_tokens": 5, "method": "eagle"}'""",
        "python -u bench.py -p 8000 --num-tokens 10 sub-command",
    ],
)
def test_an_ordinary_command_line_stays_as_it_is(command):
    assert redacted_command(command) == command


def test_what_stands_before_and_after_a_secret_stays():
    command = "env HF_TOKEN=abc python serve.py --api-key def --port 1"
    expected = "env HF_TOKEN=<redacted> python serve.py --api-key <redacted> --port 1"
    assert redacted_command(command) == expected
    assert redacted_command("run https://me:pw@host/x?sig=1") == (
        "run https://<redacted>@host/x?<redacted>"
    )


def test_long_command_lines_take_no_long_time():
    for words in ("x" * 100_000, "key-" * 25_000, "'\"" * 20_000, "--token " * 10_000):
        redacted_command(words)


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
