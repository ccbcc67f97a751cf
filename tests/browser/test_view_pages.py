"""The pages in a browser: keys, filters, labels, hostile text, a run that grows, and a file without network."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from quintain_runner.results.labels import read_notes
from quintain_runner.results.row import Row, RowCase
from quintain_view.html_report import write_html_report
from support.browser import ViewPage, start_view, visit, watched_page
from support.command_line import CommandLine, command_line
from support.results_folder import HOSTILE, errored_row, graded_row, hostile_row, sample_trajectory, write_results

#: Of one test: axe-core takes long on a machine with much to do.
pytestmark = pytest.mark.timeout(600)


def asked(row: Row, question: str = "What is it?", expected: str = "the right answer") -> Row:
    return row.model_copy(update={"case": RowCase(question=question, expected=expected)})


def some_rows(*, shift: int = 0) -> list[Row]:
    rows = [
        asked(graded_row(f"case-{n:03}", ((n + shift) % 10) / 10, target=target, output=f"the {n} answer"))
        for n in range(51)
        for target in ("bot", "other")
    ]
    return [*rows, errored_row("broken"), hostile_row()]


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    with command_line(tmp_path_factory.mktemp("view")) as shell:
        write_results(shell.folder / "runs" / "before", some_rows(shift=3), targets=["bot", "other"])
        write_results(shell.folder / "runs" / "after", some_rows(), targets=["bot", "other"])
        yield shell


#: The runs, a run and a case are in test_runs_page.py and test_view_questions.py.
PAGES = ["/run/after/label", "/run/after/compare/before", "/run/after/trend"]


def test_axe_finds_nothing_serious(visitor: ViewPage) -> None:
    for path in PAGES:
        visitor.go(path)
        assert visitor.serious_faults_of_schemes() == {}, path


def test_no_page_is_wider_than_a_telephone(visitor: ViewPage) -> None:
    visitor.page.set_viewport_size({"width": 390, "height": 800})
    for path in (*PAGES, "/run/after?show=failed&q=answer&max=0.1&sort=score", "/run/after/case?id=case-001"):
        page = visitor.go(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path


def test_the_token_is_taken_out_of_the_address_and_without_it_nothing_is_shown(address: str, browser: Browser) -> None:
    with browser.new_context() as stranger:
        one = watched_page(stranger, address)
        answer = one.page.goto(f"{one.origin}/run/after")
        assert answer.status == 401
        assert "case-001" not in one.page.content()
        one.page.goto(f"{one.origin}/#token=wrong")
        expect(one.page.locator("#enter-message")).to_contain_text("start quintain view again")
        assert "token" not in visit(stranger, address).page.url


def press(page: Page, key: str) -> None:
    """Press a key once the page's script has run: a key that comes before it does nothing."""
    page.wait_for_load_state()
    page.keyboard.press(key)


def test_the_keyboard_reaches_every_page(visitor: ViewPage) -> None:
    page = visitor.go("/")
    press(page, "j")
    press(page, "Enter")
    expect(page.locator(".matrix")).to_be_visible()
    press(page, "/")
    page.keyboard.type("case-007")
    press(page, "Enter")
    expect(page.locator(".matrix tbody tr")).to_have_count(1)
    press(page, "j")
    press(page, "Enter")
    expect(page.locator("h1")).to_have_text("case-007")
    press(page, "u")
    expect(page.locator("#q")).to_have_value("case-007")
    page = visitor.go("/run/after/case?id=case-001&at=1")
    press(page, "n")
    expect(page.locator("h1")).to_have_text("case-002")
    press(page, "p")
    expect(page.locator("h1")).to_have_text("case-001")
    press(page, "f")
    expect(page.locator("h1")).to_have_text("case-002")
    page = visitor.go("/run/after/case?id=case-009&at=9")
    press(page, "F")
    expect(page.locator("h1")).to_have_text("case-004")
    press(page, "/")
    expect(page.locator("#q")).to_be_focused()
    press(page, "Escape")
    press(page, "?")
    expect(page.locator("#keys")).to_be_visible()
    press(page, "Escape")
    expect(page.locator("#keys")).to_be_hidden()


def test_filters_stand_in_the_address(visitor: ViewPage) -> None:
    page = visitor.go("/run/after")
    page.get_by_text("More filters").click()
    page.get_by_label("errors", exact=True).check()
    expect(page.locator(".matrix tbody tr")).to_have_count(1)
    assert page.url.endswith("/run/after?show=error")
    page.go_back()
    expect(page.locator(".matrix tbody tr")).to_have_count(50)
    page.get_by_role("link", name="Next page").click()
    expect(page.locator(".matrix tbody tr")).to_have_count(3)


def test_a_late_answer_to_an_earlier_filter_is_not_shown(visitor: ViewPage) -> None:
    page = visitor.go("/run/after")
    page.get_by_text("More filters").click()
    late: list[Route] = []
    page.route("**/run/after?show=error", lambda route: late.append(route))  # noqa: PLW0108 -- it takes no built-in method
    page.get_by_label("errors", exact=True).check()
    page.get_by_label("errors", exact=True).uncheck()
    expect(page).to_have_url(f"{visitor.origin}/run/after")
    with page.expect_response("**/run/after?show=error") as answered:
        late[0].continue_()
    answered.value.finished()
    page.wait_for_timeout(200)  # it would be shown by now
    expect(page.locator(".matrix tbody tr")).to_have_count(50)


def test_a_label_is_written_and_counted(visitor: ViewPage, shell: CommandLine) -> None:
    page = visitor.go("/run/after/case?id=case-001")
    answer = page.locator("article").first
    answer.locator("details.label summary").click()
    answer.get_by_label("passes").check()
    answer.get_by_label("note").fill("right but short")
    answer.get_by_role("button", name="Save").click()
    expect(page.locator("article").first.locator("details.label summary")).to_have_text("Label: passes")
    (note,) = read_notes(shell.folder / "runs" / "after")
    assert (note.case_id, note.column, note.passed, note.text) == ("case-001", "bot", True, "right but short")
    page = visitor.go("/run/after")
    page.get_by_role("link", name="Agreement with labels").click()
    expect(page.get_by_text("agreement with other labels").first).to_be_visible()


def test_an_answer_is_labeled_before_its_verdicts_are_shown(visitor: ViewPage, shell: CommandLine) -> None:
    page = visitor.go("/run/before")
    page.get_by_role("link", name="Label answers").click()
    expect(page.get_by_role("button", name="Fails")).to_be_visible()
    press(page, "2")
    expect(page.get_by_role("status").filter(has_text="Saved")).to_contain_text("fails")
    (note,) = read_notes(shell.folder / "runs" / "before")
    assert (note.passed, note.chosen, note.verdicts_shown) == (False, "random", False)


def test_two_runs_are_compared_case_by_case(visitor: ViewPage) -> None:
    page = visitor.go("/run/after/compare/before")
    tabs = page.get_by_role("navigation", name="What became of the cases")
    expect(tabs.locator("[aria-current=page]")).to_contain_text("worse in every repeat")
    expect(page.get_by_text("chance alone would make about").first).to_be_visible()
    tabs.get_by_role("link", name="better").click()
    page.get_by_role("combobox", name="target").select_option(label="other")
    expect(page).to_have_url(re.compile(r"target=other&change=better"))
    expect(tabs.locator("[aria-current=page]")).to_contain_text("better")
    first = page.locator("article.pair").first
    expect(first.locator(".answers > section")).to_have_count(2)
    expect(first.get_by_text("The answer is the same.")).to_be_visible()
    expect(first.get_by_role("list", name="Graders")).to_have_count(2)
    page.get_by_role("link", name="Next page").click()
    expect(page).to_have_url(re.compile(r"target=other&change=better&page=2"))
    expect(page.locator("article.pair").first).to_be_visible()
    page.get_by_role("link", name="All runs of this evaluation").click()
    expect(page.get_by_role("row", name=re.compile("before.*%.*%"))).to_be_visible()


def test_hostile_text_stays_text(visitor: ViewPage) -> None:
    page = visitor.go("/run/after/compare/before?change=same&page=3")
    expect(page.locator("article.pair h3", has_text="<script>alert(1)</script>")).to_be_visible()
    assert page.locator("main script, main img").count() == 0
    page = visitor.go("/run/after?q=alert")
    page.locator(".matrix a").first.click()
    expect(page.locator("h1")).to_contain_text("<script>alert(1)</script>")
    assert page.locator("main script, main img").count() == 0
    for name in ("Details", "Raw JSON"):
        page.locator("summary", has_text=re.compile(f"^{name}$")).first.click()
    page.get_by_role("link", name="The whole row as text").first.click()
    assert "u202e" in page.content()


def test_a_file_opens_without_a_network(browser: Browser, tmp_path: Path) -> None:
    write_results(tmp_path / "run", [asked(graded_row("case-001", 0.0)), errored_row("broken"), hostile_row()])
    with sample_trajectory(tmp_path / "run"):
        write_html_report(tmp_path / "report.html", [tmp_path / "run"])
    with browser.new_context(offline=True) as context:
        file = context.new_page()
        asked_for: list[str] = []
        file.on("request", lambda request: asked_for.append(request.url))
        file.on("dialog", lambda dialog: asked_for.append(dialog.message))
        file.goto(f"file://{tmp_path / 'report.html'}")
        expect(file.locator("h1")).to_have_count(1)
        opened = file.locator("#opened")
        for key in ("j", "j", "Enter"):
            press(file, key)
        expect(opened.locator("h2")).to_have_text("broken")
        press(file, "n")
        expect(opened.locator("h2")).to_contain_text(HOSTILE[:20])
        assert opened.locator("script, img").count() == 0
        expect(file.locator(".matrix")).to_be_hidden()
        press(file, "F")
        expect(opened.locator("h2")).to_have_text("broken")
        file.reload()
        expect(opened.locator("h2")).to_have_text("broken")
        press(file, "u")
        expect(file.locator(".matrix a:focus")).to_have_text("broken")
        press(file, "/")
        file.keyboard.type("case-0")
        expect(file.locator(".matrix tbody tr:visible")).to_have_count(1)
        file.get_by_role("link", name="support-bot").click()
        lanes = opened.locator(".lanes")
        expect(lanes).to_contain_text("Where is my parcel? Please read the letter of today too.")
        expect(lanes.locator(".clock")).to_have_count(1)
        assert ViewPage("", file).serious_faults() == []
        file.go_back()
        assert [url for url in asked_for if not url.startswith(("file:", "data:"))] == []
        expect(file.locator(".matrix")).to_be_visible()
        file.locator("#q").fill("no case has this")
        expect(file.locator("#none")).to_be_visible()
        file.locator("#q").fill("")
        expect(file.locator("#none")).to_be_empty()
        assert ViewPage("", file).serious_faults() == []


def test_a_run_that_grows_is_shown_while_it_grows(browser: Browser, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "live"
    write_results(folder, [graded_row("1", 1.0)], ended=False)
    with command_line(tmp_path) as shell, browser.new_context() as context:
        one = visit(context, start_view(shell, "--port", "0"))
        page = one.go("/run/live")
        expect(page.locator(".matrix tbody tr")).to_have_count(1)
        expect(page.locator("body[data-stream=open]")).to_be_attached()
        page.locator("#q").evaluate("field => field.blur()")
        with (folder / "results.jsonl").open("ab") as file:
            file.write(graded_row("2", 0.0).to_line())
        expect(page.locator(".matrix tbody tr")).to_have_count(2)
        (folder / "results.jsonl").write_bytes(graded_row("3", 0.0).to_line())
        expect(page.locator(".matrix tbody tr")).to_have_count(1)
        expect(page.locator(".matrix th[scope=row] a")).to_have_text("3")
        assert one.problems == []
