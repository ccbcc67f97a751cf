"""The runner behind ``quintain run``: a dataset by targets by graders, kept as it goes, taken up again.

`evaluation` and `dataset` read what a person wrote, `plan` says what to ask, `trial` asks and grades one case,
`results` and `record` keep it, `progress` and `closing` show it, and `run` drives it all.
"""

from typing import TYPE_CHECKING

from quintain.lazy import lazy_exports

if TYPE_CHECKING:
    from quintain_runner.atomic import holding, replacing
    from quintain_runner.beside import read_beside
    from quintain_runner.closing import last_line, note, table_of
    from quintain_runner.comparison import Comparison, compare_runs
    from quintain_runner.comparison_text import comparison_lines, comparison_sheets, verdict_of
    from quintain_runner.cost import dollars
    from quintain_runner.csv_file import write_csv
    from quintain_runner.dataset import DatasetFacts, read_cases
    from quintain_runner.dataset_command import open_dataset
    from quintain_runner.doors import Doors, scrubbed
    from quintain_runner.estimate import Estimate, Plan, estimate_plan
    from quintain_runner.evaluation import Evaluation, load_evaluation
    from quintain_runner.grader_specs import CommandGrader, FunctionGrader, GraderSpec, JudgeGrader, kind_of, most_calls
    from quintain_runner.grading import Grader, judge_of
    from quintain_runner.junit import write_junit
    from quintain_runner.markdown import write_markdown
    from quintain_runner.plan import Again, check_known, choose_targets, most_per_trial
    from quintain_runner.prices import Price, price_of, prices_of
    from quintain_runner.programs import Executing
    from quintain_runner.progress import Silent, progress_on
    from quintain_runner.ready_graders import prepared_graders
    from quintain_runner.record import Origin
    from quintain_runner.report import RunReport, read_report
    from quintain_runner.results import calls_in
    from quintain_runner.run import DEFAULT_CONCURRENCY, DEFAULT_GRADERS_AT_ONCE, RunSetup, run_evaluation
    from quintain_runner.schema import evaluation_schema
    from quintain_runner.sheets import Sheet, cost_line, sheets_of
    from quintain_runner.terminal import plain
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "quintain_runner.atomic": ("holding", "replacing"),
            "quintain_runner.beside": ("read_beside",),
            "quintain_runner.closing": ("last_line", "note", "table_of"),
            "quintain_runner.comparison": ("Comparison", "compare_runs"),
            "quintain_runner.comparison_text": ("comparison_lines", "comparison_sheets", "verdict_of"),
            "quintain_runner.cost": ("dollars",),
            "quintain_runner.csv_file": ("write_csv",),
            "quintain_runner.dataset": ("DatasetFacts", "read_cases"),
            "quintain_runner.dataset_command": ("open_dataset",),
            "quintain_runner.doors": ("Doors", "scrubbed"),
            "quintain_runner.estimate": ("Estimate", "Plan", "estimate_plan"),
            "quintain_runner.evaluation": ("Evaluation", "load_evaluation"),
            "quintain_runner.grader_specs": (
                "CommandGrader",
                "FunctionGrader",
                "GraderSpec",
                "JudgeGrader",
                "kind_of",
                "most_calls",
            ),
            "quintain_runner.grading": ("Grader", "judge_of"),
            "quintain_runner.junit": ("write_junit",),
            "quintain_runner.markdown": ("write_markdown",),
            "quintain_runner.plan": ("Again", "check_known", "choose_targets", "most_per_trial"),
            "quintain_runner.prices": ("Price", "price_of", "prices_of"),
            "quintain_runner.programs": ("Executing",),
            "quintain_runner.progress": ("Silent", "progress_on"),
            "quintain_runner.ready_graders": ("prepared_graders",),
            "quintain_runner.record": ("Origin",),
            "quintain_runner.report": ("RunReport", "read_report"),
            "quintain_runner.results": ("calls_in",),
            "quintain_runner.run": ("DEFAULT_CONCURRENCY", "DEFAULT_GRADERS_AT_ONCE", "RunSetup", "run_evaluation"),
            "quintain_runner.schema": ("evaluation_schema",),
            "quintain_runner.sheets": ("Sheet", "cost_line", "sheets_of"),
            "quintain_runner.terminal": ("plain",),
        },
    )

__all__ = [
    "DEFAULT_CONCURRENCY",
    "DEFAULT_GRADERS_AT_ONCE",
    "Again",
    "CommandGrader",
    "Comparison",
    "DatasetFacts",
    "Doors",
    "Estimate",
    "Evaluation",
    "Executing",
    "FunctionGrader",
    "Grader",
    "GraderSpec",
    "JudgeGrader",
    "Origin",
    "Plan",
    "Price",
    "RunReport",
    "RunSetup",
    "Sheet",
    "Silent",
    "calls_in",
    "check_known",
    "choose_targets",
    "compare_runs",
    "comparison_lines",
    "comparison_sheets",
    "cost_line",
    "dollars",
    "estimate_plan",
    "evaluation_schema",
    "holding",
    "judge_of",
    "kind_of",
    "last_line",
    "load_evaluation",
    "most_calls",
    "most_per_trial",
    "note",
    "open_dataset",
    "plain",
    "prepared_graders",
    "price_of",
    "prices_of",
    "progress_on",
    "read_beside",
    "read_cases",
    "read_report",
    "replacing",
    "run_evaluation",
    "scrubbed",
    "sheets_of",
    "table_of",
    "verdict_of",
    "write_csv",
    "write_junit",
    "write_markdown",
]
