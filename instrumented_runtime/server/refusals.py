"""Whatever is refused is said as OpenAI's clients read it."""

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from instrumented_runtime.server.answers import error_json


class Refused(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, message: str, code: str | None = None) -> None:
        """Answer with a status and a sentence."""
        super().__init__(message)
        self.status, self.code = status, code


def answer_errors(app: FastAPI) -> None:
    """Let an application answer them, those of its routes and of bodies that cannot be read."""
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _no_route)


async def _refused(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Refused)
    return JSONResponse(error_json(error.status, str(error), code=error.code), error.status)


async def _invalid(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        message = f"the body is not JSON: {first.get('ctx', {}).get('error', first['msg'])}"
    else:
        place = ".".join(str(part) for part in first["loc"][1:]) or "the body"
        message = f"{place}: is not allowed ({first['msg']})"
    return JSONResponse(error_json(400, message), 400)


async def _no_route(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    return JSONResponse(error_json(error.status_code, message), error.status_code, error.headers)
