"""A fork is to tests what a new process is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.children import warm
from tests.trainer.builders import command, environment, events, same_weights, write_config

pytestmark = [
    pytest.mark.child,
    pytest.mark.skipif(not warm.POSSIBLE, reason="forks are not safe here"),
]

SPEAKING = """
import json, os, random, signal, sys, threading
import numpy, torch
facts = {
    "name": __name__, "arguments": sys.argv, "path": sys.path[0], "folder": os.getcwd(),
    "value": os.environ.get("VALUE"),
    "files": sorted(int(file) for file in os.listdir("/proc/self/fd")), "threads": threading.active_count(),
    "input": sys.stdin.read(), "drawn": [random.random(), numpy.random.rand(), torch.rand(1).item()],
    "signals": [getattr(signal.getsignal(number), "__name__", "") for number in (2, 13, 15, 17)],
    "main": sys.modules["__main__"].__name__,
}
print(json.dumps(facts))
print("an error", file=sys.stderr)
"""


ARGUMENTS = ["one", "two words"]


def script(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text(text, encoding="utf-8")
    return path


def run_new(script: Path, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, str(script), *ARGUMENTS]
    return subprocess.run(
        line, capture_output=True, text=True, env=env, stdin=subprocess.DEVNULL, timeout=60, check=False
    )


def test_a_script_sees_what_it_would_see_in_a_new_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    speaking, own = script(tmp_path, SPEAKING), {**os.environ, "VALUE": "a value"}
    forks = [warm.run_warm(speaking, ARGUMENTS, 60, own) for _ in range(2)]
    new = run_new(speaking, own)
    assert [fork.stderr for fork in forks] == [new.stderr] * 2 and new.stderr == "an error\n"
    one, other, usual = (json.loads(done.stdout) for done in (*forks, new))
    drawn = [facts.pop("drawn") for facts in (one, other, usual)]
    assert one == other == usual
    assert len({number for numbers in drawn for number in numbers}) == 9


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit('no room')", 1, "no room\n"),
        ("raise ValueError('broken')", 1, "ValueError: broken"),
        ("import atexit; atexit.register(print, 'ended')", 0, ""),
        ("import os; os.kill(os.getpid(), 9)", -9, ""),
        ("import os; os._exit(7)", 7, ""),
        ("import signal; signal.raise_signal(2)", -2, "KeyboardInterrupt"),
        ("import threading, time; threading.Thread(target=lambda: (time.sleep(0.3), print('late'))).start()", 0, ""),
    ],
)  # fmt: skip
def test_a_script_ends_as_a_new_process_does(tmp_path: Path, text: str, status: int, said: str) -> None:
    ending = script(tmp_path, text)
    fork, new = warm.run_warm(ending, ARGUMENTS, 60), run_new(ending)
    assert (fork.returncode, fork.stdout) == (new.returncode, new.stdout)
    assert fork.returncode == status and said in fork.stderr and said in new.stderr


@pytest.mark.slow  # what a script sees and how it ends is compared above, draws of numbers among it
def test_a_run_trains_the_weights_of_a_new_process(tmp_path: Path) -> None:
    forked, new = write_config(tmp_path / "forked"), write_config(tmp_path / "new")
    _, train, *arguments = command(forked)
    done = warm.run_warm(Path(train), arguments, 120, environment())
    assert done.returncode == 0, done.stderr
    subprocess.run(command(new), capture_output=True, env=environment(), check=True)
    assert same_weights(tmp_path / "forked" / "out.safetensors", tmp_path / "new" / "out.safetensors")
    # steps are told at intervals of time
    kinds = [
        [event["kind"] for event in events(tmp_path / name / "run") if event["kind"] != "step"]
        for name in ("forked", "new")
    ]
    assert kinds[0] == kinds[1] and kinds[0][-1] == "run_finished"


def test_signals_reach_a_program_and_waiting_for_it_has_a_limit(tmp_path: Path) -> None:
    sleeping = script(tmp_path, "import time; print('here', flush=True); time.sleep(60)")
    process = warm.start_warm(sleeping, (), tmp_path / "output", tmp_path / "errors")
    while not (tmp_path / "output").read_text():
        assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == process.poll() == -signal.SIGTERM
    process.kill()
    with pytest.raises(subprocess.TimeoutExpired):
        warm.run_warm(sleeping, (), 0.2)


def test_several_run_at_a_time(tmp_path: Path) -> None:
    sleeping = script(
        tmp_path, "import sys, time; time.sleep(float(sys.argv[1])); sys.exit(int(sys.argv[2]))"
    )
    started = [
        warm.start_warm(sleeping, (seconds, status), tmp_path / status, tmp_path / "errors")
        for seconds, status in (("0.4", "5"), ("0.0", "6"), ("0.2", "7"))
    ]
    assert [process.wait(60) for process in started] == [5, 6, 7]
