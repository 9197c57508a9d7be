"""Processes that meet, and note where they and their launcher listen in ``RANK.json`` of a folder."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import psutil

from modules.trainer.distributed import Processes


def listening(pid: int) -> list[str]:
    found = psutil.Process(pid).net_connections(kind="inet")
    return [one.laddr.ip for one in found if one.status == psutil.CONN_LISTEN]


processes = Processes.start("cpu,cpu")
addresses = listening(os.getpid()) + listening(os.getppid()) * (sys.argv[2:] == ["launcher"])
interfaces = [os.environ[f"{name}_SOCKET_IFNAME"] for name in ("GLOO", "NCCL")]
facts = {"addresses": addresses, "interfaces": interfaces, "launched": os.environ["MASTER_ADDR"]}
Path(sys.argv[1], f"{processes.rank}.json").write_text(json.dumps(facts), encoding="utf-8")
processes.barrier()
processes.stop()
