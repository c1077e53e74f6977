"""Removes secrets from what a capture writes: those it was given, and what looks like one."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from tracekit.manifest import REDACTED, is_secret_name, redacted_command, secret_values

# Shorter ones are found by the name before them only: as plain text they are words and numbers.
_SHORTEST = 6


class Redactor:
    """Knows the secrets of one capture by value, so that they are hidden wherever they turn up.

    A server prints its arguments as a table, a JSON error quotes a header, a trace holds an
    environment: there the name no longer stands before the value.

    Attributes:
        values: The secrets it knows, the longest first.
    """

    def __init__(
        self,
        argv: Iterable[str] = (),
        environment: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Take the secrets out of a command line, an environment and HTTP headers.

        Args:
            argv: Argument vector; values that `redacted_command` would hide, logins in URLs.
            environment: Values of variables whose names say secret, and logins in URLs of others.
            headers: Values of all, whatever they are called, but of those that say what is sent.
        """
        words = list(argv)
        found = {
            *secret_values(words),
            *(secret for word in words for secret in _of_urls(word)),
            *_of_environment(environment or {}),
            *_of_headers(headers or {}),
        }
        long_enough = {value for value in found if len(value) >= _SHORTEST}
        forms = {form for value in long_enough for form in _forms(value)}
        self.values = tuple(sorted(forms, key=lambda value: (-len(value), value)))
        self._known = re.compile("|".join(map(re.escape, self.values))) if forms else None

    def text(self, line: str) -> str:
        """Return a line with known secrets, and what looks like one, replaced."""
        return redacted_command(self.known(line))

    def words(self, argv: Iterable[str]) -> list[str]:
        """Return an argument vector with secrets replaced, word by word."""
        words = list(argv)
        hidden = secret_values(words)
        return [REDACTED if word in hidden else self.text(word) for word in words]

    def field(self, name: str, value: object) -> object:
        """Return a value, or what stands for it if its name says that it is a secret."""
        is_secret = isinstance(value, str) and is_secret_name(name, value)
        return REDACTED if is_secret else value

    def known(self, line: str) -> str:
        """Return a line with known secrets replaced, and nothing else."""
        return line if self._known is None else self._known.sub(REDACTED, line)


def _forms(value: str) -> set[str]:
    """Return a secret as it stands in a shell, a URL and a JSON text."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return {value, quote(value, safe=""), quote(value), unquote(value), escaped}


def _of_environment(environment: Mapping[str, str]) -> Iterator[str]:
    for name, value in environment.items():
        # What exists on this machine is the path to a secret, and no secret.
        if is_secret_name(name, value) and not _is_path(value):
            yield value
        yield from _of_urls(value)


def _is_path(value: str) -> bool:
    try:
        return value.startswith("/") and Path(value).exists()
    except (OSError, ValueError):
        return False


def _of_urls(text: str) -> Iterator[str]:
    for word in text.split():
        if "://" not in word:
            continue
        try:
            parts = urlsplit(word)
        except ValueError:
            continue
        login, at, _ = parts.netloc.rpartition("@")
        if at:
            yield from (login, *login.split(":", 1)[1:])
        yield from (value for _, value in parse_qsl(parts.query))


_PLAIN_HEADERS = {"accept", "accept-encoding", "content-type", "user-agent", "connection", "host"}


def _of_headers(headers: Mapping[str, str]) -> Iterator[str]:
    for name, value in headers.items():
        if name.lower() not in _PLAIN_HEADERS:
            yield value
            # `Bearer X`, `Basic X`: what follows the scheme turns up alone.
            yield from value.split()[1:]
