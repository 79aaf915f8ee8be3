"""A worker that misbehaves by script: `python scripted_worker.py SCRIPT.json`.

The script says how each start goes, in "starts" (beyond its end: well), and what happens at each
implementation of a case, in "acts" by "case impl" (else: "pass"), or before the first, by "case".
"""

import json
import os
import signal
import sys
import time

out = sys.stdout.buffer


def write(data):
    out.write(data)
    out.flush()


def say(message):
    write(json.dumps(message).encode() + b"\n")


def result(case, impl, **others):
    say({"result": {"case": case, "impl": impl, "state": "Pass", **others}})


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def endless(act):
    while True:
        act()


def child_that_holds_the_pipe():
    if os.fork():
        die()
    time.sleep(600)


BEFORE = {
    "die": lambda case, impl: die(),
    "exit": lambda case, impl: os._exit(0),
    "hang": lambda case, impl: time.sleep(600),
    "half": lambda case, impl: (write(b'{"result": {"case": "'), die()),
    "not JSON": lambda case, impl: write(b"Segmentation fault\n"),
    "not UTF-8": lambda case, impl: write(b"\xff\xfe\n"),
    "not an object": lambda case, impl: write(b"[1, 2]\n"),
    "empty": lambda case, impl: say({}),
    "deep": lambda case, impl: write(b"[" * 100000 + b"\n"),
    "other case": lambda case, impl: result(case + "0", impl),
    "other impl": lambda case, impl: result(case, impl + "0"),
    "no state": lambda case, impl: say({"result": {"case": case, "impl": impl}}),
    "bad state": lambda case, impl: result(case, impl, state="Passed"),
    "bad field": lambda case, impl: result(case, impl, mood="good"),
    "bad type": lambda case, impl: result(case, impl, seconds="long"),
    "not a number": lambda case, impl: result(case, impl, worst=float("nan")),
    "infinite": lambda case, impl: write(
        b'{"result": {"case": "%s", "impl": "%s", "state": "Pass", "worst": 1e999}}\n'
        % (case.encode(), impl.encode())
    ),
    "begin other": lambda case, impl: say({"begin": [case + "0", impl]}),
    "begin nothing": lambda case, impl: say({"begin": None}),
    "begin for ever": lambda case, impl: endless(lambda: say({"begin": [case, impl]})),
    "inputs for ever": lambda case, impl: endless(lambda: say({"inputs": [case, "0"]})),
    "early done": lambda case, impl: say({"done": True}),
    "flood": lambda case, impl: endless(lambda: write(b"x" * 65536)),
    "child": lambda case, impl: child_that_holds_the_pipe(),
}
"""What may happen while an implementation is under way: it comes to no result."""

AFTER = {
    "pass": lambda case, impl: None,
    "then die": lambda case, impl: die(),
    "then exit": lambda case, impl: os._exit(3),
    "then half": lambda case, impl: (write(b'{"beg'), die()),
    "then twice": lambda case, impl: result(case, impl),
    "then not JSON": lambda case, impl: write(b"}\n"),
}
"""What may happen once it has its result."""


def fuzz(op, impl, act):
    drawn = f"{op}/drawn"
    say({"begin": [drawn, impl]})
    if act in BEFORE:
        BEFORE[act](drawn, impl)
    if act == "fails":
        result(drawn, impl, state="Crash")
    say({"fuzzed": 1})
    say({"done": True})


def perform(request, acts):
    if "fuzz" in request:
        return fuzz(*request["fuzz"], act=acts["fuzz"])
    case = request["case"]
    if case in acts:
        BEFORE[acts[case]](case, request["impls"][0])
    say({"inputs": [case, "0"]})
    for impl in request["impls"]:
        act = acts.get(f"{case} {impl}", "pass")
        if act != "no begin":
            say({"begin": [case, impl]})
        if act in BEFORE:
            BEFORE[act](case, impl)
        if act == "noise":
            for _ in range(200):
                os.write(2, b"noise " * 4000)
        if act == "lost":
            say({"result": {"case": case, "impl": impl, "state": "Crash"}, "lost": True})
            os._exit(4)
        result(case, impl)
        if act in AFTER:
            AFTER[act](case, impl)
    say({"done": True})


def life(script):
    """The number of this start: each of them makes a file."""
    number = 0
    while True:
        try:
            os.close(os.open(f"{script}.{number}", os.O_CREAT | os.O_EXCL))
            return number
        except FileExistsError:
            number += 1


def main():
    with open(sys.argv[1]) as file:
        script = json.load(file)
    starts = script.get("starts", [])
    number = life(sys.argv[1])
    start = starts[number] if number < len(starts) else "ready"
    if start != "ready":
        os.write(2, b"no such device\n")
        BEFORE[start]("", "")
        os._exit(1)
    say({"ready": "a script"})
    for line in sys.stdin:
        perform(json.loads(line), script["acts"])


if __name__ == "__main__":
    main()
