"""Real server processes: started on a free port, and ended whatever becomes of the test."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

PATIENCE_S = 60


@dataclass
class Server:
    """A running server: `url`, what it says on stderr, and how it ended."""

    process: subprocess.Popen
    client: httpx.Client
    url: str = ""
    said: list[str] = field(default_factory=list)

    def post(self, path, body=None):
        return self.client.post(self.url + path, json=body)

    def get(self, path):
        return self.client.get(self.url + path)

    def complete(self, prompt, max_tokens, **more):
        """Return the whole answer to a prompt."""
        body = {"prompt": prompt, "max_tokens": max_tokens, **more}
        return self.post("/v1/completions", body)

    def signal(self, number):
        self.process.send_signal(number)

    def ended(self):
        """Return the exit status, once it has ended, and all that it said on stderr."""
        status = self.process.wait(PATIENCE_S)
        self.reader.join(PATIENCE_S)
        return status, "".join(self.said)


@contextmanager
def server(*flags, environment=None):
    """Start a server; end it, by force if need be."""
    command = [sys.executable, "-m", "instrumented_runtime.server", "--port", "0", *flags]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    env = os.environ | (environment or {})
    # To load certificates, which plain HTTP needs none of, takes longer than most requests.
    client = httpx.Client(timeout=PATIENCE_S, limits=httpx.Limits(), verify=False)
    with client, subprocess.Popen(command, env=env, **pipes) as process:
        running = Server(process, client)
        running.reader = threading.Thread(target=lambda: running.said.extend(process.stderr))
        running.reader.start()
        try:
            ready = process.stdout.readline()
            assert ready.startswith("Ready: http://127.0.0.1:"), (ready, running.ended())
            running.url = ready.split()[1]
            yield running
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
            running.reader.join()


def held(running, count):
    running.post("/virtual_clock", {"hold_below": count, "expires_s": PATIENCE_S})


def waited_for(running, **wanted):
    """Ask until the server says what is wanted of it."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        info = running.get("/server_info").json()
        if {key: info[key] for key in wanted} == wanted:
            return info
        time.sleep(0.01)
    raise AssertionError((wanted, info))


def closed_loop(running, clients, prompts_of):
    """Let clients ask one thing after the other, each in a thread; return all answers by rid.

    Virtual time is held until each has asked: the hold falls with the number of those that still
    have something to ask.
    """
    lists = {client: list(prompts_of(client)) for client in range(clients)}
    lock, left = threading.Lock(), [clients]
    running.post("/virtual_clock", {"hold_below": clients, "expires_s": PATIENCE_S})
    answers = {}

    def ask(client):
        for number, (prompt, max_tokens) in enumerate(lists[client]):
            rid = f"{client:03}-{number:03}"
            answer = running.complete(prompt, max_tokens, rid=rid)
            assert answer.status_code == 200, answer.text
            answers[rid] = answer.json()
        with lock:
            left[0] -= 1
            running.post("/virtual_clock", {"hold_below": left[0], "expires_s": PATIENCE_S})

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(ask, range(clients)))
    return answers
