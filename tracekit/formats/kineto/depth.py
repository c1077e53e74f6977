"""JSON nested so deeply that decoders, which recurse, give up on it."""

import re

# No decoder's limit is near; nothing that tracekit reads is nested deeper than 5.
_DEEPEST = 64
_TOKEN = re.compile(rb'"(?>(?:[^"\\]|\\.)*)"|[\[\]{}]', re.DOTALL)


def shallow(text: bytes) -> bytes:
    """Return JSON text with what is nested deeper than 64 levels replaced by null.

    Text that is not valid JSON stays invalid.
    """
    kept: list[bytes] = []
    depth = position = 0
    for token in _TOKEN.finditer(text):
        if token[0] in (b"[", b"{"):
            depth += 1
            if depth == _DEEPEST + 1:
                kept += text[position : token.start()], b"null"
        elif token[0] in (b"]", b"}"):
            if depth == _DEEPEST + 1:
                position = token.end()
            depth -= 1
    if depth <= _DEEPEST:
        kept.append(text[position:])
    return b"".join(kept)
