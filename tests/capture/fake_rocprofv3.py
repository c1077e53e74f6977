"""A stand-in for rocprofv3: its real options, and a tool in every process that it starts.

It knows the options of ROCm 7.0; `FAKE_ROCPROFV3_VERSION=10.1` adds those of later versions.
The tool is `fake_rocm/agent`, which reads the environment that the real wrapper makes.
"""

import argparse
import os
import socket
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
AGENT = HERE / "fake_rocm" / "agent"
VERSION = tuple(map(int, os.environ.get("FAKE_ROCPROFV3_VERSION", "7.0").split(".")))

TRACES = {
    "hip-runtime-trace": "HIP_RUNTIME_API",
    "hip-compiler-trace": "HIP_COMPILER_API",
    "hsa-core-trace": "HSA_CORE_API",
    "hsa-amd-trace": "HSA_AMD_EXT_API",
    "hsa-image-trace": "HSA_IMAGE_EXT_API",
    "hsa-finalizer-trace": "HSA_FINALIZER_EXT_API",
    "kernel-trace": "KERNEL",
    "memory-copy-trace": "MEMORY_COPY",
    "memory-allocation-trace": "MEMORY_ALLOCATION",
    "scratch-memory-trace": "SCRATCH_MEMORY",
    "marker-trace": "MARKER_API",
    "rccl-trace": "RCCL_API",
    "rocdecode-trace": "ROCDECODE_API",
    "rocjpeg-trace": "ROCJPEG_API",
}
NEWER_TRACES = {"hip-graph-trace": "HIP_GRAPH", "hip-event-trace": "HIP_EVENT"}
FLAGS = (
    "stats summary summary-per-domain mangled-kernels truncate-kernels kernel-rename "
    "selected-regions list-avail group-by-queue disable-signal-handlers process-sync hip-trace "
    "hsa-trace runtime-trace sys-trace suppress-marker-preload"
).split()
VALUES = (
    "output-file output-directory log-level extra-counters kernel-include-regex "
    "kernel-exclude-regex rocm-root agent-index input"
).split()
SHORT = {"output-file": "-o", "output-directory": "-d", "input": "-i", "stats": None}
UNITS = {"hour": 3600e9, "min": 60e9, "sec": 1e9, "msec": 1e6, "usec": 1e3, "nsec": 1}


def truth(text):
    if text.lower() in ("y", "yes", "t", "true", "on", "1"):
        return True
    if text.lower() in ("n", "no", "f", "false", "off", "0"):
        return False
    raise argparse.ArgumentTypeError(f"invalid truth value {text}")


def parser():
    """Return a parser of its options."""
    parser = argparse.ArgumentParser(
        prog="rocprofv3",
        usage="%(prog)s [options] -- <application> [application options]",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-v", "--version", action="store_true")
    newer = NEWER_TRACES if VERSION >= (7, 13) else {}
    newer = {k: v for k, v in newer.items() if k != "hip-event-trace" or VERSION >= (10, 1)}
    flags = [*TRACES, *newer, *FLAGS]
    if VERSION >= (10, 1):
        flags += ["attach-children", "attach-sync-output"]
    for flag in flags:
        default = True if flag == "attach-children" else None
        add(f"--{flag}", nargs="?", const=True, type=truth, metavar="BOOL", default=default)
    for value in VALUES:
        add(*filter(None, [SHORT.get(value), f"--{value}"]))
    formats = ("csv", "json", "pftrace", "otf2", "rocpd")
    add("-f", "--output-format", nargs="+", choices=formats, type=str.lower)
    add("-P", "--collection-period", nargs="+")
    add("--collection-period-unit", nargs=1, default=["sec"], choices=UNITS)
    add("--minimum-output-data", type=int, metavar="KB")
    add("--pmc", nargs="*")
    add("-p", "--pid", "--attach", type=int)
    add("--attach-duration-msec", type=int)
    return parser


def fatal(message):
    sys.stderr.write(f"[rocprofv3] Fatal error: {message}\n")
    sys.exit(1)


def environment_of(options):
    """Return what the tool library reads."""
    made = dict(os.environ)
    made["ROCPROF_OUTPUT_PATH"] = options.output_directory or str(Path.cwd())
    made["ROCPROF_OUTPUT_FORMAT"] = ",".join(options.output_format or ["rocpd"])
    if options.output_file:
        made["ROCPROF_OUTPUT_FILE_NAME"] = options.output_file
    for flag, name in {**TRACES, **NEWER_TRACES}.items():
        if getattr(options, flag.replace("-", "_"), None) or (
            flag == "hip-event-trace" and VERSION >= (10, 1) and options.hip_runtime_trace
        ):
            made[f"ROCPROF_{name}_TRACE"] = "1"
    if options.selected_regions:
        made["ROCPROF_SELECTED_REGIONS"] = "1"
    if options.disable_signal_handlers:
        made["ROCPROF_SIGNAL_HANDLERS"] = "0"
    if options.minimum_output_data is not None:
        made["ROCPROF_MINIMUM_OUTPUT_BYTES"] = str(1024 * options.minimum_output_data)
    if options.collection_period:
        unit = UNITS[options.collection_period_unit[0]]
        periods = [period.split(":") for period in options.collection_period]
        made["ROCPROF_COLLECTION_PERIOD"] = ";".join(
            f"{int(float(delay) * unit)}:{int(float(length) * unit)}:{int(repeat)}"
            for delay, length, repeat in periods
        )
    return made


def attach(options, environment):
    """Attach, wait for Enter, detach."""
    sys.path.insert(0, str(AGENT))
    from fake_rocprofv3_tool import as_request

    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(f"\0fake-rocprofv3-{options.pid}")
    except ConnectionRefusedError:
        if VERSION >= (10, 1):
            sys.exit(f"Cannot attach to process {options.pid}: 'rocp-bg-attach' thread not found")
        # 7.2 believes that it has attached.
        sys.stdout.write(f"Attaching to PID {options.pid} :: success\n")
        sys.stdout.flush()
        sys.stdin.readline()
        return
    with connection.makefile("rw") as lines:
        lines.write(as_request(environment))
        lines.flush()
        lines.readline()
        sys.stdout.write(f"Attaching to PID {options.pid} :: success\n")
        sys.stdout.flush()
        sys.stdin.readline()
        lines.write("detach\n")
        lines.flush()
        if options.__dict__.get("attach_sync_output"):
            lines.readline()


def main(arguments):
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    application = arguments[cut + 1 :]
    options = parser().parse_args(arguments[:cut])
    if options.version:
        sys.stdout.write(f"             version: {'.'.join(map(str, VERSION))}\n")
        return
    if options.selected_regions and options.collection_period:
        fatal("--selected-regions and --collection-period are mutually exclusive")
    if options.output_format not in (None, ["rocpd"]):
        fatal("the fake writes rocpd only")
    environment = environment_of(options)
    if options.pid:
        if options.collection_period:
            fatal("--collection-period is not compatible with attach mode")
        attach(options, environment)
        return
    if not application:
        fatal("No application provided")
    path = [str(AGENT), *filter(None, [environment.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(path)
    libraries = [environment.get("LD_LIBRARY_PATH"), os.environ.get("FAKE_ROCM_LIB")]
    environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, libraries))
    os.execvpe(application[0], application, environment)


if __name__ == "__main__":
    main(sys.argv[1:])
