"""The server on a GPU: the same answers, on the wall's clock, and windows of PyTorch's profiler."""

import gzip
import json
import time

from real_gpu import gpu
from server_runs import server

SMALL = ("--max-running", "2", "--max-tokens", "256", "--page-size", "16")


@gpu
def test_a_gpu_serves_the_same_tokens_and_its_windows_are_kineto_traces(tmp_path):
    asked = {"prompt": [3, 1, 4, 1, 5], "max_tokens": 40}
    with server(*SMALL) as model:
        expected = model.complete(**asked).json()["choices"][0]["text"]
    with server("--device", "torch", *SMALL) as running:
        info = running.get("/server_info").json()
        assert (info["clock"], info["is_model"]) == ("wall", False)
        assert running.complete(**asked).json()["choices"][0]["text"] == expected
        assert running.post("/virtual_clock", {"hold_below": 1}).status_code == 404
        assert running.complete("a", 1, arrival_ns=5).status_code == 400
        names = []
        for _ in range(2):
            running.post("/start_profile", {"output_dir": str(tmp_path)}).raise_for_status()
            said = running.complete(**asked).json()
            assert said["choices"][0]["text"] == expected
            names += running.post("/stop_profile").raise_for_status().json()["files"]
        stamps = said["tracekit"]
        assert stamps["clock"] == "wall"
        assert stamps["arrival_ns"] < stamps["token_ns"][0] < stamps["token_ns"][-1]
        assert stamps["token_ns"][-1] < time.perf_counter_ns()
    assert [name.rpartition("_")[2] for name in names] == ["1.trace.json.gz", "2.trace.json.gz"]
    for name in names:
        with gzip.open(name) as file:
            events = json.load(file)["traceEvents"]
        texts = [event.get("name", "") for event in events]
        assert sum("GraphLaunch" in text for text in texts) >= 3 * 39 / 6
        # Streams, buffers and graphs are older than the window.
        for word in ("stream", "buffer", "graph", "step"):
            assert any(text.startswith(f"tk1 {word} ") for text in texts), word
    # One trace each, and nothing half done.
    assert len(list(tmp_path.iterdir())) == 2
