"""A tiny HTTP server that answers requests as it is told, over a real socket."""

import asyncio
import json
import threading
from contextlib import contextmanager


class Answer:
    """Pieces of a streamed answer with the seconds to wait before each; `cut` ends it early."""

    def __init__(self, pieces=(), *, status=200, body=b"", cut=False, hang=False):
        self.pieces = pieces
        self.status = status
        self.body = body
        self.cut = cut
        self.hang = hang


def event(**fields):
    return f"data: {json.dumps(fields, ensure_ascii=False)}\n\n".encode()


def text_event(text, tokens=None, finish=None):
    usage = {} if tokens is None else {"usage": {"completion_tokens": tokens, "prompt_tokens": 7}}
    return event(choices=[{"text": text, "finish_reason": finish}], **usage)


DONE = b"data: [DONE]\n\n"


class Server:
    """Answers GET and other POST paths from `pages` (with a status, or 200), completions from `answer(number, body)`."""

    def __init__(self, answer, pages):
        self.answer = answer
        self.pages = pages
        self.requests = []
        self.open = self.most_open = 0
        self.url = None

    async def handle(self, reader, writer):
        try:
            while await self.one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def one(self, reader, writer):
        first = await reader.readline()
        if not first:
            return False
        method, path, _ = first.decode().split(" ", 2)
        headers = {}
        while (line := (await reader.readline()).decode().strip()) != "":
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        length = int(headers.get("content-length", 0))
        text = await reader.readexactly(length)
        body = json.loads(text) if text else None
        self.requests.append((method, path, body, headers))
        if path.startswith("/v1/") and method == "POST":
            self.open += 1
            self.most_open = max(self.most_open, self.open)
            try:
                number = sum(1 for _, p, _, _ in self.requests if p == path) - 1
                return await self.stream(writer, self.answer(number, body))
            finally:
                self.open -= 1
        page = self.pages.get(path)
        page = page(body) if callable(page) else page
        if asyncio.iscoroutine(page):
            page = await page
        page = (404, b"no") if page is None else page
        status, content = page if isinstance(page, tuple) else (200, page)
        content = content if isinstance(content, bytes) else json.dumps(content).encode()
        await self.whole(writer, status, content)
        return True

    async def whole(self, writer, status, content):
        head = f"HTTP/1.1 {status} x\r\ncontent-length: {len(content)}\r\n\r\n"
        writer.write(head.encode() + content)
        await writer.drain()

    async def stream(self, writer, answer):
        if asyncio.iscoroutine(answer):
            answer = await answer
        if answer.status != 200:
            await self.whole(writer, answer.status, answer.body)
            return True
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for wait_s, piece in answer.pieces:
            await asyncio.sleep(wait_s)
            writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            await writer.drain()
        if answer.hang:
            await asyncio.sleep(30)
        if answer.cut:
            return False
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


MODELS = {"data": [{"id": "toy"}]}


@contextmanager
def serving(answer, **pages):
    """Run a server in a thread of its own on a free port; pages by path without the slash."""
    server = Server(answer, {"/v1/models": MODELS} | {f"/{k}": v for k, v in pages.items()})
    loop = asyncio.new_event_loop()
    ready = threading.Event()

    async def main():
        server.stop = asyncio.Event()
        listening = await asyncio.start_server(server.handle, "127.0.0.1", 0)
        host, port = listening.sockets[0].getsockname()
        server.url = f"http://{host}:{port}"
        ready.set()
        await server.stop.wait()
        listening.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()))
    thread.start()
    ready.wait(10)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(server.stop.set)
        thread.join(10)
        loop.close()
