"""A server whose workers launch work on the stand-in for HIP, in processes of their own.

`toy_gpu_server.py FOLDER STEPS METHOD WORKERS`: each worker does STEPS steps, 0 for as many as it
can, writes in FOLDER a byte for each, and says so on standard output when it begins.
"""

import ctypes
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

KERNELS_PER_STEP = 40


def roctx():
    """Return the marker library, None where there is none."""
    try:
        return ctypes.PyDLL("librocprofiler-sdk-roctx.so.1")
    except OSError:
        return None


def work(folder, steps):
    """Do steps until there are enough, or a signal."""
    import fake_hip

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    markers, done = roctx(), 0
    with (folder / "kfd").open(), (folder / f"{os.getpid()}.steps").open("ab", 0) as count:
        sys.stdout.write(f"worker {os.getpid()}\n")
        sys.stdout.flush()
        while not steps or done < steps:
            if markers:
                markers.roctxRangePushA(f"tk1 step {done} kind=decode bs=1".encode())
            fake_hip.copy_to_device(4096)
            fake_hip.record(0x100, 0)
            fake_hip.wait(0x100, 1)
            for number in range(KERNELS_PER_STEP):
                fake_hip.launch(f"kernel_{number % 4}", stream=number % 2)
            fake_hip.synchronize(0)
            if markers:
                markers.roctxRangePop()
            done += 1
            count.write(b".")
            time.sleep(0.002)


def main(folder, steps, method, workers):
    (folder / "kfd").touch()
    context = multiprocessing.get_context(method)
    children = [context.Process(target=work, args=(folder, steps)) for _ in range(workers)]
    for child in children:
        child.start()

    def stop(*_):
        for child in children:
            child.terminate()

    signal.signal(signal.SIGTERM, stop)
    for child in children:
        child.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
