"""What the window of a tool gets to show."""

from __future__ import annotations

from pathlib import Path

import pytest

from modules.tools import ToolJob as module
from modules.tools.ToolJob import ToolJob

SCRIPT = """\
import sys
for line in ("1/2 first.png", "note: the adapter decides the rank", "a library's remark"):
    print(line, file=sys.stderr, flush=True)
print("first.png", flush=True)
print("warning: --negative-prompt is not read", file=sys.stderr, flush=True)
"""


@pytest.mark.child
def test_results_notes_and_warnings_are_shown_and_progress_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "tool.py").write_text(SCRIPT, encoding="utf-8")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    job = ToolJob("tool.py", [], "the tool")
    assert job.ended.wait(60.0) and job.fault is None
    assert (job.done, job.total, job.at) == (1, 2, "first.png")
    assert job.result == "first.png"
    assert sorted(job.lines) == [
        "first.png",
        "note: the adapter decides the rank",
        "warning: --negative-prompt is not read",
    ]
