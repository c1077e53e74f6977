import polars as pl

from tracekit.analyses.critical_path.lanes import in_order

COLUMNS = {
    "process_id": pl.Int32,
    "device_id": pl.Int32,
    "lane_stream": pl.Int32,
    "queue_id": pl.Int32,
    "graph_launch_id": pl.Int64,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
}


def test_lanes_are_of_one_process_device_and_stream_or_else_queue():
    nodes = pl.DataFrame(
        [
            (0, 0, 1, 7, None, 0, 10),
            (0, 1, 1, 7, None, 1, 5),
            (0, 0, 1, 8, None, 12, 14),
            (0, 1, 1, 7, None, 13, 15),
            (1, 0, 1, 7, None, 20, 22),
            (0, 0, None, 7, None, 30, 31),
            (0, 0, None, None, None, 32, 33),
            (0, 0, None, 7, None, 40, 41),
            (0, 0, 1, 7, None, 41, 43),
            (0, 0, None, None, None, 50, 51),
        ],
        COLUMNS,
        orient="row",
    )
    found = in_order(nodes)
    assert found["order_at"].to_list() == [None, None, 0, 1, None, None, None, 5, 2, None]
    assert found["order_ns"].to_list() == [None, None, 10, 5, None, None, None, 31, 14, None]
    assert not found["is_within"].any()


def test_a_graphs_ops_follow_each_other_on_their_device_and_the_first_its_lane():
    nodes = pl.DataFrame(
        [
            (0, 0, 1, None, None, 0, 9),
            (0, 0, 1, None, 5, 10, 20),
            (0, 1, 1, None, 5, 11, 12),
            (0, 0, 1, None, 5, 15, 18),
            (0, 0, 1, None, 6, 30, 31),
            (0, 0, 1, None, 5, 32, 33),
        ],
        COLUMNS,
        orient="row",
    )
    found = in_order(nodes)
    # The fourth starts beside the second, which still runs; the last follows what ended last.
    assert found["order_at"].to_list() == [None, 0, None, 1, 1, 1]
    assert found["order_ns"].to_list() == [None, 9, None, 15, 20, 20]
    assert found["is_within"].to_list() == [False, False, False, True, False, True]
