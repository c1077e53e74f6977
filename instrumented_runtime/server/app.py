"""The routes: OpenAI's, and those of servers like SGLang that profilers and load generators use."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from instrumented_runtime.recorder import RecorderError
from instrumented_runtime.request import Request as EngineRequest
from instrumented_runtime.server.answers import DONE, Form, failed_part
from instrumented_runtime.server.bodies import (
    ChatBody,
    ClockBody,
    CompletionBody,
    ProfileBody,
)
from instrumented_runtime.server.jobs import Chunk, Event, Failed, Job
from instrumented_runtime.server.refusals import Refused, answer_errors
from instrumented_runtime.server.service import Service
from instrumented_runtime.server.stop_strings import StopStrings

_T = TypeVar("_T")

ROUTES = APIRouter()


class _Gone(Exception):
    """The client waits no more."""


class _Stream(StreamingResponse):
    """Ends its job however it ends itself."""

    def __init__(self, parts: AsyncIterator[str], service: Service, job: Job) -> None:
        super().__init__(
            parts, media_type="text/event-stream", headers={"Cache-Control": "no-cache"}
        )
        self._close = partial(service.close, job)

    # Python 3.11 has no `typing.override`.
    async def __call__(  # type: ignore[explicit-override]
        self, scope: Scope, receive: Receive, send: Send
    ) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()


def app_of(service: Service) -> FastAPI:
    """Return the application of a server."""
    # FastAPI's pages of documentation load scripts from elsewhere.
    app = FastAPI(title="instrumented_runtime", docs_url=None, redoc_url=None)
    app.state.service = service
    app.include_router(ROUTES)
    answer_errors(app)
    return app


@ROUTES.post("/v1/completions")
async def completions(body: CompletionBody, request: Request) -> Response:
    """Go on with a prompt."""
    return await _answer(body, request, is_chat=False)


@ROUTES.post("/v1/chat/completions")
async def chat_completions(body: ChatBody, request: Request) -> Response:
    """Answer in a chat."""
    return await _answer(body, request, is_chat=True)


@ROUTES.get("/v1/models")
async def models(request: Request) -> dict[str, Any]:
    """Name the one model."""
    return {"object": "list", "data": [_model(_service(request))]}


@ROUTES.get("/v1/models/{name:path}")
async def model(name: str, request: Request) -> dict[str, Any]:
    """Describe the one model."""
    _refuse_model(_service(request), name)
    return _model(_service(request))


@ROUTES.get("/health")
async def health(request: Request) -> dict[str, str]:
    """Say whether requests are served."""
    _refuse_in_trouble(_service(request))
    return {"status": "ok"}


@ROUTES.get("/server_info")
async def server_info(request: Request) -> dict[str, Any]:
    """Say what is served, how, and what it has counted."""
    return _service(request).info()


@ROUTES.api_route("/flush_cache", methods=["GET", "POST"])
async def flush_cache(request: Request) -> dict[str, str]:
    """Forget cached prefixes that no request uses."""
    await _service(request).call(lambda machine: machine.engine.flush_cache())
    return {"status": "flushed"}


@ROUTES.post("/start_profile")
async def start_profile(body: ProfileBody, request: Request) -> dict[str, str]:
    """Open a profiled window."""
    folder = Path(body.output_dir).absolute()
    try:
        await _service(request).call(lambda machine: machine.windows.start(folder))
    except RecorderError as problem:
        raise Refused(409, str(problem)) from None
    except OSError as problem:
        raise Refused(400, f"output_dir: {folder}: {problem.strerror or problem}") from None
    except ValueError as problem:
        raise Refused(400, f"output_dir: {body.output_dir!r}: {problem}") from None
    return {"status": "recording", "output_dir": str(folder)}


@ROUTES.post("/stop_profile")
async def stop_profile(request: Request) -> dict[str, Any]:
    """Close the window; answer when its files are complete."""
    service = _service(request)
    try:
        files = await service.finish(await service.call(lambda machine: machine.windows.stop()))
    except RecorderError as problem:
        raise Refused(409, str(problem)) from None
    except OSError as problem:
        raise Refused(500, f"the recording cannot be written ({problem})") from None
    return {"files": [str(file) for file in files]}


@ROUTES.post("/virtual_clock")
async def virtual_clock(body: ClockBody, request: Request) -> dict[str, Any]:
    """Let virtual time stand while fewer requests are there."""
    service = _service(request)
    if not service.is_virtual:
        raise Refused(404, "the clock of this device is the wall's; nobody can hold it")
    service.thread.hold(body.hold_below, body.expires_s)
    # Answered once it holds.
    now_ns = await service.call(lambda machine: machine.device.now_ns)
    return {"hold_below": body.hold_below, "expires_s": body.expires_s, "now_ns": now_ns}


async def _answer(body: CompletionBody | ChatBody, request: Request, *, is_chat: bool) -> Response:
    service = _service(request)
    _refuse_in_trouble(service)
    _refuse_model(service, body.model)
    events: asyncio.Queue[Event] = asyncio.Queue()
    job = _job(body, service, events)
    form = Form.of(
        service.options.model,
        service.clock,
        is_chat=is_chat,
        includes_usage=body.includes_usage,
    )
    service.submit(job)
    is_open = False
    try:
        # Only then is its status known.
        first = await _until_gone(request, events.get())
        if isinstance(first, Failed):
            raise Refused(first.status, first.message)
        if body.stream:
            is_open = True
            return _Stream(_parts(form, job, first, events), service, job)
        return JSONResponse(form.whole(job, await _until_gone(request, _rest(first, events))))
    except _Gone:
        return Response(status_code=499)
    finally:
        if not is_open:
            service.close(job)


def _job(body: CompletionBody | ChatBody, service: Service, events: "asyncio.Queue[Event]") -> Job:
    try:
        body.refuse()
        prompt, stop = body.prompt_tokens(), StopStrings(body.stop_strings)
    except ValueError as problem:
        raise Refused(400, str(problem)) from None
    if body.arrival_ns is not None and not service.is_virtual:
        raise Refused(400, "arrival_ns: is for virtual time only; leave it out")
    left = service.max_tokens - len(prompt)
    new = body.answer_tokens(left)
    if new > left:
        raise Refused(
            400,
            f"the context of this model has {service.max_tokens} tokens; asked for are "
            f"{len(prompt)} of the prompt and {new} of the answer: shorten either",
            "context_length_exceeded",
        )
    return Job(
        EngineRequest(0, prompt, new),
        events.put_nowait,
        stop,
        rid=body.rid or "",
        asked_ns=body.arrival_ns,
    )


async def _parts(
    form: Form, job: Job, first: Chunk, events: "asyncio.Queue[Event]"
) -> AsyncIterator[str]:
    yield form.part(job, first, is_first=True)
    event: Event = first
    while isinstance(event, Chunk) and event.end is None:
        event = await events.get()
        if isinstance(event, Failed):
            yield failed_part(event)
            return
        yield form.part(job, event, is_first=False)
    if form.includes_usage and isinstance(event, Chunk):
        yield form.usage_part(job, event)
    yield DONE


async def _rest(first: Chunk, events: "asyncio.Queue[Event]") -> list[Chunk]:
    chunks = [first]
    while chunks[-1].end is None:
        event = await events.get()
        if isinstance(event, Failed):
            raise Refused(event.status, event.message)
        chunks.append(event)
    return chunks


async def _until_gone(request: Request, wanted: "Awaitable[_T]") -> "_T":
    """Wait for something as long as the client does.

    Raises:
        _Gone: It waits no more.
    """
    work = asyncio.ensure_future(wanted)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        raise _Gone
    finally:
        for task in (work, gone):
            task.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def _model(service: Service) -> dict[str, Any]:
    return {
        "id": service.options.model,
        "object": "model",
        "created": 0,
        "owned_by": "instrumented_runtime",
        "max_model_len": service.max_tokens,
    }


def _refuse_model(service: Service, name: str | None) -> None:
    if name is not None and name != service.options.model:
        message = f"model: there is no {name!r} here; ask for {service.options.model!r}"
        raise Refused(404, message, "model_not_found")


def _refuse_in_trouble(service: Service) -> None:
    if (trouble := service.trouble) is not None:
        raise Refused(trouble.status, trouble.message)
