"""`forward-stream-scheduling` in SGLang as installed: its loop and FutureMap run for real."""

import pytest
from sources import changed_sglang

OVERLAP = "sglang.srt.managers.overlap_utils"
SCHEDULER = "sglang.srt.managers.scheduler"
NAME = "forward-stream-scheduling"

# One scheduler on a device that only says what is asked of it. Its loop is one step: a forward
# publishes lengths, the next batch resolves them, and the tail of a mixed one.
SERVER = """
from types import SimpleNamespace
import torch
import sglang.srt.managers.overlap_utils as overlap
import sglang.srt.managers.scheduler as module
from fake_streams import FakeDevice
import patches_here

torch.version.hip = "7.2.0"
module._is_hip = overlap._is_hip = True
parallel = SimpleNamespace(pp_size=1)
module.get_parallel = lambda: parallel
LENGTHS = torch.tensor([11, 12])


class Scheduler(module.Scheduler):
    def __init__(self, device, future_map, handle=2, **other):
        self.device, self.device_module = "cuda", device.module()
        self.fake, self.future_map = device, future_map
        self.forward_stream = device.stream_named("forward", 1)
        self.schedule_stream = device.stream_named("schedule", handle)
        self.enable_overlap, self.enable_pdmux, self.enable_overlap_mlx = True, False, False
        self.spec_algorithm = SimpleNamespace(is_none=lambda: False)
        self.server_args = SimpleNamespace(enable_pd_role_switch=False)
        self.disaggregation_mode = module.DisaggregationMode.NULL
        self.metrics_reporter = SimpleNamespace(start_scheduler_time_accounting=lambda: None)
        self.__dict__.update(other)

    def event_loop_overlap(self):
        rows = torch.tensor([1, 2])
        with self.device_module.StreamContext(self.forward_stream):
            self.future_map.publish(rows, LENGTHS)
        batch = SimpleNamespace(
            spec_info=SimpleNamespace(future_indices=rows), seq_lens=None, seq_lens_cpu=None,
            mix_running_indices=rows, out_cache_loc=torch.zeros(2, dtype=torch.int64),
            prefix_lens=[0, 0],
        )
        self.future_map.resolve_seq_lens_cpu(batch)
        self.lengths = batch.seq_lens.tolist()
        with self.device_module.StreamContext(self.forward_stream):
            self.forward_stream.wait_stream(self.schedule_stream)
            self.future_map.resolve_mixed_spec_tails(batch)
        self.tails = batch.seq_lens.tolist()
        self.ran_on = self.fake.current.name

    event_loop_normal = event_loop_pp = event_loop_pdmux = event_loop_overlap
    event_loop_overlap_disagg_decode = event_loop_overlap


def start(needs_cpu=False, **other):
    device = FakeDevice()
    torch.get_device_module = lambda *_device: device.module()
    future_map = overlap.FutureMap(
        torch.device("cpu"), SimpleNamespace(is_some=lambda: True, is_ngram=lambda: False),
        SimpleNamespace(req_to_token=torch.zeros((4, 64), dtype=torch.int64)),
        needs_cpu_seq_lens=needs_cpu,
    )
    scheduler = Scheduler(device, future_map, **other)
    scheduler.run_event_loop()
    return scheduler
"""

FORWARD = ["forward", "forward"]


def test_the_loop_runs_on_the_forward_stream_and_waits_only_there(run):
    program = f"""
        before = start()
        reports = patches_here.install("{NAME}")
        installed = dict(reports)
        after = start()
        result = [
            [before.ran_on, before.lengths, before.tails, before.fake.log],
            [after.ran_on, after.lengths, after.tails, after.fake.log],
            [installed["{NAME}"][0], reports["{NAME}"][0]],
        ]
    """
    before, after, states = run(SERVER, program, modules=[SCHEDULER])
    assert before[0] == "schedule"
    assert [entry for entry in before[3] if entry[0] == "host-sync"] == [
        ["host-sync", "forward"]
    ] * 2
    assert after[0] == "forward"
    # Once, so that what was queued before the loop stays in order; then on one stream only.
    assert after[3][0] == ["wait", "forward", "schedule"]
    assert after[3][1:] == [["wait", *FORWARD]] * 3
    # Both read what was published; a tail has one more token than that.
    assert before[1:3] == after[1:3] == [[11, 12], [12, 13]]
    assert states == ["waiting", "applied"]


def test_a_stream_that_is_the_forwards_by_chance_is_drawn_again_and_then_given_up(run):
    program = f"""
        apart = start(handle=1)
        patches_here.install("{NAME}")
        together = start(handle=1)
        result = [
            [apart.schedule_stream.name, apart.fake.drawn],
            [together.schedule_stream is together.forward_stream, together.fake.drawn],
        ]
    """
    apart, together = run(SERVER, program, modules=[SCHEDULER])
    assert apart == ["drawn-1", 1]
    assert together == [True, 1]


@pytest.mark.parametrize(
    ("change", "state", "reason"),
    [
        ("enable_overlap=False", "not-needed", "overlap scheduling is off"),
        ("spec_algorithm=SimpleNamespace(is_none=lambda: True)", "not-needed", "speculation"),
        ("disaggregation_mode=module.DisaggregationMode.DECODE", "refused", "plain overlap loop"),
        ("enable_pdmux=True", "refused", "plain overlap loop"),
        ("needs_cpu=True", "refused", "reads lengths on the host"),
    ],
)
def test_where_it_does_not_pay_or_is_not_known_to_be_right_nothing_changes(
    change, state, reason, run
):
    program = f"""
        reports = patches_here.install("{NAME}")
        ran_on = start({change}).ran_on
        result = [reports["{NAME}"], ran_on, overlap._is_hip]
    """
    (found, why), ran_on, is_hip = run(SERVER, program, modules=[SCHEDULER])
    assert (found, ran_on, is_hip) == (state, "schedule", True)
    assert reason in why


def test_a_scheduler_of_another_shape_is_left_alone(run):
    program = f"""
        reports = patches_here.install("{NAME}")
        try:
            start(server_args=SimpleNamespace())
        except AttributeError as problem:
            result = [reports["{NAME}"], str(problem), overlap._is_hip]
    """
    (state, reason), _, is_hip = run(SERVER, program, modules=[SCHEDULER])
    assert (state, is_hip) == ("refused", True)
    assert "enable_pd_role_switch" in reason


def test_with_pipeline_parallelism_it_is_refused(run):
    program = f"""
        reports = patches_here.install("{NAME}")
        parallel.pp_size = 2
        ran_on = start().ran_on
        result = [ran_on, reports]
    """
    ran_on, reports = run(SERVER, program, modules=[SCHEDULER])
    assert ran_on == "schedule"
    assert reports[NAME][0] == "refused"


def test_elsewhere_than_on_hip_it_is_not_needed(run):
    program = f"""
        torch.version.hip = None
        result = patches_here.install("{NAME}")
    """
    assert run(SERVER, program, modules=[SCHEDULER])[NAME][0] == "not-needed"


@pytest.mark.parametrize(
    ("module", "old", "new", "state", "reason"),
    [
        (
            SCHEDULER,
            "self.schedule_stream = allocate_distinct",
            "self.schedule_stream = self.forward_stream\n                allocate_distinct",
            "not-needed",
            "already",
        ),
        (SCHEDULER, "StreamContext(self.schedule_stream)", "nullcontext()", "refused", "as known"),
        (SCHEDULER, "\ndef dispatch_event_loop(", "\ndef dispatch(", "refused", "dispatch_event"),
        (OVERLAP, "            if _is_hip:", "            if _is_hip or True:", "refused", "waits"),
        (
            OVERLAP,
            "self.publish_ready.synchronize()",
            "self.publish_ready.query()",
            "refused",
            "waits",
        ),
        (
            OVERLAP,
            "self._publish_fresh = True",
            "self._publish_fresh = _is_hip",
            "refused",
            "waits",
        ),
        (
            OVERLAP,
            "self._publish_fresh = True",
            "self.publish_ready.synchronize()",
            "refused",
            "blocks the host",
        ),
    ],
)
def test_another_source_is_refused_and_a_fixed_one_needs_nothing(
    module, old, new, state, reason, tmp_path, monkeypatch
):
    reports, changed = changed_sglang(
        NAME, (OVERLAP, SCHEDULER), {module: (old, new)}, tmp_path, monkeypatch
    )
    assert (reports[0], changed) == (state, [])
    assert reason in reports[1]


def test_the_unchanged_source_is_what_the_patch_is_for(tmp_path, monkeypatch):
    reports, changed = changed_sglang(NAME, (OVERLAP, SCHEDULER), {}, tmp_path, monkeypatch)
    assert (reports[0], changed) == ("waiting", ["dispatch_event_loop"])
