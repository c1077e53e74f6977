"""Run `python -m instrumented_runtime.bench`: see `command`."""

import sys

if __name__ == "__main__":
    try:
        # Here, for the user may press Ctrl-C while it imports, too.
        from instrumented_runtime.bench.command import main

        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
