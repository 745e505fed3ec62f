"""What README.md shows works as shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = (Path(__file__).resolve().parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("code", BLOCKS)
def test_python_blocks_print_what_they_say(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    expected = re.findall(r"^print\(.*\)  # (.*)$", code, re.MULTILINE)
    assert expected
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    assert capsys.readouterr().out.splitlines() == expected
