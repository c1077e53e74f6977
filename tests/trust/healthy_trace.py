"""Tables, as aligned text, of a trace in which nothing is wrong."""

OPS = """
    op_id  kind    process_id  device_id  stream_id  start_ns  end_ns  call_id  correlation_id
    0      kernel  0           0          0          100       200     0        10
    1      kernel  0           0          0          300       400     1        11"""
CALLS = """
    call_id  process_id  thread_id  name             kind    start_ns  end_ns  correlation_id
    0        0           7          hipLaunchKernel  launch  50        60      10
    1        0           7          hipLaunchKernel  launch  250       260     11"""
RANGES = "range_id kind process_id thread_id text start_ns end_ns\n 0 marker 0 7 step 0 500"
PROCESSES = "process_id\n 0"
