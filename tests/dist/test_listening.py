"""A run on one computer cannot be reached from another one."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from modules.trainer.control.LocalMeeting import is_on_one_computer
from tests.children.warm import start_warm
from tests.trainer.builders import ROOT, environment

pytestmark = pytest.mark.dist

SCRIPT = ROOT / "tests" / "dist" / "meeting.py"
LAUNCHING = (
    "import sys; from pathlib import Path; from modules.trainer.distributed import train_on_each; "
    "sys.exit(train_on_each('cpu,cpu', Path(sys.argv[1]), sys.argv[2:]))"
)


def expect_own_address_alone(folder: Path, address: str = "127.0.0.1") -> None:
    places = psutil.net_if_addrs()
    for rank in "01":
        facts: dict[str, Any] = json.loads((folder / f"{rank}.json").read_text("utf-8"))
        assert facts["addresses"] and set(facts["addresses"]) <= {"127.0.0.1", address}, facts
        for interface in facts["interfaces"]:
            assert {"127.0.0.1"} & {one.address for one in places[interface.lstrip("=")]}


def test_a_run_on_listed_devices_listens_on_this_computer_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LAUNCHING, str(SCRIPT), str(tmp_path), "launcher"]
    made = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=environment(), check=False, cwd=ROOT
    )
    assert made.returncode == 0, made.stdout + made.stderr
    expect_own_address_alone(tmp_path)


# Debian gives the computer's own name the second one
@pytest.mark.skipif(sys.platform == "darwin", reason="has no other loopback address")
@pytest.mark.parametrize("host", ["localhost", "127.0.1.1"])
def test_processes_started_by_hand_meet_on_the_address_they_are_given(tmp_path: Path, host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": host, "MASTER_PORT": port}
    outputs = [tmp_path / f"output-{rank}.txt" for rank in "01"]
    started = [
        start_warm(
            SCRIPT, [str(tmp_path)], output, output,
            {**environment(), **group, "RANK": rank, "LOCAL_RANK": rank},
        )
        for rank, output in zip("01", outputs, strict=True)
    ]  # fmt: skip
    codes = [one.wait(120) for one in started]
    assert codes == [0, 0], [output.read_text(encoding="utf-8") for output in outputs]
    expect_own_address_alone(tmp_path, socket.gethostbyname(host))


@pytest.mark.parametrize(
    ("host", "started_here", "expected"),
    [
        ("localhost", None, True),
        ("127.0.0.1", None, True),
        ("localhost", "2", True),
        ("some-name", "2", True),
        # the name of the first of two computers may mean its own loopback address there
        ("127.0.1.1", "1", False),
        (socket.gethostname(), None, False),
        ("192.0.2.1", None, False),
    ],
)
def test_several_computers_are_not_taken_for_one(
    host: str, started_here: str | None, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if started_here is None:
        monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    else:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", started_here)
    assert is_on_one_computer(host, 2) is expected
