"""What ran, without secrets: the only way command lines and environments leave a trace file.

Environments in real traces hold API keys. An environment variable is kept only if it is on the
allow-list; a command line keeps its words, except values that follow or contain a secret's name.
"""

import re
from collections.abc import Mapping

REDACTED = "<redacted>"

# What decides how a GPU runtime queues, orders and copies, and which rank a process is.
_ALLOWED = re.compile(
    r"(ROCPROF_\w*_TRACE|GPU_MAX_HW_QUEUES|AMD_SERIALIZE_(KERNEL|COPY)|(HIP|CUDA)_LAUNCH_BLOCKING"
    r"|ROC_\w+|DEBUG_(HIP|CLR)_\w+|HIP_(GRAPH_DEVICE_SIGNALS|FORCE_DEV_KERNARG|MAX_SIGNAL_WAIT)"
    r"|GPU_STREAMOPS_CP_WAIT|GPU_FORCE_QUEUE_PROFILING|AMD_DIRECT_DISPATCH"
    r"|(HIP|CUDA|ROCR)_VISIBLE_DEVICES|RANK|LOCAL_RANK|WORLD_SIZE|OMPI_COMM_WORLD_(RANK|SIZE))"
)
_PLAIN_VALUE = re.compile(r"[\w.,:%/+-]{0,64}")
# A whole word of the name: `--hf-token`, `API_KEY`, but not `--max-tokens` or `--tokenizer`.
_SECRET = (
    r"(?<![a-z])(?:token|secret|passw(?:or)?d|api[-_]?key|access[-_]?key|credentials?"
    r"|authorization|auth)(?![a-z])"
)
_VALUE = r"(?:'[^']*'|\"[^\"]*\"|\S+)"
_SECRET_ASSIGNED = re.compile(
    rf"(?i)([\w-]*{_SECRET}[\w-]*\s*[=:]\s*)(?:(?:bearer|basic)\s+)?{_VALUE}"
)
_SECRET_FLAG = re.compile(rf"(?i)(--?[\w-]*{_SECRET}[\w-]*\s+)(?!-){_VALUE}")
_BEARER = re.compile(r"(?i)\b((?:bearer|basic)\s+)\S+")
_URL_LOGIN = re.compile(r"(\w+://)[^/\s@]+@")
_URL_QUERY = re.compile(r"(https?://[^\s?]+\?)\S+")
_KNOWN_TOKEN = re.compile(r"\b(?:hf_|sk-|ghp_|github_pat_|glpat-|xox[abp]-|AKIA)[\w-]{8,}")


def allowed_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that may be kept: on the allow-list, with a short plain value."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if _ALLOWED.fullmatch(name) and _PLAIN_VALUE.fullmatch(value)
    }


def redacted_command(command: str) -> str:
    """Return a command line with the values of secrets replaced.

    Catches `--api-key X`, `TOKEN=X`, `Authorization: Bearer X`, logins and queries in URLs and the
    prefixes of well-known tokens. It works by names and shapes: a secret passed as a bare word
    under an innocent flag is not recognisable, and no tool can promise otherwise.
    """
    text = _SECRET_ASSIGNED.sub(rf"\g<1>{REDACTED}", command)
    text = _SECRET_FLAG.sub(rf"\g<1>{REDACTED}", text)
    text = _BEARER.sub(rf"\g<1>{REDACTED}", text)
    text = _URL_LOGIN.sub(rf"\g<1>{REDACTED}@", text)
    text = _URL_QUERY.sub(rf"\g<1>{REDACTED}", text)
    return _KNOWN_TOKEN.sub(REDACTED, text)
