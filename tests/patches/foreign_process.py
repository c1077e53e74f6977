"""A process that has SGLang imported for real and runs programs, each in a fork of its own.

`foreign_process.py NAME` listens on the abstract socket of that name. A line that it gets is JSON
with `modules` to import and the `program`; the answer is what the program put into `result`, or its
traceback. It ends with its last connection.
"""

import importlib
import json
import os
import selectors
import socket
import sys
import traceback
import warnings
from pathlib import Path

warnings.simplefilter("ignore")
HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def _run(program, answers):
    names = {"result": None, "__name__": "program"}
    try:
        exec(compile(program, "program", "exec"), names)
        answer = {"result": names["result"]}
    except (Exception, SystemExit):  # noqa: BLE001  whatever it is, the test shows it
        answer = {"failed": traceback.format_exc()}
    with os.fdopen(answers, "w") as out:
        out.write(json.dumps(answer))


def _answer(request):
    for module in request["modules"]:
        importlib.import_module(module)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _run(request["program"], writing)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answers:
        answer = answers.read()
    os.waitpid(child, 0)
    return answer or json.dumps({"failed": "the program ended without an answer"})


def _serve(listening):
    """Answer one request at a time, until nobody is connected any more."""
    with selectors.DefaultSelector() as selector:
        selector.register(listening, selectors.EVENT_READ)
        # Who started it connects at once, or has ended.
        while (ready := selector.select(60)) or len(selector.get_map()) > 1:
            for key, _ in ready:
                if key.fileobj is listening:
                    connection = listening.accept()[0]
                    lines = connection.makefile("rw")
                    selector.register(connection, selectors.EVENT_READ, lines)
                elif request := key.data.readline():
                    key.data.write(_answer(json.loads(request)) + "\n")
                    key.data.flush()
                else:
                    selector.unregister(key.fileobj)
                    if len(selector.get_map()) == 1:
                        return


def main():
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(f"\0{sys.argv[1]}")
    listening.listen()
    sys.path[:0] = [str(ROOT / ".venv" / "foreign"), str(HERE)]
    import stand_ins

    stand_ins.install()
    _serve(listening)
    # What is imported takes seconds to be taken down.
    os._exit(0)


if __name__ == "__main__":
    main()
