"""Both servers while 200 others are idle, drip, guess tokens and send bombs: what a good client waits meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modules.reward.remote import TOKEN_VARIABLE
from modules.reward.wire import encode_image
from scripts.demo.vae import images_to_tensor
from scripts.demo.world import make_example
from tests.reward import test_server as client
from tests.source_tree import ROOT

CLIENTS = 200
DRIP_S = 0.5
"""Between two bytes of a dripping client."""
BEGINNINGS = {"idle": b"", "half a head": b"POST /reward HTTP/1.1\r\nHo", "a body begun": client.BODY_BEGUN}


@dataclass(frozen=True)
class Attacked:
    """What came of it.

    Args:
        slowest: answer to a good client, in seconds, and what was going on.
        memory: MiB above those before, at most.
        wrong: answers that should not have been given, and tracebacks.
    """

    slowest: float
    during: str
    memory: float
    wrong: list[str]
    asked: int


def _resident(pid: int, what: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) / 1024


@contextmanager
def dripping(address: str, first: bytes) -> Iterator[None]:
    """Clients that send one byte every now and then."""
    over = threading.Event()
    with client.idle_clients(address, CLIENTS, first) as held:

        def drip() -> None:
            while not over.wait(DRIP_S):
                for one in held:
                    with suppress(OSError):  # the server has hung up
                        one.sendall(b"x")

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def reward_server() -> tuple[Any, bytes]:
    """A process, and a good request."""
    return client.start("--reward", "brightness", "--max-pixels", "9000"), client.request()


def judge() -> tuple[Any, bytes]:
    """The demo's judge as a process, and a good request."""
    process = subprocess.Popen(
        [sys.executable, "-m", "scripts.demo.judge_server"], cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1", TOKEN_VARIABLE: client.TOKEN},
    )  # fmt: skip
    pixels, scene = make_example(5, 0)
    image = (images_to_tensor([pixels])[0] + 1) / 2
    return process, client.request(prompts=[scene.wish.caption()], images=[encode_image(image)])


SERVERS: dict[str, Callable[[], tuple[Any, bytes]]] = {"reward server": reward_server, "judge server": judge}


def attacked(name: str, rounds: int = 1) -> Attacked:
    """A server under each kind of attack, and a good client that asks in between."""
    process, good = SERVERS[name]()
    slowest, during, wrong, asked = 0.0, "nothing", [], 0
    bombs = [client.request(images=[make()]) for make in client.HOSTILE.values()]
    bad = [b"{" * 100_000, client.request(images=["x" * 1_000_000]), client.request(prompts=7), *bombs]
    try:
        address = json.loads(process.stdout.readline())["url"]
        client.ask(address, body=good)
        before = _resident(process.pid, "VmRSS")
        held = {f"{what}": client.idle_clients(address, CLIENTS, first) for what, first in BEGINNINGS.items()}
        held |= {f"{what}, dripping": dripping(address, first) for what, first in BEGINNINGS.items()}
        for what, others in held.items():
            with others:
                for body in bad * rounds:
                    wrong += _unless(
                        client.ask(address, body=body)[0], (400, 413, 422), f"{what}: hostile body"
                    )
                    wrong += _unless(
                        client.ask(address, body=good, token="a-wrong-token")[0], (401,), f"{what}: token"
                    )
                    start = time.monotonic()
                    wrong += _unless(client.ask(address, body=good)[0], (200,), f"{what}: good request")
                    asked += 1
                    if time.monotonic() - start > slowest:
                        slowest, during = time.monotonic() - start, what
        memory = _resident(process.pid, "VmHWM") - before
    finally:
        process.terminate()
        said = process.communicate(timeout=20)[1]
    if "Traceback" in said:
        wrong.append(f"traceback: {said[-900:]}")
    return Attacked(slowest, during, memory, wrong, asked)


def _unless(status: int, allowed: tuple[int, ...], what: str) -> list[str]:
    return [] if status in allowed else [f"{what}: {status}"]
