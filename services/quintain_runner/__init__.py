"""Runs evaluations: a dataset by targets by graders, with results that are kept and can be resumed.

`spec` reads the evaluation file, `plan` decides what a run executes, `dataset` reads cases, `graders` grade answers,
`results` stores rows, `statistics` and `cost` evaluate them, `progress` and `report` show them, and `engine` runs the
trials.
"""

from typing import TYPE_CHECKING

from quintain.lazy import lazy_exports

if TYPE_CHECKING:
    from quintain_runner.cost.run_cost import dollars
    from quintain_runner.dataset.command import open_dataset
    from quintain_runner.dataset.reader import DatasetStats, read_cases
    from quintain_runner.engine.error_limit import DEFAULT_MAX_ERRORS, ErrorPolicy
    from quintain_runner.engine.estimate import EstimateInput, RunEstimate, estimate_run
    from quintain_runner.engine.plan_session import PlanSession, SessionRequest
    from quintain_runner.engine.rerun_plan import RerunPlan
    from quintain_runner.engine.run import run_evaluation
    from quintain_runner.engine.run_setup import DEFAULT_CONCURRENCY, DEFAULT_GRADER_CONCURRENCY, RunSetup
    from quintain_runner.graders.base import judge_target_of
    from quintain_runner.graders.factory import UnavailableGraders, open_graders
    from quintain_runner.graders.requirements import case_requirements, graders_without_session
    from quintain_runner.graders.rights import unconfined_programs, variable_warnings
    from quintain_runner.plan.changes import RerunPolicy
    from quintain_runner.plan.selection import TrialSelection
    from quintain_runner.plan.trials import (
        CallsEstimate,
        check_targets_available,
        choose_targets,
        estimate_calls,
        max_grader_calls,
    )
    from quintain_runner.progress.display import NoProgressDisplay, progress_display
    from quintain_runner.progress.terminal_text import plain_line
    from quintain_runner.report.agentv_run import write_agentv_run
    from quintain_runner.report.comparison import Comparison, compare_runs
    from quintain_runner.report.comparison_text import comparison_lines, comparison_tables, conclusion
    from quintain_runner.report.csv_file import flat_rows, write_csv
    from quintain_runner.report.inspect_log import write_inspect_logs
    from quintain_runner.report.junit import write_junit
    from quintain_runner.report.markdown import write_markdown
    from quintain_runner.report.run_record import Origin, planned_targets
    from quintain_runner.report.run_report import RunFile, RunReport, read_recorded_report, read_report, read_run
    from quintain_runner.report.summary_text import (
        calls_made_twice_note,
        exit_line,
        parked_target_notes,
        rich_table,
        unaccounted_calls_note,
        unavailable_grader_notes,
    )
    from quintain_runner.report.tables import TextTable, cost_line, run_tables
    from quintain_runner.results.atomic_file import atomic_write, exclusive_lock
    from quintain_runner.results.row import CheckRow, GraderRow, Row, RowStatus, split_column
    from quintain_runner.results.store import RESULTS_FILE_NAME, charged_calls, read_resume_state
    from quintain_runner.spec.environment import GraderEnvironment
    from quintain_runner.spec.evaluation import Evaluation, load_evaluation
    from quintain_runner.spec.files import read_text_file
    from quintain_runner.spec.graders import (
        CommandGrader,
        FunctionGrader,
        GraderSpec,
        JudgeGrader,
        grader_kind,
    )
    from quintain_runner.spec.json_schema import evaluation_schema
    from quintain_runner.statistics.analysis import Analysis, TargetPair
    from quintain_runner.statistics.formatting import format_share_interval
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "quintain_runner.cost.run_cost": ("dollars",),
            "quintain_runner.dataset.command": ("open_dataset",),
            "quintain_runner.dataset.reader": ("DatasetStats", "read_cases"),
            "quintain_runner.engine.error_limit": ("DEFAULT_MAX_ERRORS", "ErrorPolicy"),
            "quintain_runner.engine.estimate": ("EstimateInput", "RunEstimate", "estimate_run"),
            "quintain_runner.engine.plan_session": ("PlanSession", "SessionRequest"),
            "quintain_runner.engine.rerun_plan": ("RerunPlan",),
            "quintain_runner.engine.run": ("run_evaluation",),
            "quintain_runner.engine.run_setup": ("DEFAULT_CONCURRENCY", "DEFAULT_GRADER_CONCURRENCY", "RunSetup"),
            "quintain_runner.graders.base": ("judge_target_of",),
            "quintain_runner.graders.factory": ("UnavailableGraders", "open_graders"),
            "quintain_runner.graders.requirements": ("case_requirements", "graders_without_session"),
            "quintain_runner.graders.rights": ("unconfined_programs", "variable_warnings"),
            "quintain_runner.progress.display": ("NoProgressDisplay", "progress_display"),
            "quintain_runner.progress.terminal_text": ("plain_line",),
            "quintain_runner.report.agentv_run": ("write_agentv_run",),
            "quintain_runner.report.comparison": ("Comparison", "compare_runs"),
            "quintain_runner.report.comparison_text": ("comparison_lines", "comparison_tables", "conclusion"),
            "quintain_runner.report.csv_file": ("flat_rows", "write_csv"),
            "quintain_runner.report.inspect_log": ("write_inspect_logs",),
            "quintain_runner.report.junit": ("write_junit",),
            "quintain_runner.report.markdown": ("write_markdown",),
            "quintain_runner.report.run_record": ("Origin", "planned_targets"),
            "quintain_runner.report.run_report": (
                "RunFile",
                "RunReport",
                "read_recorded_report",
                "read_report",
                "read_run",
            ),
            "quintain_runner.report.summary_text": (
                "calls_made_twice_note",
                "exit_line",
                "parked_target_notes",
                "rich_table",
                "unaccounted_calls_note",
                "unavailable_grader_notes",
            ),
            "quintain_runner.report.tables": ("TextTable", "cost_line", "run_tables"),
            "quintain_runner.results.atomic_file": ("atomic_write", "exclusive_lock"),
            "quintain_runner.results.row": ("CheckRow", "GraderRow", "Row", "RowStatus", "split_column"),
            "quintain_runner.results.store": ("RESULTS_FILE_NAME", "charged_calls", "read_resume_state"),
            "quintain_runner.plan.changes": ("RerunPolicy",),
            "quintain_runner.spec.environment": ("GraderEnvironment",),
            "quintain_runner.spec.evaluation": ("Evaluation", "load_evaluation"),
            "quintain_runner.spec.files": ("read_text_file",),
            "quintain_runner.spec.graders": (
                "CommandGrader",
                "FunctionGrader",
                "GraderSpec",
                "JudgeGrader",
                "grader_kind",
            ),
            "quintain_runner.spec.json_schema": ("evaluation_schema",),
            "quintain_runner.plan.trials": (
                "CallsEstimate",
                "check_targets_available",
                "choose_targets",
                "estimate_calls",
                "max_grader_calls",
            ),
            "quintain_runner.plan.selection": ("TrialSelection",),
            "quintain_runner.statistics.analysis": ("Analysis", "TargetPair"),
            "quintain_runner.statistics.formatting": ("format_share_interval",),
        },
    )

__all__ = [
    "DEFAULT_CONCURRENCY",
    "DEFAULT_GRADER_CONCURRENCY",
    "DEFAULT_MAX_ERRORS",
    "RESULTS_FILE_NAME",
    "Analysis",
    "CallsEstimate",
    "CheckRow",
    "CommandGrader",
    "Comparison",
    "DatasetStats",
    "ErrorPolicy",
    "EstimateInput",
    "Evaluation",
    "FunctionGrader",
    "GraderEnvironment",
    "GraderRow",
    "GraderSpec",
    "JudgeGrader",
    "NoProgressDisplay",
    "Origin",
    "PlanSession",
    "RerunPlan",
    "RerunPolicy",
    "Row",
    "RowStatus",
    "RunEstimate",
    "RunFile",
    "RunReport",
    "RunSetup",
    "SessionRequest",
    "TargetPair",
    "TextTable",
    "TrialSelection",
    "UnavailableGraders",
    "atomic_write",
    "calls_made_twice_note",
    "case_requirements",
    "charged_calls",
    "check_targets_available",
    "choose_targets",
    "compare_runs",
    "comparison_lines",
    "comparison_tables",
    "conclusion",
    "cost_line",
    "dollars",
    "estimate_calls",
    "estimate_run",
    "evaluation_schema",
    "exclusive_lock",
    "exit_line",
    "flat_rows",
    "format_share_interval",
    "grader_kind",
    "graders_without_session",
    "judge_target_of",
    "load_evaluation",
    "max_grader_calls",
    "open_dataset",
    "open_graders",
    "parked_target_notes",
    "plain_line",
    "planned_targets",
    "progress_display",
    "read_cases",
    "read_recorded_report",
    "read_report",
    "read_resume_state",
    "read_run",
    "read_text_file",
    "rich_table",
    "run_evaluation",
    "run_tables",
    "split_column",
    "unaccounted_calls_note",
    "unavailable_grader_notes",
    "unconfined_programs",
    "variable_warnings",
    "write_agentv_run",
    "write_csv",
    "write_inspect_logs",
    "write_junit",
    "write_markdown",
]
