"""What drives superred's own Controller is collected by the pytest of superred's environment alone."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore = [] if find_spec("chatbot_target") else ["controllers"]
