"""Markers through real profilers and libraries: what arrives is what was written.

ROCm's marker library and an NVTX profiler are stood in for by small C libraries with the same
functions, compiled here, that append to a file; everything between them and the text is real. So
the tests named after roctx, and the one of the document's program, need no ROCm and show nothing
of what ROCm's own library does with a text.
"""

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from instrumented_runtime.marks import BackendError, Marks, Statement, backend_named, parse

ROOT = Path(__file__).resolve().parents[2]

# The three functions of rocprofiler-sdk's roctx and of the older libroctx64.
ROCTX = r"""
#include <stdio.h>
#include <stdlib.h>
static int say(const char *what, const char *text) {
    FILE *file = fopen(getenv("MARKS_FILE"), "a");
    fprintf(file, "%s%s\n", what, text);
    fclose(file);
    return 0;
}
void roctxMarkA(const char *text) { say("mark ", text); }
int roctxRangePushA(const char *text) { return say("push ", text); }
int roctxRangePop(void) { return say("pop", ""); }
"""

# What an NVTX profiler is: a library that replaces the functions of the application's copy of NVTX.
# Layouts and numbers are those of nvtxDetail/nvtxTypes.h and nvToolsExt.h, version 3.
NVTX = r"""
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef struct {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    uint64_t payload;
    int32_t message_type; /* 1: text; 3: registered text, whose handle here is the text itself */
    const char *message;
} Attributes;
typedef struct {
    size_t size;
    int (*functions)(int module, void ****table, unsigned *size);
} Callbacks;

static int say(const char *what, const char *text) {
    FILE *file = fopen(getenv("MARKS_FILE"), "a");
    fprintf(file, "%s%s\n", what, text);
    fclose(file);
    return 0;
}
static void mark(const char *text) { say("mark ", text); }
static int push(const char *text) { return say("push ", text); }
static int pop(void) { return say("pop", ""); }
static const char *registered(void *domain, const char *text) { return strdup(text); }
static void domain_mark(void *domain, const Attributes *what) { say("mark ", what->message); }
static int domain_push(void *domain, const Attributes *what) { return say("push ", what->message); }
static int domain_pop(void *domain) { return pop(); }

int InitializeInjectionNvtx2(const void *(*export_table)(uint32_t)) {
    const Callbacks *callbacks = export_table(1);
    void ***core, ***core2;
    unsigned size;
    if (!callbacks || !callbacks->functions(1, &core, &size) || size < 12) return 0;
    *core[2] = mark, *core[9] = push, *core[11] = pop;
    if (!callbacks->functions(5, &core2, &size) || size < 11) return 0;
    *core2[1] = domain_mark, *core2[4] = domain_push, *core2[5] = domain_pop;
    *core2[10] = registered;
    return 1;
}
"""

PROGRAM = """
import sys
from types import SimpleNamespace
from instrumented_runtime.marks import Marks, backend_named

marks = Marks(backend_named(sys.argv[1]))
table = SimpleNamespace(name="page table;é", address=0x7F00, size_bytes=4096, place="device")
marks.buffer(table)
with marks.step(12, kind="verify", batch_size=8, tokens=26):
    marks.use(table, "r")
    marks.use(table, "r")
marks.graph(3, reads=[SimpleNamespace(address=2**64 - 1 - n) for n in range(8)])
"""
WRITTEN = f"""\
mark tk1 buffer 0x7f00 addr=0x7f00 size=4096 name=page_table__ place=device
push tk1 step 12 kind=verify bs=8 tokens=26
mark tk1 use 0x7f00 r
mark tk1 use 0x7f00 r
pop
mark tk1 graph 0x3 declares {" ".join(f"r:{2**64 - 1 - n:#x}" for n in range(7))}
mark tk1 graph 0x3 declares r:{2**64 - 8:#x}
"""


def compiled(source, library):
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is not there to compile the library that stands in for a profiler's")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", library, "-x", "c", "-"],
        input=source,
        text=True,
        check=True,
    )


def run(program, *arguments, **environment):
    clean = {key: value for key, value in os.environ.items() if not key.startswith("NVTX")}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program, *arguments],
        env=clean | {"PYTHONPATH": str(ROOT)} | {k: str(v) for k, v in environment.items()},
        capture_output=True,
        text=True,
    )


def roctx_is_there():
    return run("from instrumented_runtime.marks import *; backend_named('roctx')").returncode == 0


@pytest.mark.parametrize(
    "library", ["librocprofiler-sdk-roctx.so.1", "librocprofiler-sdk-roctx.so"]
)
@pytest.mark.parametrize("name", ["roctx", "auto"])
def test_roctx_gets_the_bytes_that_were_written(tmp_path, name, library):
    compiled(ROCTX, tmp_path / library)
    file = tmp_path / "marks"
    done = run(PROGRAM, name, LD_LIBRARY_PATH=tmp_path, MARKS_FILE=file)
    assert done.stderr == ""
    assert file.read_bytes() == WRITTEN.encode()


def test_roctx_is_found_in_the_folder_of_rocm(tmp_path):
    (tmp_path / "lib").mkdir()
    compiled(ROCTX, tmp_path / "lib" / "librocprofiler-sdk-roctx.so")
    file = tmp_path / "marks"
    if roctx_is_there():
        pytest.skip("a real roctx library would be found first")
    assert run(PROGRAM, "roctx", ROCM_PATH=tmp_path, MARKS_FILE=file).stderr == ""
    assert file.read_bytes() == WRITTEN.encode()


def test_the_old_roctx_is_taken_with_a_warning_and_only_where_the_new_one_is_missing(tmp_path):
    if roctx_is_there():
        pytest.skip("a real roctx library would be found first")
    compiled(ROCTX, tmp_path / "libroctx64.so")
    environment = {"LD_LIBRARY_PATH": tmp_path, "MARKS_FILE": tmp_path / "marks"}
    refused = run(PROGRAM, "roctx", **environment)
    assert "RuntimeWarning: markers go to the old libroctx64.so, which rocprofv3" in refused.stderr
    lenient = "import warnings; warnings.simplefilter('ignore')\n" + PROGRAM
    assert run(lenient, "roctx", **environment).returncode == 0
    assert (tmp_path / "marks").read_bytes() == WRITTEN.encode()
    compiled(ROCTX, tmp_path / "librocprofiler-sdk-roctx.so")
    assert run(PROGRAM, "roctx", **environment).stderr == ""


@pytest.mark.parametrize("name", ["nvtx", "auto"])
def test_an_nvtx_profiler_gets_the_bytes_that_were_written(tmp_path, name):
    if run("from instrumented_runtime.marks import *; backend_named('nvtx')").returncode:
        pytest.skip("neither the nvtx package nor a CUDA build of torch is installed")
    compiled(NVTX, tmp_path / "profiler.so")
    file = tmp_path / "marks"
    done = run(PROGRAM, name, NVTX_INJECTION64_PATH=tmp_path / "profiler.so", MARKS_FILE=file)
    assert done.stderr == ""
    assert file.read_bytes() == WRITTEN.encode()


class Thing:
    handle = address = 0x7F00
    name, flags, size_bytes, place = "page table;é", "nonblocking", 4096, "device"


def test_the_texts_come_back_from_a_trace_of_pytorchs_profiler(tmp_path):
    torch = pytest.importorskip("torch")
    from tracekit.formats import read_trace, silent

    marks, thing = Marks(backend_named("record_function")), Thing()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        marks.stream(thing)
        marks.buffer(thing)
        with marks.step(12, kind="verify", batch_size=8, tokens=26):
            marks.use(thing, "w")
        with marks.step(13, kind="draft"):
            marks.record(thing, thing)
        marks.graph(3, reads=[thing] * 8)
        marks.replay(3)
        marks.wait(thing, thing)
        marks.sync(thing)
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))

    ranges = read_trace([tmp_path / "trace.json"], silent).table("ranges")
    markers = ranges.filter(kind="marker").sort("start_ns", "range_id")
    written = [
        "tk1 stream 0x7f00 flags=nonblocking device=0 name=page_table__",
        "tk1 buffer 0x7f00 addr=0x7f00 size=4096 name=page_table__ place=device",
        "tk1 step 12 kind=verify bs=8 tokens=26",
        "tk1 use 0x7f00 w",
        "tk1 step 13 kind=draft",
        "tk1 record 0x7f00 stream=0x7f00",
        "tk1 graph 0x3 declares" + " r:0x7f00" * 7,
        "tk1 graph 0x3 declares r:0x7f00",
        "tk1 replay 0x3",
        "tk1 wait 0x7f00 stream=0x7f00",
        "tk1 sync 0x7f00",
    ]
    assert markers["text"].to_list() == written
    assert [parse(text) for text in markers["text"]][2:4] == [
        Statement("step", 12, {"kind": "verify", "bs": 8, "tokens": 26}),
        Statement("use", 0x7F00, {"mode": "w"}),
    ]
    by_id = dict(zip(markers["range_id"], markers["text"], strict=True))
    parents = [by_id.get(parent, "") for parent in markers["parent_id"]]
    assert parents == ["", "", "", written[2], "", written[4], "", "", "", "", ""]


def test_ranges_of_record_function_are_kept_per_thread(tmp_path):
    torch = pytest.importorskip("torch")
    from tracekit.formats import read_trace, silent

    backend = backend_named("record_function")
    with (
        ThreadPoolExecutor(1) as other,
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler,
    ):
        backend.push("before")
        other.submit(backend.push, "of the other thread").result()
        backend.pop()
        backend.mark("after")
        other.submit(backend.pop).result()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    ranges = read_trace([tmp_path / "trace.json"], silent).table("ranges")
    markers = ranges.filter(kind="marker").sort("start_ns")
    assert markers["text"].to_list() == ["before", "after"]
    assert markers["parent_id"].to_list() == [None, None]


def test_an_unknown_name_is_refused_with_the_names_there_are():
    with pytest.raises(BackendError) as refused:
        backend_named("rocktx")
    assert str(refused.value) == (
        "no markers are called 'rocktx'; choose auto, roctx, nvtx, record_function or off"
    )


WITHOUT = """
import sys
for module in ("torch", "nvtx"):
    sys.modules[module] = None
from instrumented_runtime.marks import *
try:
    print(backend_named(sys.argv[1]))
except BackendError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("roctx", "no librocprofiler-sdk-roctx.so and no libroctx64.so, neither by name nor in"),
        ("nvtx", "no CUDA build of torch, no nvtx package"),
        ("record_function", "no torch"),
    ],
)
def test_what_is_missing_is_named_and_so_are_the_others(name, missing):
    if name == "roctx" and roctx_is_there():
        pytest.skip("a real roctx library is there")
    said = run(WITHOUT, name).stdout
    assert said.startswith(f"markers '{name}': {missing}")
    assert said.endswith("; choose auto, roctx, nvtx, record_function or off\n")


def test_auto_takes_what_is_there_and_off_is_nothing():
    if roctx_is_there():
        pytest.skip("a real roctx library is there")
    assert run(WITHOUT, "auto", NVTX_INJECTION64_PATH="profiler.so").stdout == "None\n"
    assert backend_named("off") is None
    pytest.importorskip("torch")
    kind = "import sys; sys.argv = ['', 'auto']\n" + WITHOUT.replace('"torch", "nvtx"', '"nvtx",')
    assert "RecordFunction" in run(kind).stdout


def test_importing_markers_loads_no_backend():
    program = (
        "import sys; from instrumented_runtime import marks; marks.Marks(); "
        "print([name for name in ('torch', 'nvtx', 'numpy') if name in sys.modules])"
    )
    assert run(program).stdout == "[]\n"


def test_the_program_in_the_document_writes_what_it_says(tmp_path):
    (program,) = re.findall(
        r"```python\n(.+?)```", (ROOT / "docs" / "markers.md").read_text(), re.DOTALL
    )
    compiled(ROCTX, tmp_path / "librocprofiler-sdk-roctx.so.1")
    done = run(program, LD_LIBRARY_PATH=tmp_path, MARKS_FILE=tmp_path / "marks")
    assert done.stderr == ""
    assert (tmp_path / "marks").read_text().splitlines() == [
        "mark tk1 stream 0x55d0 flags=nonblocking device=0",
        "mark tk1 buffer 0x7f00 addr=0x7f00 size=4096 name=page_table",
        "push tk1 step 12 kind=decode bs=8",
        "mark tk1 use 0x7f00 r",
        "pop",
    ]
