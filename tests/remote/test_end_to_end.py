"""One run on another computer, from its start to its removal, with the program's own trainer."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from modules.runner.status import read_status
from scripts.train_remote import main
from tests.remote.support import newest, write_remote
from tests.trainer.builders import run_here, same_weights

pytestmark = pytest.mark.child


# One trainer is started in a process of its own, which takes most of the time of this test. The usual run takes every
# step of it with a trainer that trains nothing, and tests what becomes of a config and its files.
def test_a_run_there_ends_with_the_weights_of_one_here(trusted, remote, tmp_path, capsys):
    config = write_remote(tmp_path / "job", remote, samples=[{"prompt": "a red circle", "width": 64, "height": 64,
                          "diffusion_steps": 1}], sample_before_training=True)  # fmt: skip
    assert main(["start", "--config-path", str(config)]) == 0
    record = newest()
    assert f"started: {record.run}" in capsys.readouterr().out
    assert main(["follow"]) == 0
    said = capsys.readouterr().out
    assert "run_started" in said and said.endswith(f"{record.run}: finished\n")
    status = read_status(record.mirror)
    assert (status.state, status.step["progress"]["global_step"]) == ("finished", 3)

    assert main(["fetch"]) == 0
    run_here(config, from_files=True)
    assert same_weights(record.folder / "model" / "out.safetensors", tmp_path / "job" / "out.safetensors")
    assert list((record.folder / "samples").rglob("*.jpg"))
    assert "finished" in (record.folder / "log.txt").read_text() or (record.folder / "log.txt").stat().st_size
    there = Path(trusted.home / remote.directory)
    assert "127.0.0.1" not in "".join(path.read_text() for path in (there / "runs").rglob("config.json"))

    before = trusted.received
    capsys.readouterr()
    assert main(["fetch"]) == 0
    assert "0 files fetched" in capsys.readouterr().out
    assert main(["clean", "--yes"]) == 0
    assert not (there / "runs" / record.run).exists() and not (there / "inputs" / record.run).exists()
    assert not [path for path in (there / "store").rglob("*") if path.is_file()]
    assert trusted.received > before and shutil.disk_usage(there)
