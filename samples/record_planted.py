"""Record loops with planted causes, and write down what was planted; needs a GPU and torch.

Traces of several phases, each within a range that names it. In `planted_idle`
every phase has one reason for the device to idle. In `planted_copies` a kernel reads a page table
for half a millisecond and the host uploads a new one, ordered with it or not.

From CUDA 12.9 on Kineto no longer says which record a stream waits for, since CUPTI has to be asked
for event records anew (pytorch/kineto#1552). In both traces only our markers say it. In
`planted_waits`, the phase of `planted_idle` that needs it once more, CUPTI was asked.

Others judge the uploads, too. Torch's stream sanitizer runs over the same programs in a process of
its own. And without a profiler the pages that the readers gathered are compared with the table that
they were to read. If either disagrees with the plan, the exit code is 1.

    python samples/record_planted.py --out traces
"""

import argparse
import contextlib
import ctypes
import gzip
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from planted_loops import IDLE, STEPS, IdleLoop
from planted_uploads import UPLOADS, UploadLoop
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile

from instrumented_runtime.devices.torch_device import TorchDevice
from instrumented_runtime.devices.torch_memory import own_buffer
from instrumented_runtime.marks import Marks, backend_named

# Of a phase's idle time, what the planted cause must carry.
LEAST_SHARE = 0.8
# Of a phase that is to be busy, what may be idle.
MOST_IDLE_SHARE = 0.02
_CUPTI_CUDA_EVENT = 36


def _raced(device: TorchDevice) -> dict[str, int]:
    """Return in how many steps of each program a reader saw another table than it was to read."""
    loop = UploadLoop(device, Marks())
    steps = dict.fromkeys(loop.programs, 0)
    for name, program in loop.programs.items():
        for _ in range(STEPS):
            expected = loop.version
            program()
            loop.device.synchronize()
            # A kernel gathers the first column of all pages first, and the last one last.
            seen = own_buffer(loop.gathered).tensor[:, [0, -1]].unique().tolist()
            steps[name] += seen != [expected]
    return steps


def _sanitized() -> dict[str, int]:
    """Return in how many steps of each program torch's stream sanitizer finds a race."""
    from torch.cuda._sanitizer import CUDASanitizerErrors, enable_cuda_sanitizer

    enable_cuda_sanitizer()
    loop = UploadLoop(TorchDevice(), Marks())
    steps = dict.fromkeys(loop.programs, 0)
    for name, program in loop.programs.items():
        for _ in range(STEPS):
            try:
                program()
            except CUDASanitizerErrors:
                steps[name] += 1
                loop.device.synchronize()
        loop.device.synchronize()
    return steps


def _sanitized_elsewhere() -> dict[str, int]:
    command = [sys.executable, __file__, "--sanitize"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"the sanitizer's process failed:\n{done.stderr[-2000:]}")
    found: dict[str, int] = json.loads(done.stdout)
    return found


@contextlib.contextmanager
def _event_records() -> Iterator[None]:
    """Let CUPTI record events as well, which Kineto reads but does not ask for."""
    library = ctypes.CDLL("libcupti.so.13")
    if status := library.cuptiActivityEnable(_CUPTI_CUDA_EVENT):
        sys.exit(f"cuptiActivityEnable: error {status}")
    yield
    library.cuptiActivityDisable(_CUPTI_CUDA_EVENT)


def _record(run: Callable[[Marks], None], path: Path, extra: AbstractContextManager[None]) -> None:
    marks = Marks(backend_named("record_function"))
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    config = _ExperimentalConfig(enable_cuda_sync_events=True)
    with profile(activities=activities, experimental_config=config) as profiler, extra:
        run(marks)
    # The profiler writes the name it is given into the trace: give it one without a folder.
    with contextlib.chdir(path.parent):
        plain = Path(path.stem)
        profiler.export_chrome_trace(str(plain))
        Path(path.name).write_bytes(gzip.compress(plain.read_bytes(), 9, mtime=0))
        plain.unlink()


def _truth(
    device: TorchDevice, sanitized: dict[str, int], raced: dict[str, int]
) -> dict[str, object]:
    uploads = {
        name: upload._asdict()
        | {
            "sanitizer_steps_with_race": sanitized[name],
            "steps_that_read_another_table": raced[name],
        }
        for name, upload in UPLOADS.items()
    }
    return {
        "device": device.name,
        "torch": torch.__version__,
        "steps": STEPS,
        "idle": {
            "trace": "planted_idle.json.gz",
            "trace_with_event_records": "planted_waits.json.gz",
            "least_share": LEAST_SHARE,
            "most_idle_share": MOST_IDLE_SHARE,
            "phases": {name: idle._asdict() for name, idle in IDLE.items()},
        },
        "copies": {"trace": "planted_copies.json.gz", "programs": uploads},
    }


def _disagreements(sanitized: dict[str, int], raced: dict[str, int]) -> list[str]:
    problems = []
    for name, upload in UPLOADS.items():
        if sanitized[name] != (STEPS if upload.order is None else 0):
            problems.append(f"{name}: the sanitizer finds a race in {sanitized[name]} steps")
        if (raced[name] > 0) != upload.runs_beside_reader:
            problems.append(f"{name}: readers saw another table in {raced[name]} steps")
    return problems


def main() -> None:
    """Record both traces and write the truth beside them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "-o", "--out", type=Path, default=Path("traces"), help="folder for the traces"
    )
    parser.add_argument("--sanitize", action="store_true", help="only run torch's sanitizer")
    arguments = parser.parse_args()
    if arguments.sanitize:
        print(json.dumps(_sanitized()))
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    device = TorchDevice()
    raced, sanitized = _raced(device), _sanitized_elsewhere()
    loops = {
        "idle": lambda marks: IdleLoop(device, marks).run(),
        "waits": lambda marks: IdleLoop(device, marks).run(["stream-wait"]),
        "copies": lambda marks: UploadLoop(device, marks).run(),
    }
    for name, run in loops.items():
        run(Marks())
        path = arguments.out / f"planted_{name}.json.gz"
        # The profiler's first recording is slower than later ones.
        for _ in range(2):
            _record(run, path, _event_records() if name == "waits" else nullcontext())
    text = json.dumps(_truth(device, sanitized, raced), indent=2)
    (arguments.out / "planted_truth.json").write_text(text + "\n")
    if problems := _disagreements(sanitized, raced):
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
