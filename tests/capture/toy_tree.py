"""A server of several processes in the standard library alone, with every bad habit by option.

Run as a script: `python -I -S toy_tree.py OPTIONS`. Each worker writes a trace when it is asked to
end, if `--traces` names a folder: `<pid>.begun` from the start (with `--begin-late` `<pid>.up`),
`<pid>.trace.json` (Kineto, one kernel) when it is complete.
"""

import argparse
import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def say(text):
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--traces", type=Path)
    parser.add_argument(
        "--write-s", type=float, default=0.0, help="a trace takes so long, times its number"
    )
    parser.add_argument("--begin-late", action="store_true", help="nothing is written before")
    parser.add_argument("--fragile", action="store_true", help="a second signal kills a writer")
    parser.add_argument("--hold", type=Path, help="workers keep this file open, as a GPU's device")
    parser.add_argument("--daemon", type=Path, help="a double fork writes its pid here and stays")
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument("--ignore-int", action="store_true", help="the launcher, not its workers")
    parser.add_argument("--launcher-kills-workers", action="store_true", help="with SIGKILL")
    parser.add_argument("--watchdog", action="store_true", help="one worker's end is all's end")
    parser.add_argument("--paths", default="/health", help="with status 200, comma-separated")
    parser.add_argument("--info", default="{}", help="what /server_info says, if it is a path")
    parser.add_argument("--ready-after", type=float, default=0.0, help="503 until then")
    parser.add_argument("--no-port", action="store_true")
    parser.add_argument("--die-at", default="", help="path at which the launcher dies")
    parser.add_argument("--fail-at", default="", help="path that answers 500")
    parser.add_argument("--say", default="toy server", help="printed at the start")
    parser.add_argument("--exit", type=int, help="at once, with this code")
    parser.add_argument("name", nargs="*", help="words for the command line")
    return parser.parse_args()


def trace_of(pid):
    """A Kineto file of one kernel and the call that launched it."""
    common = {"ph": "X", "args": {"correlation": 1, "device": 0, "stream": 7}}
    events = [
        {
            **common,
            "cat": "cuda_runtime",
            "name": "hipLaunchKernel",
            "pid": pid,
            "tid": pid,
            "ts": 1000,
            "dur": 5,
        },
        {**common, "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 1010, "dur": 20},
    ]
    meta = {"schemaVersion": 1, "roctracer_version": 4.1, "baseTimeNanoseconds": 10**18}
    return json.dumps({**meta, "traceEvents": events})


def write_trace(options):
    if options.traces is None:
        return
    target = options.traces / f"{os.getpid()}.trace.json"
    if target.exists():
        return
    partial = target.with_suffix(".partial")
    partial.write_text("")
    time.sleep(options.write_s * options.number)
    partial.write_text(trace_of(os.getpid()))
    partial.rename(target)


def work(options):
    """A worker: holds its device and waits to be asked to end."""

    def end(_number, _frame):
        then = signal.SIG_DFL if options.fragile else signal.SIG_IGN
        signal.signal(signal.SIGINT, then)
        signal.signal(signal.SIGTERM, then)
        if options.traces is not None and not options.hold:
            (options.traces / f"{os.getpid()}.begun").touch()
        write_trace(options)
        os._exit(0)

    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGTERM, end)
    held = options.hold.open() if options.hold else None
    if options.traces is not None:
        name = "up" if options.begin_late else "begun"
        (options.traces / f"{os.getpid()}.{name}").touch()
    while True:
        time.sleep(60)
    del held


def stay(path):
    """Be the child of a child that is gone, in a session of its own, deaf to SIGTERM."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            partial = path.with_suffix(".partial")
            partial.write_text(str(os.getpid()))
            partial.rename(path)
            while True:
                time.sleep(60)
        os._exit(0)
    os.wait()


class Handler(BaseHTTPRequestHandler):
    options = None
    start_s = time.monotonic()

    def log_message(self, *_arguments):
        pass

    def _answer(self, status, body=b"{}", kind="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        options, self.path = self.options, self.path.partition("?")[0]
        if options.die_at and self.path == options.die_at:
            say("toy: out of memory on device 0")
            os._exit(7)
        if options.fail_at and self.path == options.fail_at:
            self._answer(500, b'{"error": {"message": "toy failure"}}')
        elif time.monotonic() - self.start_s < options.ready_after:
            self._answer(503)
        elif self.path == "/v1/models" and self.path in options.paths.split(","):
            self._answer(200, b'{"data": [{"id": "toy"}]}')
        elif self.path in options.paths.split(","):
            self._answer(200, options.info.encode() if self.path == "/server_info" else b"{}")
        else:
            self._answer(404)

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path != "/v1/completions" or self.path in (
            self.options.die_at,
            self.options.fail_at,
        ):
            self.do_GET()
            return
        usage = {"prompt_tokens": 3, "completion_tokens": 2}
        events = [
            {"choices": [{"text": "a", "index": 0}], "usage": {**usage, "completion_tokens": 1}},
            {"choices": [{"text": "b", "index": 0, "finish_reason": "length"}], "usage": usage},
        ]
        body = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
        self._answer(200, body.encode(), "text/event-stream")


def serve(options):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Handler.options = options
    threading.Thread(target=server.serve_forever, daemon=True).start()
    say(f"toy: listening on {server.server_port}")


def hired(options):
    """Start the workers and return their pids."""
    pids = []
    for number in range(1, options.workers + 1):
        options.number = number
        pid = os.fork()
        if pid == 0:
            work(options)
        pids.append(pid)
    return pids


def watch(ended, workers, *, is_watchdog):
    """Wait to be asked to end; as a watchdog, kill all workers when one has ended."""
    while not ended.wait(0.02 if is_watchdog else 60):
        if is_watchdog and os.waitpid(-1, os.WNOHANG) != (0, 0):
            for pid in workers:
                os.kill(pid, signal.SIGKILL)
            os._exit(1)


def main():
    options = arguments()
    say(options.say)
    if options.exit is not None:
        sys.exit(options.exit)
    workers = hired(options)
    if options.daemon:
        stay(options.daemon)
    ended = threading.Event()

    def end(_number, _frame):
        ended.set()

    signal.signal(signal.SIGINT, signal.SIG_IGN if options.ignore_int else end)
    signal.signal(signal.SIGTERM, signal.SIG_IGN if options.ignore_term else end)
    if not options.no_port:
        serve(options)
    watch(ended, workers, is_watchdog=options.watchdog)
    number = signal.SIGKILL if options.launcher_kills_workers else signal.SIGTERM
    for pid in workers:
        os.kill(pid, number)
    for pid in workers:
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
