"""The server's flags; those of the engine are the fields of `EngineConfig`."""

import argparse
import inspect
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from types import NoneType
from typing import Any, Literal, NoReturn, get_args, get_type_hints

from instrumented_runtime.config import EngineConfig
from instrumented_runtime.console import say
from instrumented_runtime.costs import Costs
from instrumented_runtime.devices.virtual import Config
from instrumented_runtime.devices.virtual.config import ROCM_VERSIONS
from instrumented_runtime.marks import BACKEND_NAMES
from instrumented_runtime.options import require
from instrumented_runtime.server.start_noise import DEFAULT_VARIATION, StartNoise

PROGRAM = "python -m instrumented_runtime.server"
MODEL = "tiny-decoder"
# Far more than any GPU decodes at once; each has a row and pages of its own.
_MOST_RUNNING = 65536
_PREFIXES = re.compile(r"^(has|is|needs)_")
# A field in a docstring: its name, then lines that are further in.
_OF_FIELD = re.compile(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Options:
    """What a server is told.

    Attributes:
        engine: Of the engine.
        has_overlap: Whether a step is launched before the one before is taken in.
        device: Kind of device.
        virtual: The device that is modelled, this start's noise in it; None on a GPU.
        costs: Of kernels, likewise.
        noise: How this start differs.
        pace: Virtual per wall nanosecond; None: as fast as it goes.
        markers: Where marks go on a GPU while no window of `/start_profile` is open.
        model: Name under which the model is served.
        host: Address to listen on.
        port: 0 takes a free one.
        grace_s: How long a stop waits for requests.
    """

    engine: EngineConfig
    has_overlap: bool
    device: Literal["virtual", "torch"]
    virtual: Config | None
    costs: Costs
    noise: StartNoise
    pace: float | None
    markers: str
    model: str
    host: str
    port: int
    grace_s: float

    @property
    def engine_fields(self) -> dict[str, object]:
        """Return what the engine was told, by name."""
        return asdict(self.engine)


class _Parser(argparse.ArgumentParser):
    # Python 3.11 has no `typing.override`.
    def error(self, message: str) -> NoReturn:  # type: ignore[explicit-override]
        """Say what is wrong in one sentence, and leave."""
        say(f"{message} (--help shows all options)")
        raise SystemExit(2)


def options_of(arguments: Sequence[str]) -> Options:
    """Return what the command line says.

    Raises:
        SystemExit: It cannot be: one sentence says why.
    """
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        return _options(given)
    except ValueError as problem:
        parser.error(str(problem))


def flag_of(name: str) -> str:
    """Return the flag of a field of `EngineConfig`: `has_tensors` is `--tensors`."""
    return "--" + _PREFIXES.sub("", name).replace("_", "-")


def _options(given: argparse.Namespace) -> Options:
    is_virtual = given.device == "virtual"
    if not is_virtual and given.pace is not None:
        raise ValueError("--pace: is for --device virtual; the clock of a GPU is the wall's")
    engine = {part.name: getattr(given, part.name) for part in fields(EngineConfig)}
    if engine["has_tensors"] is None:
        engine["has_tensors"] = not is_virtual
    config = EngineConfig.from_options(engine)
    pace, grace_s, port = given.pace, given.grace_s, given.port
    require(pace is None or 0 < pace <= 1e6, "--pace", pace, "a number above 0, at most 1e6")
    require(0 <= grace_s <= 3600, "--grace-s", grace_s, "seconds from 0 to 3600")
    most = config.max_running
    require(most <= _MOST_RUNNING, "--max-running", most, f"at most {_MOST_RUNNING}")
    require(0 <= port < 1 << 16, "--port", port, "a number from 0 to 65535")
    start_seed = config.seed if given.start_seed is None else given.start_seed
    noise = StartNoise.drawn(given.start_noise if is_virtual else 0.0, start_seed)
    costs = noise.applied(Costs())
    return Options(
        engine=config,
        has_overlap=given.overlap,
        device=given.device,
        virtual=_virtual(given, config, costs) if is_virtual else None,
        costs=costs,
        noise=noise,
        pace=pace,
        markers=given.markers,
        model=given.served_model_name,
        host=given.host,
        port=port,
        grace_s=grace_s,
    )


def _virtual(given: argparse.Namespace, config: EngineConfig, costs: Costs) -> Config:
    return Config.from_environment(
        os.environ,
        seed=config.seed,
        # By a wrong plan kernels touch what is not theirs, computed or not.
        tensors=config.has_tensors or config.plan_writer is not None,
        rocm=given.rocm,
        null_follows_share=given.null_follows_share,
        ordering_edges=given.ordering_edges,
        kernel_jitter=given.kernel_jitter,
        host_costs_ns=costs.host_ns,
    )


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog=PROGRAM,
        usage="%(prog)s [OPTIONS]",
        allow_abbrev=False,
        description="Serve a tiny decoder over OpenAI's API, in virtual time (a model of a GPU, "
        "no measurement) or on a GPU.",
    )
    server = parser.add_argument_group("server")
    server.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: %(default)s)"
    )
    server.add_argument(
        "--port", type=int, default=30000, help="0 takes a free one (default: 30000)"
    )
    server.add_argument("--served-model-name", default=MODEL, metavar="NAME")
    server.add_argument(
        "--grace-s", type=float, default=5.0, help="how long a stop waits for requests (default: 5)"
    )
    device = parser.add_argument_group("device")
    device.add_argument("--device", choices=["virtual", "torch"], default="virtual")
    device.add_argument(
        "--markers",
        choices=BACKEND_NAMES,
        default=os.environ.get("TRACEKIT_MARKERS", "off"),
        help="where marks go on a GPU outside /start_profile (default: TRACEKIT_MARKERS, or off)",
    )
    _add_virtual(parser.add_argument_group("virtual device"))
    engine = parser.add_argument_group("engine")
    engine.add_argument(
        "--overlap",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="launch a step before the one before is taken in",
    )
    _add_engine(engine)
    return parser


def _add_virtual(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--rocm", choices=ROCM_VERSIONS, default="7.2")
    group.add_argument(
        "--ordering-edges",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="a wait pending in another queue costs dispatches nothing",
    )
    group.add_argument("--kernel-jitter", type=float, default=0.0, help="spread of kernel times")
    group.add_argument(
        "--null-follows-share",
        type=float,
        help="how often the null stream goes to the fullest queue on ROCm 7.2",
    )
    group.add_argument(
        "--pace", type=float, help="virtual per wall nanosecond; without it as fast as it goes"
    )
    group.add_argument(
        "--start-noise",
        type=float,
        default=DEFAULT_VARIATION,
        help="standard deviation over mean of what differs between starts (default: %(default)s)",
    )
    group.add_argument("--start-seed", type=int, help="of this start (default: --seed)")


def _add_engine(group: "argparse._ArgumentGroup") -> None:
    hints = get_type_hints(EngineConfig)
    words = dict(_OF_FIELD.findall(inspect.getdoc(EngineConfig) or ""))
    for part in fields(EngineConfig):
        kinds = [kind for kind in get_args(hints[part.name]) if kind is not NoneType]
        kind = hints[part.name] if not kinds else kinds[0]
        more: dict[str, Any] = {"type": kind} if kind in (int, float) else {}
        if kind is bool:
            more = {"action": argparse.BooleanOptionalAction}
        default = None if part.name == "has_tensors" else part.default
        text = " ".join(words[part.name].split()).replace("%", "%%").replace("`", "")
        text += "" if default is None else f" (default: {default})"
        group.add_argument(flag_of(part.name), dest=part.name, default=default, help=text, **more)
