"""An HTTP server with `/start_profile` and `/stop_profile`, over a real torch.profiler or without.

`toy_profiled_server.py MODE`: `sglang` profiles its own matrix products as SGLang's endpoints do,
`deaf` has no endpoints, `locked` wants a key, `unwilling` refuses, `slow` does not answer, `none` writes no file,
`dies` ends in the middle of it.
"""

import http.server
import json
import os
import sys
import threading
import time
from pathlib import Path


class Server(http.server.BaseHTTPRequestHandler):
    """Handles one request."""

    mode = "sglang"
    body = None
    profiler = None

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.mode == "deaf":
            self.answer(404, {"detail": "Not Found"})
        elif self.mode == "unwilling":
            self.answer(400, "Profiling is already in progress")
        elif self.mode == "locked" and self.headers.get("Authorization") != "Bearer let me in":
            self.answer(401, {"error": "Unauthorized"})
        elif self.mode == "slow":
            time.sleep(5)
        elif self.path == "/start_profile":
            Server.body = json.loads(body)
            self.begin()
            self.answer(200, "Start profiling.")
        else:
            self.end()
            self.answer(200, "Stop profiling. This will take some time.")

    def begin(self):
        if self.mode not in ("none", "dies"):
            import torch

            Server.profiler = torch.profiler.profile(
                activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True
            )
            self.profiler.start()
            torch.ones(8, 8) @ torch.ones(8, 8)

    def end(self):
        if self.mode == "dies":
            threading.Timer(0.2, os._exit, [1]).start()
        if self.profiler is None:
            return
        self.profiler.stop()
        folder = Path(self.body["output_dir"])
        (folder / "asked.txt").write_text(json.dumps(self.body))
        # As a server whose ranks write after the answer.
        late = threading.Timer(
            0.2, self.profiler.export_chrome_trace, [str(folder / "1764.5-TP-0.trace.json.gz")]
        )
        late.start()

    def answer(self, status, body):
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    Server.mode = sys.argv[1]
    # One thread: a torch.profiler must be stopped on the thread that started it.
    server = http.server.HTTPServer(("127.0.0.1", 0), Server)
    sys.stdout.write(f"{os.getpid()} {server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()
