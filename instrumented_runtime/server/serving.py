"""Runs a server from its first moment to its last: socket, engine, signals, exit status."""

import asyncio
import ipaddress
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import uvicorn

from instrumented_runtime.console import print_lines, say
from instrumented_runtime.recorder import RecorderError
from instrumented_runtime.server.app import app_of
from instrumented_runtime.server.machine import machine_of
from instrumented_runtime.server.options import Options
from instrumented_runtime.server.profiling import Finish
from instrumented_runtime.server.service import ENDING, Service

# Long enough for a client to be told why before the port closes.
LINGER_S = 1.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# For the engine to end its step; a device may hang.
_STOP_S = 10.0


class _Uvicorn(uvicorn.Server):
    """Leaves the signals to us."""

    # Python 3.11 has no `typing.override`.
    @contextmanager
    def capture_signals(self) -> Iterator[None]:  # type: ignore[explicit-override]
        yield


def run(options: Options) -> int:
    """Serve until a signal or a failure; return the exit status."""
    try:
        listener = bound(options)
    except (OSError, UnicodeError) as problem:  # the second is of a name that cannot be one
        why = getattr(problem, "strerror", None) or problem
        say(f"{options.host}:{options.port}: cannot be listened on ({why})")
        return 2
    with listener:
        return asyncio.run(_serve(options, listener))


def bound(options: Options) -> socket.socket:
    """Claim the address; connections are refused until the engine can serve.

    Raises:
        OSError: It is taken, or none of this machine.
        UnicodeError: The host is no name.
    """
    found = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except BaseException:
        listener.close()
        raise
    if not ipaddress.ip_address(address[0]).is_loopback:
        say(
            f"--host {options.host}: whoever reaches this port can use this server and let it "
            "write files; there is no password"
        )
    return listener


async def _serve(options: Options, listener: socket.socket) -> int:
    loop = asyncio.get_running_loop()
    asked, failed, insisted = asyncio.Event(), asyncio.Event(), asyncio.Event()
    for one in _SIGNALS:
        loop.add_signal_handler(one, lambda: (insisted if asked.is_set() else asked).set())
    try:
        service = await Service.started(options, lambda: machine_of(options), failed.set)
    except (ValueError, RuntimeError, ImportError, OSError) as problem:
        say(f"the engine cannot start: {problem}")
        return 2
    except (MemoryError, OverflowError):
        say("the engine cannot start: it does not fit into memory; ask for fewer requests or pages")
        return 2
    web = _Uvicorn(
        uvicorn.Config(
            app_of(service),
            loop="asyncio",
            lifespan="off",
            log_level="warning",
            access_log=False,
            timeout_keep_alive=75,
            # Beyond it a client that reads nothing is left.
            timeout_graceful_shutdown=2,
        )
    )
    serving = asyncio.create_task(web.serve(sockets=[listener]))
    await _ready(web, serving, options, listener)
    await _first(serving, asked, failed)
    status = 0
    if failed.is_set():
        say(str(service.trouble.message if service.trouble else "a step failed"))
        await asyncio.sleep(LINGER_S)
        status = 1
    elif asked.is_set():
        await _drain(service, options.grace_s, insisted)
    service.is_stopping = True
    web.should_exit = True
    await serving
    return max(status, await _end(service))


async def _ready(
    web: uvicorn.Server, serving: "asyncio.Task[None]", options: Options, listener: socket.socket
) -> None:
    while not web.started and not serving.done():
        await asyncio.sleep(0.005)
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    kind = "a virtual device, a model" if options.virtual else "a GPU"
    print_lines([f"Ready: http://{shown}:{port} serves {options.model} on {kind}"])


async def _first(serving: "asyncio.Task[None]", *events: asyncio.Event) -> None:
    """Wait for what comes first: the end of serving, or an event."""
    tasks = [serving, *(asyncio.ensure_future(event.wait()) for event in events)]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks[1:]:
        task.cancel()


async def _drain(service: Service, grace_s: float, insisted: asyncio.Event) -> None:
    """Refuse new requests, wait for those there are, and end what does not end by itself."""
    thread = service.thread
    service.is_stopping = True
    # Nobody is to come any more.
    thread.hold(0, 1.0)
    until_s = time.monotonic() + grace_s
    waited = service.open_answers
    say(f"stopping: {len(waited)} requests under way, at most {grace_s:g} s for them")
    while waited and time.monotonic() < until_s and not insisted.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(insisted.wait(), 0.05)
    if waited:
        say(f"stopping: {len(waited)} requests are ended unfinished")
        thread.end_all(ENDING)


async def _end(service: Service) -> int:
    """End the engine's thread and complete what it recorded; return the exit status."""
    has_ended, finish = await asyncio.to_thread(service.thread.stop, _STOP_S)
    if not has_ended:
        say(f"the engine did not end within {_STOP_S:g} s; what it records is lost")
        return 1
    await service.finished()
    return await _finished(service, finish) if finish else 0


async def _finished(service: Service, finish: Finish) -> int:
    try:
        for path in await service.finish(finish):
            say(f"Wrote {path}")
    except (RecorderError, OSError) as problem:
        say(f"the recording cannot be written ({problem})")
        return 1
    return 0
