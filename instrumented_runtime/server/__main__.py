"""`python -m instrumented_runtime.server`: see `--help` and `docs/server.md`."""

import sys

from instrumented_runtime.server.options import options_of


def main() -> int:
    """Serve as the command line says; return the exit status."""
    options = options_of(sys.argv[1:])
    # Imported once the command line is known to be good: `--help` is quick.
    try:
        from instrumented_runtime.server.serving import run
    except ImportError as problem:
        sys.stderr.write(f"{problem}; install the extra: pip install 'tracekit-rocm[runtime]'\n")
        return 2
    return run(options)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
