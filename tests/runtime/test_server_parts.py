"""What the server is made of: flags, words, stop strings, and what differs between starts."""

import socket
from dataclasses import fields
from statistics import fmean, stdev
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instrumented_runtime.config import EngineConfig
from instrumented_runtime.costs import Costs
from instrumented_runtime.server.options import flag_of, options_of
from instrumented_runtime.server.serving import bound, run
from instrumented_runtime.server.start_noise import StartNoise
from instrumented_runtime.server.stop_strings import StopStrings
from instrumented_runtime.server.tokenizer import text_of, tokens_of

# What a flag may be given that is not its default.
OTHERS = {
    "policy": "event-wait",
    "speculative_tokens": 2,
    "max_running": 3,
    "chunk_tokens": 99,
    "mix_decode": True,
    "page_size": 16,
    "max_tokens": 77,
    "num_pages": 40,
    "min_free_slots": 2,
    "delay_rule": "free-slots",
    "compressor_overlap": False,
    "side_streams": 3,
    "plan_writer": "staged",
    "draft_miss_share": 0.5,
    "draft_miss_spread": 0.1,
    "needs_cpu_seq_lens": True,
    "is_checked": True,
    "has_tensors": True,
    "pipeline_parallel_size": 2,
    "seed": 9,
}


def test_every_field_of_the_engine_is_a_flag():
    assert set(OTHERS) == {part.name for part in fields(EngineConfig)}
    line = []
    for name, value in OTHERS.items():
        flag = flag_of(name)
        if isinstance(value, bool):
            line.append(flag if value else flag.replace("--", "--no-"))
        else:
            line += [flag, str(value)]
    assert options_of(line).engine == EngineConfig(**OTHERS)
    assert options_of([]).engine == EngineConfig(has_tensors=False)
    assert options_of(["--device", "torch"]).engine == EngineConfig()


def test_seed_noise_and_device_reach_the_device_that_is_modelled():
    options = options_of(["--seed", "3", "--start-noise", "0", "--rocm", "10"])
    device = options.virtual
    assert (device.seed, device.rocm, device.tensors) == (3, "10", False)
    assert dict(device.host_costs_ns) == dict(Costs().host_ns)
    # A plan of others makes kernels touch what is not theirs, which takes tensors to see.
    assert options_of(["--plan-writer", "direct"]).virtual.tensors
    noisy = options_of(["--start-noise", "0.1", "--start-seed", "4"])
    assert noisy.noise == StartNoise.drawn(0.1, 4)
    prepare_ns = round(Costs().host_ns["prepare"] * noisy.noise.host_factor)
    assert noisy.virtual.host_costs_ns["prepare"] == prepare_ns
    assert noisy.costs.device_scale == Costs().device_scale * noisy.noise.device_factor


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--policy nope", "policy: 'nope' is not allowed; give one of host-sync, event-wait"),
        ("--plan-writer x", "one of direct, synced, staged"),
        ("--max-running 0", "max_running: 0 is not allowed"),
        ("--max-running 65537", "--max-running: 65537 is not allowed; give at most 65536"),
        ("--max-running x", "invalid int value: 'x'"),
        ("--max-run 3", "unrecognized arguments: --max-run"),
        ("--rocm 6", "invalid choice: '6'"),
        ("--port 99999", "--port: 99999"),
        ("--pace 0", "--pace: 0.0"),
        ("--pace 2 --device torch", "the wall's"),
        ("--grace-s -1", "--grace-s: -1.0"),
        ("--start-noise 2", "start-noise: 2.0"),
        ("--kernel-jitter 1", "kernel_jitter: 1.0"),
    ],
)
def test_a_wrong_flag_is_one_sentence_and_exit_status_2(line, says, capsys):
    with pytest.raises(SystemExit) as caught:
        options_of(line.split())
    written = capsys.readouterr()
    assert (caught.value.code, written.out) == (2, "")
    assert says in written.err
    assert written.err.count("\n") == 1


def test_a_port_that_is_taken_is_said_in_one_sentence(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert run(options_of(["--port", str(port)])) == 2
    assert capsys.readouterr().err == (
        f"127.0.0.1:{port}: cannot be listened on (Address already in use)\n"
    )


@pytest.mark.parametrize("pages", [10**17, 10**20])  # no address space holds the first
def test_an_engine_that_fits_into_no_memory_is_one_sentence(pages, capsys):
    assert run(options_of(["--port", "0", "--num-pages", str(pages)])) == 2
    err = capsys.readouterr().err
    assert err.startswith("the engine cannot start: it does not fit into memory")
    assert err.count("\n") == 1


@pytest.mark.parametrize(("host", "warns"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_a_server_that_others_can_reach_warns(host, warns, capsys):
    bound(options_of(["--host", host, "--port", "0"])).close()
    assert ("there is no password" in capsys.readouterr().err) == warns


def test_words_are_tokens_and_those_of_answers_are_their_own():
    assert tokens_of(" w0  w511\nw17 ") == (0, 511, 17)
    others = ("w512", "w01", "w", "W1", "hello")
    assert tokens_of(" ".join(others)) == tuple(crc32(one.encode()) % 512 for one in others)
    assert tokens_of("\n ") == ()
    assert tokens_of(text_of((4, 2), is_first=True) + text_of((9,), is_first=False)) == (4, 2, 9)


@given(
    chunks=st.lists(st.text("ab", max_size=4), max_size=8),
    stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
)
def test_an_answer_stops_as_if_it_came_letter_by_letter(chunks, stops):
    text = "".join(chunks)
    expected = text
    for length in range(1, len(text) + 1):
        ended = [one for one in stops if text[:length].endswith(one)]
        if ended:
            expected = text[: length - max(map(len, ended))]
            break
    watch, shown, is_stopped = StopStrings(stops), "", False
    for chunk in chunks:
        if not is_stopped:
            new, is_stopped = watch.feed(chunk)
            shown += new
    if not is_stopped:
        shown += watch.rest()
    assert shown == expected


def test_starts_differ_by_a_share_of_mean_one_drawn_from_their_seeds():
    assert StartNoise.drawn(0.02, 7) == StartNoise.drawn(0.02, 7)
    starts = [StartNoise.drawn(0.02, seed) for seed in range(4_000)]
    for name in ("device_factor", "host_factor"):
        factors = [getattr(one, name) for one in starts]
        # Five standard errors: 0.02 ÷ √4000 of the mean, 0.02 ÷ √8000 of the deviation.
        assert abs(fmean(factors) - 1) < 5 * 0.02 / 4_000**0.5
        assert abs(stdev(factors) - 0.02) < 5 * 0.02 / 8_000**0.5
    none = StartNoise.drawn(0, 3)
    assert (none.device_factor, none.host_factor) == (1.0, 1.0)
    assert none.applied(Costs()) == Costs()
