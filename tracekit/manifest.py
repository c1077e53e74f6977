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

# Each keeps its first group and replaces the rest.
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


def allowed_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that may be kept: on the allow-list, with a short plain value."""
    return {
        name: value
        for name, value in sorted(environment.items())
        if _ALLOWED.fullmatch(name) and _PLAIN_VALUE.fullmatch(value)
    }


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
