"""Trajectories in two lanes: of whatever a file holds a page is made, and it says what is not known."""

from __future__ import annotations

from pathlib import Path

import pytest

from quintain.contracts.remote_target import TRAJECTORY_FOLDER, TrajectoryLine, TrajectoryStart
from quintain_view.html_report import read_trajectories, write_html_report
from quintain_view.reading import ContentMissing
from quintain_view.render import ServedLinks, render
from quintain_view.trajectory_files import TRAJECTORIES_PER_PAGE, list_trajectories, read_trajectory, trajectory_version
from quintain_view.trajectory_page import RunState, TrajectoryPage, TrajectoryRecord, trajectory_page
from support.html_reports import assert_harmless, cards_of
from support.results_folder import HOSTILE, graded_row, write_results

#: The run began at this time, in milliseconds since the epoch.
BEGAN_MS = 1_767_225_600_000
START = TrajectoryStart(target="bot", title="task 1", host_id="h", lease_id="l", started_at="2026-01-01T00:00:00+00:00")


def line(kind: str, ms: float, seq: int | None = None, **texts: str) -> TrajectoryLine:
    return TrajectoryLine.model_validate({"kind": kind, "ms": ms, "seq": seq, "texts": texts, "type": "T"})


def page_of(*lines: TrajectoryLine, is_written: bool = False, page: int | None = None) -> TrajectoryPage:
    record = TrajectoryRecord("one.jsonl", START, lines, is_written)
    return trajectory_page(record, now_ms=BEGAN_MS + 10_000, page=page)


def html_of(page: TrajectoryPage, name: str = "run") -> str:
    return render("trajectory.html", page=page, name=name, file=page.name, seen="", note="", links=ServedLinks())


def write_lines(results: Path, *lines: bytes, name: str = "one.jsonl") -> Path:
    path = results / TRAJECTORY_FOLDER / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\n".join([START.to_wire(), *lines, b""]))
    return path


def test_a_reply_stands_beside_its_event_also_where_events_are_nested() -> None:
    page = page_of(
        line("send", 0, 1, request="outer"),
        line("send", 100, 2, request="inner"),
        line("emit", 150, content='"seen"'),
        line("reply", 200, 2, value="to inner"),
        line("reply", 1500, 1, value="to outer"),
        line("end", 1600),
    )
    assert [(step.kind, step.beside) for step in page.steps] == [("send", 0), ("send", 1), ("emit", 0)]
    outer, inner, seen = page.steps
    assert (outer.reply.took, inner.reply.took) == ("1.50 s", "100 ms")
    assert [one.text.text for one in (inner.reply.texts)] == ["to inner"]
    assert [one.text.text for one in seen.texts or ()] == ["seen"]
    assert (page.state, page.took, page.waiting) == (RunState.ENDED, "1.60 s", [])
    # A reply without its event is shown as such.
    page = page_of(line("reply", 1, 7), line("send", 2, 1), line("reply", 3, 1), line("reply", 4, 1), line("end", 5))
    assert [(step.kind, step.title) for step in page.steps] == [("reply", ""), ("send", "T"), ("reply", "")]


def test_sixty_four_branches_wait_at_once_and_each_has_a_clock() -> None:
    sent = [line("send", number, number, request=f"branch {number}") for number in range(64)]
    replies = [line("reply", 1000 + number, number) for number in range(63)]
    page = page_of(*sent, *replies, is_written=True)
    assert [step.beside for step in page.steps] == list(range(64))
    (waiting,) = page.waiting
    assert waiting.waits_since == BEGAN_MS + 63
    assert waiting.waited == "9 s"
    assert len(page_of(*sent, is_written=True).waiting) == 64


@pytest.mark.parametrize("last", ["end", "none"])
def test_an_event_without_a_reply_waits_only_while_the_run_goes_on(last: str) -> None:
    lines = [line("send", 0, 1), *([line("end", 5)] if last == "end" else [])]
    page = page_of(*lines)
    (step,) = page.steps
    assert (step.reply, step.waits_since, page.waiting) == (None, None, [])
    assert page.state is (RunState.ENDED if last == "end" else RunState.STOPPED)


def test_a_file_that_is_cut_anywhere_has_a_page(tmp_path: Path) -> None:
    lines = [line("send", 1, 1, request="ä"), line("reply", 2, 1, value="b"), line("end", 3, error="E: x")]
    path = write_lines(tmp_path, *(one.to_wire() for one in lines))
    whole = path.read_bytes()
    states = []
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        record = read_trajectory(tmp_path, path.name)
        assert record.unreadable == 0
        assert trajectory_page(record, BEGAN_MS).steps is not None
        states.append(record.state)
        ((entry,), has_more) = list_trajectories(tmp_path)
        assert (entry.state, has_more) == (record.state, False)
    assert set(states) == {RunState.STOPPED, RunState.FAILED}
    assert states[-1] is RunState.FAILED


def test_lines_that_are_none_are_counted(tmp_path: Path) -> None:
    garbage = [b"\xff\x00", b"[]", b'{"kind": "dance", "ms": 1}', b'{"kind": "send", "ms": "x"}', b"{}"]
    write_lines(tmp_path, *garbage, line("end", 3).to_wire())
    record = read_trajectory(tmp_path, "one.jsonl")
    assert (record.unreadable, record.state) == (len(garbage), RunState.ENDED)
    (tmp_path / TRAJECTORY_FOLDER / "one.jsonl").write_bytes(b"garbage\n" * 3)
    record = read_trajectory(tmp_path, "one.jsonl")
    assert (record.start, record.unreadable) == (None, 2)
    assert "an unknown target" in html_of(trajectory_page(record, BEGAN_MS))


@pytest.mark.parametrize("name", ["../../run.json", "..", "", "none.jsonl", "a/b.jsonl", "x\x00.jsonl", ".jsonl"])
def test_only_files_of_the_folder_are_read(tmp_path: Path, name: str) -> None:
    write_lines(tmp_path)
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ContentMissing):
        read_trajectory(tmp_path, name)
    assert trajectory_version(tmp_path, name) is None


def test_a_list_has_pages_the_newest_first(tmp_path: Path) -> None:
    for number in range(TRAJECTORIES_PER_PAGE + 1):
        write_lines(tmp_path, name=f"{number:04}.jsonl")
    entries, has_more = list_trajectories(tmp_path)
    assert (len(entries), has_more) == (TRAJECTORIES_PER_PAGE, True)
    assert entries[0].name == f"{TRAJECTORIES_PER_PAGE:04}.jsonl"
    entries, has_more = list_trajectories(tmp_path, page=2)
    assert ([entry.name for entry in entries], has_more) == (["0000.jsonl"], False)


def trajectory_line(kind: str, seq: int, **texts: str) -> bytes:
    return line(kind, seq, seq, **texts).to_wire()


def test_a_file_has_the_trajectories_of_its_folder_and_nothing_in_them_is_markup(tmp_path: Path) -> None:
    write_results(tmp_path / "run", [graded_row("1", 1.0)])
    sent, reply = trajectory_line("send", 1, request=HOSTILE), trajectory_line("reply", 1, value="the reply")
    write_lines(tmp_path / "run", sent, reply, trajectory_line("end", 2, error=HOSTILE))
    write_html_report(tmp_path / "report.html", [tmp_path / "run"])
    html = (tmp_path / "report.html").read_text()
    assert 'href="#run-1-trajectory-1"' in html
    html += cards_of(html)["run-1-trajectory-1"]
    assert_harmless(html)
    lanes = html.partition('<ol class="lanes"')[2].partition("</ol>")[0]
    assert "the reply" in lanes
    assert "&lt;script&gt;" in lanes
    # A clock would go on in a file that is read next week.
    assert 'data-since="' not in html


def test_a_bounded_file_has_the_trajectories_that_failed_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = [trajectory_line("send", number, request="x" * 90) for number in range(1, 302)]
    write_lines(tmp_path, *long, trajectory_line("end", 999, error="it broke"), name="a.jsonl")
    for name in "bcde":
        write_lines(tmp_path, trajectory_line("send", 1), trajectory_line("end", 2), name=f"{name}.jsonl")
    size = sum((tmp_path / TRAJECTORY_FOLDER / f"{name}.jsonl").stat().st_size for name in "ade")
    monkeypatch.setattr("quintain_view.html_report.MAX_BYTES", size)
    found = read_trajectories(tmp_path, "run-1")
    listed = {place: entry.name for place, entry in found.listed}
    assert listed == {f"run-1-trajectory-{number}": f"{name}.jsonl" for number, name in enumerate("eda", start=1)}
    assert found.total == 5
    write_html_report(tmp_path / "report.html", [tmp_path])
    html = (tmp_path / "report.html").read_text()
    assert "3 of 5 trajectories" in html
    assert 'class="matrix"' not in html, "a folder with trajectories only is a file too"
    assert cards_of(html)["run-1-trajectory-3"].count("data-line") == 301
