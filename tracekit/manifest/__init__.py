"""What ran, without secrets: command lines, environments, and the record of a capture."""

from tracekit.manifest.redaction import (
    REDACTED,
    allowed_environment,
    is_secret_name,
    redacted_command,
    secret_values,
)

__all__ = [
    "REDACTED",
    "allowed_environment",
    "is_secret_name",
    "redacted_command",
    "secret_values",
]
