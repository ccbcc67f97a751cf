"""docs/protocol/README.md: its program, run as printed beside the services, prints what the page says."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from support.pages import python_blocks
from support.process_fleet import process_fleet
from support.running_gateway import run_program

PAGE = Path(__file__).parents[2] / "docs" / "protocol" / "README.md"


def block(language: str) -> str:
    """The only block of this language on the page."""
    (text,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return text


def test_the_program_prints_what_the_page_says(broker_url: str, tmp_path: Path) -> None:
    (program,) = python_blocks(PAGE)
    (tmp_path / "program.py").write_text(program)
    with process_fleet(broker_url, block("yaml"), targets=["sage", "parrot"]) as fleet:
        fleet.start("up", "--port", "0").wait_for_output("ctrl-c")
        token = fleet.open_session("sage", 3).token
        env = fleet.env | {"QUINTAIN_SESSION_TOKEN": token}
        ended = run_program([sys.executable, "program.py"], env, tmp_path)
    assert (ended.code, ended.stdout) == (0, block("text")), ended
