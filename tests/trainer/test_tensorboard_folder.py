"""Where the curves of a run go."""

from __future__ import annotations

import re
from pathlib import Path

from modules.trainer.tensorboard_folder import log_folder


def test_a_run_that_starts_anew_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "2020-01-01_00-00-00").mkdir()
    made = log_folder(tmp_path, resumes=False)
    assert made.parent == tmp_path
    assert re.fullmatch(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d", made.name)
    assert made.name > "2020-01-01_00-00-00"


def test_a_run_that_resumes_resumes_in_the_newest(tmp_path: Path) -> None:
    for name in ("2020-01-01_00-00-00", "2021-01-01_00-00-00"):
        (tmp_path / name).mkdir()
    (tmp_path / "2022-01-01_00-00-00").write_text("a file, not a folder")
    assert log_folder(tmp_path, resumes=True) == tmp_path / "2021-01-01_00-00-00"


def test_a_run_that_resumes_without_curves_gets_a_folder(tmp_path: Path) -> None:
    assert log_folder(tmp_path / "missing", resumes=True).parent == tmp_path / "missing"
