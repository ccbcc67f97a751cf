"""Shows results of runs: `serve_view` on a port of this machine, and `write_html_report` as a single file.

`index` finds trials quickly, `labels` holds what people noted, `pages` are the view models, `rendering` makes HTML of
them, and `server` delivers it.
"""

from typing import TYPE_CHECKING

from quintain.lazy import lazy_exports

if TYPE_CHECKING:
    from quintain_view.html_report.writer import write_html_report
    from quintain_view.index.worst import WorstAnswer, worst_answers
    from quintain_view.index.writer import update_index
    from quintain_view.reading.trajectories import has_only_trajectories
    from quintain_view.server.serve import serve_view
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "quintain_view.html_report.writer": ("write_html_report",),
            "quintain_view.index.worst": ("WorstAnswer", "worst_answers"),
            "quintain_view.index.writer": ("update_index",),
            "quintain_view.reading.trajectories": ("has_only_trajectories",),
            "quintain_view.server.serve": ("serve_view",),
        },
    )

__all__ = ["WorstAnswer", "has_only_trajectories", "serve_view", "update_index", "worst_answers", "write_html_report"]
