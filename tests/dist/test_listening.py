"""A run on one computer cannot be reached from another one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.trainer.builders import ROOT, environment

pytestmark = pytest.mark.dist

SCRIPT = ROOT / "tests" / "dist" / "meeting.py"
LAUNCHING = (
    "import sys; from pathlib import Path; from modules.trainer.distributed import train_on_each; "
    "sys.exit(train_on_each('cpu,cpu', Path(sys.argv[1]), sys.argv[2:]))"
)


def expect_own_address_alone(folder: Path) -> None:
    places = psutil.net_if_addrs()
    for rank in "01":
        facts: dict[str, Any] = json.loads((folder / f"{rank}.json").read_text("utf-8"))
        assert facts["addresses"] and set(facts["addresses"]) == {"127.0.0.1"}, facts
        for interface in facts["interfaces"]:
            assert {"127.0.0.1"} & {one.address for one in places[interface.lstrip("=")]}


def test_a_run_on_listed_devices_listens_on_this_computer_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LAUNCHING, str(SCRIPT), str(tmp_path), "launcher"]
    made = subprocess.run(
        command, capture_output=True, text=True, timeout=120, env=environment(), check=False, cwd=ROOT
    )
    assert made.returncode == 0, made.stdout + made.stderr
    expect_own_address_alone(tmp_path)


def test_processes_started_by_hand_meet_on_the_address_they_are_given(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    started = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(tmp_path)], stderr=subprocess.PIPE, text=True,
            env={**os.environ, **environment(), **group, "RANK": rank, "LOCAL_RANK": rank},
        )
        for rank in "01"
    ]  # fmt: skip
    said = [one.communicate(timeout=120)[1] for one in started]
    assert [one.returncode for one in started] == [0, 0], said
    expect_own_address_alone(tmp_path)
