"""A load generator that others wrote, from PyPI: NVIDIA's AIPerf, which needs no GPU."""

import json
import os
import subprocess
import venv

import pytest
from server_runs import server

REQUIREMENT = "aiperf==0.13.0"
REQUESTS, ANSWER_TOKENS = 24, 16
# It counts a prompt's tokens by a tokenizer, which has to be there: one whose tokens are bytes.
TOKENIZER = """
import sys
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

letters = sorted(pre_tokenizers.ByteLevel.alphabet())
numbers = {letter: number for number, letter in enumerate(letters)}
tokenizer = Tokenizer(models.BPE(vocab=numbers, merges=[]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="!", eos_token="!")
fast.save_pretrained(sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["chat", "completions"])
def test_aiperf_drives_the_server_and_counts_what_it_asked_for(aiperf, tmp_path, kind):
    flags = f"--endpoint-type {kind} --streaming --concurrency 6 --request-count {REQUESTS}"
    flags += f" --isl 60 --osl {ANSWER_TOKENS} --extra-inputs ignore_eos:true"
    flags += " --use-server-token-count --ui none --random-seed 1 -m tiny-decoder"
    program = [aiperf / "bin" / "aiperf", "profile", *flags.split()]
    program += ["--tokenizer", aiperf / "tokenizer", "--artifact-dir", tmp_path]
    environment = os.environ | {"HOME": str(tmp_path)}
    # At a pace of 1 what it measures by the wall is what the model takes.
    with server("--max-running", "4", "--max-tokens", "2048", "--pace", "1") as running:
        before = running.get("/server_info").json()
        run = subprocess.run(
            [*program, "--url", running.url], env=environment, capture_output=True, text=True
        )
        assert run.returncode == 0, run.stdout[-2000:]
        info = running.get("/server_info").json()
    found = json.loads((tmp_path / "profile_export_aiperf.json").read_text())
    assert found["request_count"]["avg"] == REQUESTS
    assert not found.get("error_summary")
    lengths = found["output_sequence_length"]
    assert (lengths["min"], lengths["max"]) == (ANSWER_TOKENS, ANSWER_TOKENS)
    assert (info["num_running"], info["num_waiting"]) == (0, 0)
    # One token of each comes from its prefill.
    verified = info["num_verified_tokens"] - before["num_verified_tokens"]
    assert verified >= REQUESTS * (ANSWER_TOKENS - 1)
    # A verify of one request takes 8.6 ms; 15 tokens take at least 3 of at most 6.
    assert found["request_latency"]["min"] >= 3 * 8.5


@pytest.fixture(scope="module")
def aiperf(tmp_path_factory):
    """Install it into an environment of its own: it needs other versions than we do."""
    folder = tmp_path_factory.mktemp("aiperf")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", REQUIREMENT], check=True)
    subprocess.run([python, "-c", TOKENIZER, folder / "tokenizer"], check=True)
    return folder
