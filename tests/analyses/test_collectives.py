"""collectives on tables written by hand, against brute force, and on real traces."""

import gzip
import json
from collections import Counter, defaultdict
from decimal import Decimal
from statistics import median

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.analyses import call_with_tables
from tracekit.analyses.collectives import ANALYSIS, COLLECTIVES, MIN_MATCHED, caveats, collectives
from tracekit.analyses.collectives.kernels import collective_sort
from tracekit.formats import read_trace
from tracekit.pipeline import analyse
from tracekit.tables.catalog import TABLES
from tracekit.tables.identity import WINDOWS

# Two files: rank 0 waits in all but one all-reduce; rank 1 is last in four of five.
FILES = """
process_id rank node source
0          0    -    a.json
1          1    -    b.json
"""
ONE_FILE = FILES.replace("b.json", "a.json")
RANK_0 = [(0, 50), (100, 140), (200, 230), (300, 320), (400, 410)]
RANK_1 = [(9040, 9050), (9130, 9140), (9220, 9230), (9310, 9320), (9380, 9410)]
NAME = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def ops_of(*ranks, name=NAME):
    """One kernel per interval; process, device and stream are the rank's number."""
    rows = [
        (f"{rank}{i}", "kernel", name, rank, rank, rank, start, end)
        for rank, intervals in enumerate(ranks)
        for i, (start, end) in enumerate(intervals)
    ]
    header = "op_id kind name process_id device_id stream_id start_ns end_ns"
    return "\n".join(
        [header, *(" ".join(map(str, row)) for row in sorted(rows, key=lambda r: r[6]))]
    )


def windows_of(ops):
    spans = ops.group_by("device_id").agg(pl.min("start_ns"), pl.max("end_ns") + 1).rows()
    return pl.DataFrame([*spans, (None, None, None)], WINDOWS.schema, orient="row")


def test_on_several_clocks_the_shortest_kernel_came_last_and_the_others_waited(run, check):
    found = run(collectives, ops=ops_of(RANK_0, RANK_1), processes=FILES)
    # Lengths 50 40 30 20 10 against 10 10 10 10 30: waits 40 30 20 10 by rank 0, then 20 by rank 1.
    check(
        found,
        COLLECTIVES,
        f"""
        collective name   group matched_by ops ops_unmatched matched ranks duration_median_ns measured_by skew_median_ns skew_p90_ns waiting_ns waiting_share straggler_rank straggler_process_id straggler_last
        all-reduce {NAME} -     name-order 10  0             5       2     15                 durations   20             36          120        {120 / 220} 1              1                    4
        """,
    )


def test_on_one_clock_starts_say_who_came_last_even_if_its_kernel_is_not_the_shortest(run, check):
    # Rank 1 starts 5 later each time and is slow to end.
    early = [(100 * i, 100 * i + 50) for i in range(5)]
    late = [(100 * i + 5, 100 * i + 60) for i in range(5)]
    found = run(collectives, ops=ops_of(early, late), processes=ONE_FILE)
    check(
        found,
        COLLECTIVES,
        """
        measured_by skew_median_ns skew_p90_ns waiting_ns straggler_rank straggler_last
        one-clock   5              5           25         1              5
        """,
    )
    # The same on two clocks: lengths 50 against 55, and the other rank seems to be last.
    found = run(collectives, ops=ops_of(early, late), processes=FILES)
    check(
        found,
        COLLECTIVES,
        """
        measured_by skew_median_ns waiting_ns straggler_rank
        durations   5              25         0
        """,
    )


def test_ranks_of_one_machine_have_one_clock_unless_a_collective_does_not_overlap(run):
    one_machine = FILES.replace(" -  ", " n  ")
    wide = [(0, 50), (100, 140), (200, 230), (300, 321), (400, 421)]
    apart = [(start + 30, end + 30) for start, end in wide[:-1]] + [(422, 430)]
    found = run(collectives, ops=ops_of(wide, wide), processes=one_machine)
    assert found["measured_by"].to_list() == ["one-clock"]
    found = run(collectives, ops=ops_of(wide, apart), processes=one_machine)
    assert found["measured_by"].to_list() == ["durations"]


def test_two_ranks_that_are_last_at_once_make_neither_a_straggler(run, check):
    long, short = (
        [(100 * i, 100 * i + 90) for i in range(5)],
        [(100 * i, 100 * i + 20) for i in range(5)],
    )
    found = run(
        collectives,
        ops=ops_of(long, short, long, short),
        processes=FILES + "2 2 - c.json\n3 3 - d.json",
    )
    # Ranks 0 and 2 wait 70 each, five times.
    check(
        found,
        COLLECTIVES,
        """
        matched ranks skew_median_ns waiting_ns straggler_rank straggler_last
        5       4     70             700        -              -
        """,
    )


def test_ranks_with_different_counts_are_not_matched_and_nothing_is_claimed(run, check):
    found = run(collectives, ops=ops_of(RANK_0, RANK_1[1:]), processes=FILES)
    check(
        found,
        COLLECTIVES,
        """
        ops ops_unmatched matched ranks measured_by skew_median_ns waiting_ns straggler_rank
        9   9             0       2     -           -              -          -
        """,
    )


def test_below_the_minimum_lengths_are_shown_and_nobody_is_blamed(run, check):
    assert MIN_MATCHED == 5
    found = run(collectives, ops=ops_of(RANK_0[:4], RANK_1[:4]), processes=FILES)
    check(
        found,
        COLLECTIVES,
        """
        matched duration_median_ns skew_median_ns skew_p90_ns waiting_ns waiting_share straggler_rank straggler_last
        4       15                 -              -           -          -             -              -
        """,
    )


def test_of_a_broadcast_nothing_is_claimed_since_its_root_waits_for_nobody(run, check):
    name = "ncclDevKernel_Broadcast_RING_LL"
    found = run(collectives, ops=ops_of(RANK_0, RANK_1, name=name), processes=FILES)
    check(
        found,
        COLLECTIVES,
        """
        collective matched skew_median_ns waiting_ns straggler_rank
        broadcast  5       -              -          -
        """,
    )


def test_messages_match_by_group_and_number_and_sort_by_size(run, check):
    # Rank 1 runs group 7 before group 8, rank 0 the other way round; numbers tell which is which.
    numbers = [3, 1, 2, 5, 4]
    messages = "op_id process_id collective dtype in_elements out_elements group_size group group_ranks sequence\n"
    for rank, order in ((0, range(5)), (1, (1, 0, 2, 4, 3))):
        messages += "".join(
            f"{rank}{place} {rank} _allgather_base BFloat16 {1000 + rank} 2049 2 7 [0,1] {numbers[i]}\n"
            for place, i in enumerate(order)
        )
    found = run(collectives, ops=ops_of(RANK_0, RANK_1), processes=FILES, messages=messages)
    # Rank 1 ran the second of rank 0's first and so on: lengths 50-10 40-10 30-10 20-30 10-10.
    check(
        found,
        COLLECTIVES,
        """
        collective name group   size_class_bytes matched_by matched group_size skew_median_ns waiting_ns straggler_rank straggler_last
        all-gather -    7~[0,1] 8192             sequence   5       2          20             100        1              3
        """,
    )


def test_without_a_number_messages_match_by_their_order_among_those_of_one_size(run, check):
    # Each rank runs one small message at another place among the five large ones.
    messages = (
        "op_id process_id collective dtype in_elements out_elements group_size group group_ranks\n"
    )
    ranks = [sorted([*RANK_0, (90, 93)]), sorted([*RANK_1, (9390 + 30, 9431)])]
    for rank, small_at in ((0, 1), (1, 5)):
        messages += "".join(
            f"{rank}{i} {rank} allreduce Float {4 if i == small_at else 256} 4 2 7 [0,1]\n"
            for i in range(6)
        )
    found = run(collectives, ops=ops_of(*ranks), processes=FILES, messages=messages)
    check(
        found,
        COLLECTIVES,
        """
        size_class_bytes matched_by  matched skew_median_ns waiting_ns straggler_rank straggler_last
        1024             group-order 5       20             120        1              4
        16               group-order 1       -              -          -              -
        """,
    )


def test_a_rank_of_the_group_that_lacks_a_number_leaves_it_unmatched(run):
    messages = "op_id process_id collective group group_ranks sequence\n"
    messages += "".join(f"0{i} 0 allreduce 7 [0,1] {i}\n" for i in range(5))
    messages += "".join(f"1{i} 1 allreduce 7 [0,1] {i + 1}\n" for i in range(5))
    found = run(collectives, ops=ops_of(RANK_0, RANK_1), processes=FILES, messages=messages)
    assert found.select("matched", "ops_unmatched").rows() == [(4, 2)]


def test_order_counts_only_if_every_rank_of_the_group_has_the_collective(run):
    # Rank 2 is in the group, but what it ran was something else.
    messages = "op_id process_id collective group group_ranks\n"
    for rank, sort in ((0, "allreduce"), (1, "allreduce"), (2, "_allgather_base")):
        messages += "".join(f"{rank}{i} {rank} {sort} 7 [0,1,2]\n" for i in range(5))
    found = run(
        collectives,
        ops=ops_of(RANK_0, RANK_1, RANK_1),
        processes=FILES + "2 2 - c.json",
        messages=messages,
    )
    assert found["matched"].to_list() == [0, 0]


def test_a_collective_that_a_window_cuts_on_one_rank_counts_on_none(frame):
    frames = {name: TABLES[name].empty() for name in ("streams", "messages")}
    frames["ops"] = frame("ops", ops_of([(-100, -60), *RANK_0], [(8910, 8920), *RANK_1]))
    frames["processes"] = frame("processes", FILES)
    # Device 1 is looked at from its second collective on, device 0 from its first.
    bounds = [(0, -200, 1000), (1, 9000, 9999), (None, None, None)]
    windows = pl.DataFrame(bounds, WINDOWS.schema, orient="row")
    found = collectives(**frames, windows=windows)
    assert found.select("ops", "ops_unmatched", "matched", "waiting_ns").rows() == [(11, 1, 5, 120)]


def test_streams_tell_collectives_of_one_name_apart(run):
    # Both ranks run the name on two streams, in another order in time.
    rows = "op_id kind name process_id device_id stream_id start_ns end_ns\n"
    for rank, shift in ((0, 0), (1, 1000)):
        for i in range(5):
            first, second = (100 * i, 100 * i + 50)
            on_a, on_b = (first, second) if rank == 0 else (second, first)
            length = 30 if rank == 0 else 25
            rows += f"{rank}{i}0 kernel {NAME} {rank} {rank} {2 * rank} {shift + on_a} {shift + on_a + length}\n"
            rows += f"{rank}{i}1 kernel {NAME} {rank} {rank} {2 * rank + 1} {shift + on_b} {shift + on_b + 10}\n"
    streams = "stream_id process_id handle\n0 0 5\n1 0 6\n2 1 5\n3 1 6"
    lines = rows.strip().splitlines()
    ordered = "\n".join([lines[0], *sorted(lines[1:], key=lambda line: int(line.split()[6]))])
    found = run(collectives, ops=ordered, processes=FILES, streams=streams)
    # Stream 5: 30 against 25, so 5 each; stream 6: 10 against 10. In order of time it would be 35.
    assert found.select("matched", "waiting_ns", "straggler_rank", "straggler_last").rows() == [
        (10, 25, 1, 5)
    ]


@pytest.mark.parametrize(
    ("name", "sort"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all-reduce"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long)", "all-reduce"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "reduce-scatter"),
        ("ncclDevKernel_AllGather_RING_LL", "all-gather"),
        ("ncclDevKernel_Broadcast_RING_LL", "broadcast"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL", "reduce"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)", "send-recv"),
        ("ncclDevKernel_Generic(ncclDevComm*, channelMasks, ncclWork*)", "other"),
        ("void vllm::cross_device_reduce_2stage<__hip_bfloat16, 8>(vllm::RankData*)", "all-reduce"),
        ("void aiter::allreduce_fusion_kernel_1stage<8>()", "all-reduce"),
        ("quickreduce::allreduce_prototype_twoshot<>", "all-reduce"),
        ("_allgather_base", "all-gather"),
        ("triton_poi_fused_all_reduce_wait_tensor_0", None),
        ("void at::native::reduce_kernel<512, 1>", None),
        ("void at::native::vectorized_elementwise_kernel<4, broadcast>", None),
    ],
)
def test_names_tell_collectives_from_other_kernels(name, sort):
    assert collective_sort(name) == sort


@st.composite
def recordings(draw):
    """Lengths of one or two sorts of collective on two to four ranks, each on a clock of its own."""
    ranks = draw(st.integers(2, 4))
    names = draw(st.sampled_from([[NAME], [NAME, "ncclDevKernel_AllGather_RING_LL"]]))
    order = draw(st.lists(st.sampled_from(names), max_size=12))
    lost = draw(st.sampled_from([None, None, *range(len(order))]))
    lengths = [[draw(st.integers(1, 6)) for _ in order] for _ in range(ranks)]
    return order, lengths, lost


@settings(max_examples=80, deadline=None)
@given(recordings())
def test_any_recording_gives_what_counting_by_hand_gives(recording):
    order, lengths, lost = recording
    ops, kept = [], defaultdict(list)
    for rank, of_rank in enumerate(lengths):
        for i, (name, length) in enumerate(zip(order, of_rank, strict=True)):
            if rank == 0 and i == lost:
                continue
            start = 1000 * rank + 10 * i
            ops.append((len(ops), "kernel", name, rank, rank, start, start + length))
            kept[name, rank].append(length)
    columns = ["op_id", "kind", "name", "process_id", "device_id", "start_ns", "end_ns"]
    frames = {name: TABLES[name].empty() for name in ("streams", "messages")}
    frames["ops"] = TABLES["ops"].conform(
        pl.DataFrame(ops, {c: TABLES["ops"].schema[c] for c in columns}, orient="row")
    )
    frames["processes"] = TABLES["processes"].conform(
        pl.DataFrame(
            {
                "process_id": range(len(lengths)),
                "rank": range(len(lengths)),
                "source": [f"{r}.json" for r in range(len(lengths))],
            }
        )
    )
    frames["windows"] = windows_of(frames["ops"])
    found = call_with_tables(collectives, frames)
    assert sorted(found["name"]) == sorted({name for name, _ in kept})
    for row in found.iter_rows(named=True):
        by_rank = [kept[row["name"], rank] for rank in range(len(lengths))]
        by_rank = [lengths for lengths in by_rank if lengths]
        is_matched = len({len(one) for one in by_rank}) == 1 and len(by_rank) > 1
        assert row["ops"] == sum(map(len, by_rank))
        assert row["matched"] == (len(by_rank[0]) if is_matched else 0)
        if row["matched"] < MIN_MATCHED:
            assert row["waiting_ns"] is row["straggler_rank"] is None
            continue
        each = list(zip(*by_rank, strict=True))
        waits = [[length - min(one) for length in one] for one in each]
        last = Counter(one.index(min(one)) for one in each if one.count(min(one)) == 1)
        top = [rank for rank, n in last.items() if n == max(last.values())]
        assert row["waiting_ns"] == sum(map(sum, waits))
        assert row["skew_median_ns"] == median(map(max, waits))
        assert row["straggler_rank"] == (top[0] if len(top) == 1 else None)
        assert row["straggler_last"] == (last[top[0]] if len(top) == 1 else None)


def all_reduces(path):
    """Counted from the file alone: {bytes: [{rank: (start, end)}]} of each all-reduce in order."""
    with gzip.open(path) as file:
        events = json.load(file, parse_float=Decimal)["traceEvents"]
    found = defaultdict(lambda: defaultdict(list))
    for event in sorted(events, key=lambda e: e.get("ts", 0)):
        args = event.get("args", {})
        if event.get("cat") == "kernel" and args.get("Collective name") == "allreduce":
            start = int(event["ts"] * 1000)
            found[args["In msg nelems"]][args["rank"]].append(
                (start, start + int(event["dur"] * 1000))
            )
    return [
        (size * 4, {rank: spans[i] for rank, spans in by_rank.items()})
        for size, by_rank in found.items()
        for i in range(3)
    ]


def test_four_ranks_of_a_real_machine_wait_for_the_rank_that_starts_last(real_traces):
    path = real_traces / "kineto" / "mi300x_4ranks_fused_nccl_only.json.gz"
    large = [spans for size, spans in all_reduces(path) if 2**24 < size <= 2**25]
    skews, last, waited = [], Counter(), 0
    for spans in large:
        latest = max(start for start, _ in spans.values())
        skews.append(latest - min(start for start, _ in spans.values()))
        last[max(spans, key=lambda rank: spans[rank][0])] += 1
        waited += sum(latest - start for start, _ in spans.values())
        # What the other way of measuring rests on: all end at about the same moment.
        ends = [end for _, end in spans.values()]
        assert max(ends) - min(ends) < 25_000
    trace = read_trace([path])
    (section,) = analyse(trace, only=["collectives"]).sections
    row = section.frame.row(0, named=True)
    assert row["measured_by"] == "one-clock"
    assert row["size_class_bytes"] == 2**25
    assert row["matched"] == len(large) == 9
    assert (row["straggler_rank"], row["straggler_last"]) == last.most_common(1)[0]
    assert row["skew_median_ns"] == median(skews)
    assert row["waiting_ns"] == waited
    # As if each rank were a file of its own: lengths blame the same rank, within the ends' spread.
    tables = {name: trace.table(name) for name in ("ops", "streams", "messages")}
    apart = trace.table("processes").with_columns(
        source=pl.format("{}.json", pl.col("process_id").cast(pl.String))
    )
    windows = windows_of(tables["ops"])
    other = collectives(**tables, processes=apart, windows=windows).row(0, named=True)
    assert other["measured_by"] == "durations"
    assert (other["straggler_rank"], other["straggler_last"]) == (row["straggler_rank"], 9)
    assert other["skew_median_ns"] == pytest.approx(row["skew_median_ns"], abs=25_000)
    assert other["waiting_ns"] == pytest.approx(waited, rel=0.01)


def test_two_real_files_are_matched_by_order_and_the_caveats_say_what_that_is_worth(real_traces):
    paths = [real_traces / "kineto" / f"sampled_rank{rank}of128.json.gz" for rank in (0, 1)]
    lengths = []
    for path in paths:
        with gzip.open(path) as file:
            events = json.load(file)["traceEvents"]
        kernels = [e for e in events if e.get("cat") == "kernel" and "SendRecv" in e["name"]]
        lengths.append([int(e["dur"] * 1000) for e in sorted(kernels, key=lambda e: e["ts"])])
    report = analyse(read_trace(paths), only=["collectives"])
    (row,) = report.sections[0].frame.rows(named=True)
    waits = [abs(a - b) for a, b in zip(*lengths, strict=True)]
    shorter = Counter(int(b < a) for a, b in zip(*lengths, strict=True))
    assert row["waiting_ns"] == sum(waits)
    assert row["skew_median_ns"] == median(waits)
    assert (row["straggler_rank"], row["straggler_last"]) == shorter.most_common(1)[0]
    codes = {note.code for note in report.notes}
    assert {"collectives.by-order", "collectives.unsure", "collectives.clocks"} <= codes


@pytest.mark.parametrize("name", ["a100_nccl_rank0of2", "mi300x_resnet_fsdp_rank0of8"])
def test_one_rank_of_a_real_job_shows_lengths_and_says_that_it_needs_the_others(real_traces, name):
    report = analyse(read_trace([real_traces / "kineto" / f"{name}.json.gz"]), only=["collectives"])
    assert report.sections[0].frame["matched"].sum() == 0
    assert (
        report.sections[0].frame["straggler_rank"].null_count() == report.sections[0].frame.height
    )
    assert "collectives.one-rank" in {note.code for note in report.notes}


def test_caveats_count_what_was_not_matched_and_which_ranks_are_missing(frame):
    frames = {
        "ops": frame("ops", ops_of(RANK_0, RANK_1)),
        "streams": TABLES["streams"].empty(),
        "processes": frame("processes", FILES),
        "messages": frame(
            "messages",
            "op_id process_id collective group group_ranks group_size sequence\n"
            + "\n".join(
                f"{rank}{i} {rank} allreduce 7 x 4 {i + rank}" for rank in (0, 1) for i in range(5)
            ),
        ),
    }
    counts = {note.code: note.count for note in caveats(**frames)}
    # Numbers 0 to 4 and 1 to 5: four are on both, two kernels are alone.
    assert counts == {
        "collectives.unmatched": 2,
        "collectives.clocks": 1,
        "collectives.ranks-missing": 8,
    }
    assert ANALYSIS.caveats is caveats
    assert caveats(**frames | {"ops": frames["ops"].clear()}) == []


def test_the_profiler_s_record_of_a_collective_becomes_its_message(tmp_path):
    said = {
        "Collective name": "allreduce",
        "In msg nelems": 10,
        "Out msg nelems": "20",
        "Group size": 2,
        "dtype": "Float",
        "Process Group Name": "3",
        "Process Group Ranks": "[0, 1]",
        "Seq": 41,
        "device": 0,
        "stream": 7,
        "correlation": 5,
    }
    kernel = {"ph": "X", "cat": "kernel", "name": NAME, "pid": 0, "tid": 7, "ts": 1, "dur": 2}
    odd = {"Collective name": 4, "Seq": "x", "Group size": None, "Process Group Ranks": [0, 1]}
    place = {"device": 0, "stream": 7}
    events = [
        kernel | {"args": said},
        kernel | {"ts": 5, "args": place | odd},
        kernel | {"ts": 9, "name": "gemm", "args": place},
    ]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    assert read_trace([path]).table("messages").rows() == [
        (0, 0, "allreduce", "Float", 10, 20, 2, "3", "[0, 1]", None, 41),
        (1, 0, "4", None, None, None, None, None, "[0, 1]", None, None),
    ]
