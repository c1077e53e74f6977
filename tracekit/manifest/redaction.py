"""Without secrets: the only way command lines and environments leave a trace file or a process.

Environments in real traces hold API keys. An environment variable is kept only if it is on the
allow-list; a command line keeps its words, except values that follow or contain a secret's name.
"""

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise

REDACTED = "<redacted>"

# What decides how a GPU runtime queues, orders and copies, which kernels a server takes, what was
# recorded, and which rank a process is.
_ALLOWED = re.compile(
    r"(ROCPROF_\w*_TRACE|GPU_MAX_HW_QUEUES|AMD_SERIALIZE_(KERNEL|COPY)|(HIP|CUDA)_LAUNCH_BLOCKING"
    r"|ROCPROFILER_QUEUE_INTERPOSITION|AMD_LOG_(LEVEL|MASK|LEVEL_FILE)|HSA_\w+|(NCCL|RCCL)_\w+"
    r"|PYTORCH_(HIP_|CUDA_|)ALLOC_CONF|(SGLANG|VLLM|AITER|TRACEKIT)_\w+|OMP_NUM_THREADS"
    r"|ROC_\w+|DEBUG_(HIP|CLR)_\w+|HIP_(GRAPH_DEVICE_SIGNALS|FORCE_DEV_KERNARG|MAX_SIGNAL_WAIT)"
    r"|GPU_STREAMOPS_CP_WAIT|GPU_FORCE_QUEUE_PROFILING|AMD_DIRECT_DISPATCH"
    r"|(HIP|CUDA|ROCR)_VISIBLE_DEVICES|RANK|LOCAL_RANK|WORLD_SIZE|OMPI_COMM_WORLD_(RANK|SIZE))"
)
_PLAIN_VALUE = re.compile(r"[\w.,:%/+-]{0,64}")
# `--tokenizer t` and counts of tokens (`--max-new-tokens 128`, `"num_tokens": 5`) are no secrets.
# One look ahead for the word, then the name whole: names of any length take linear time.
_END = r"[\w.-]++[\\\"']*+"
_COUNT = rf"(?=[\w.-]*(?:tokens|max[-_]?token)){_END}\s*+[=:]?\s*+\d{{1,9}}(?![\w.-])"
_SECRET = r"(?:pass|pwd|token(?!i[sz])|secret|key|cred|auth)"
_NAME = rf"(?<![\w.-])(?!{_COUNT})(?=[\w.-]*{_SECRET}){_END}"
_FLAG = rf"(?=-){_NAME},?\s+"
# A word as a shell reads it, with JSON lists whole; a quote that nothing closes is a character.
_VALUE = r"(?:'[^']*'|\"(?:\\.|[^\"\\])*\"|\[[^\]]*\]|\S)+"
# Argument lists joined by spaces have lost their quotes: a value may go on up to the next flag.
_VALUES = rf"{_VALUE}(?:\s+(?!-){_VALUE})*"
_SCHEME = r"(?:(?:bearer|basic|digest|token)\s+)"
# `mysql -phunter2`; elsewhere -p is a port, a path or a count, and so is -P here.
_PASSWORD_IN_P = r"(?:mysql|mariadb|mongo|sshpass|7z|(?:docker|podman)\s+login)"

# Each keeps its first group and replaces the rest. The first two take all up to the next flag.
_HIDDEN = tuple(
    re.compile(rf"(?is){pattern}")
    for pattern in (
        rf"({_FLAG})(?:{_FLAG})*{_VALUES}",  # --password X, --use-auth --api-key X
        rf"({_NAME}\s*[=:]\s+){_VALUES}",  # X-Api-Key: X, "token": "X"
        rf"({_NAME}\s*(?:[=:]|(?<=[\"']),)){_SCHEME}?{_VALUE}",  # HF_TOKEN=X, ["--token","X"]
        rf"\b(bearer\s+){_VALUE}",
        rf"((?<!\S)(?:-[a-z]*u\s*|--[\w-]*user[=\s]\s*))(?=\S*:|['\"]){_VALUE}",  # -u me:X
        rf"(\b{_PASSWORD_IN_P}.*?\s-(?-i:p)\s*){_VALUE}",
        rf"(\bredis-cli.*?\s-a\s*){_VALUE}",
        r"(\w://)[^\s/]+(?=@)",
        r"(https?://[^\s?]+\?)\S+",
        r"\b()(?:hf_|sk-|gh[pous]_|github_pat_|glpat-|xox[abp]-|nvapi-|AKIA|eyJ)[\w.-]{8,}",
    )
)
_TO_THE_NEXT_FLAG = _HIDDEN[:2]
_NAMED = re.compile(rf"(?is){_NAME}\s*[=:]")
_SECRET_FLAG = re.compile(rf"(?is)(?=-){_NAME}")
_SEPARATORS = re.compile(r"[\s\\\"'\[\]{},=&]+")


def allowed_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that may be kept: on the allow-list, with a short plain value."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if _ALLOWED.fullmatch(name) and _PLAIN_VALUE.fullmatch(value) and _is_harmless(name, value)
    }


def _is_harmless(name: str, value: str) -> bool:
    return redacted_command(line := f"{name}={value}") == line


def redacted_command(command: str) -> str:
    """Return a command line with the values of secrets replaced.

    A value is hidden for the name before it, of a flag, a variable, a header or a JSON key, if that
    holds pass, pwd, token, secret, key, cred or auth, and for its shape: logins and queries in
    URLs, `-u me:X`, `mysql -pX`, `Bearer X`, prefixes of well-known tokens. It rather hides too
    much than too little, but a secret under an innocent name is not recognisable, nor is the second
    word of a value that lost its quotes (`PASS=a b`), and no tool can promise otherwise.
    """
    for pattern in _HIDDEN:
        command = pattern.sub(rf"\g<1>{REDACTED}", command)
    return command


def secret_values(argv: Iterable[str]) -> set[str]:
    """Return what `redacted_command` would hide of an argument vector, as bare words.

    Quotes, brackets and commas around a secret are left off, so that it is found again where it
    stands without them. Rather too many words than too few.
    """
    words = list(argv)
    # Word by word where a pattern takes all up to the next flag; the others need their neighbours.
    texts = [(pattern, word) for pattern in _TO_THE_NEXT_FLAG for word in words]
    texts += [
        (pattern, shlex.join(words)) for pattern in _HIDDEN if pattern not in _TO_THE_NEXT_FLAG
    ]
    found = {
        bare
        for pattern, text in texts
        for match in pattern.finditer(text)
        for bare in _bare(match[0][len(match[1]) :])
    }
    found.update(_after_flags(words))
    for word in words:
        found.update(_of_json(word))
    return found - {"", REDACTED}


def is_secret_name(name: str, value: str = "") -> bool:
    """Whether a variable, header or key of this name holds a secret, by the rules of a command.

    Args:
        name: The name.
        value: Its value: a number makes a count of what is called `MAX_TOKENS`.
    """
    return _NAMED.match(f"{name}={value}") is not None


def _after_flags(words: list[str]) -> Iterator[str]:
    """Yield the words that follow a flag with a secret's name, up to the next flag."""
    is_value = False
    for before, word in pairwise(words):
        is_flag = word.startswith("-")
        # What follows at once may begin with one dash and be a value all the same.
        is_value = (is_value and not is_flag) or (
            _SECRET_FLAG.fullmatch(before) is not None and not word.startswith("--")
        )
        if is_value:
            yield word


def _bare(hidden: str) -> Iterator[str]:
    """Yield the words inside the quotes and brackets of what a pattern hides."""
    try:
        yield from shlex.split(hidden)
    except ValueError:  # A quote that nothing closes.
        yield hidden
    yield from _SEPARATORS.split(hidden)
    yield hidden.strip("\\\"'[]{},")


def _of_json(word: str) -> Iterator[str]:
    """Yield the values under secret names of a word that is a JSON object or list."""
    if not word.lstrip().startswith(("{", "[")):
        return
    try:
        waiting = [(False, json.loads(word))]
    except (ValueError, RecursionError):
        return
    while waiting:
        is_secret, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [
                (is_secret or is_secret_name(name, str(inner)), inner)
                for name, inner in value.items()
            ]
        elif isinstance(value, list):
            waiting += [(is_secret, inner) for inner in value]
        elif is_secret and isinstance(value, str):
            yield value
