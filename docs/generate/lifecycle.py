"""The page of a call's life: a picture and a table, from the table of transitions of the ledger."""

from __future__ import annotations

from collections import defaultdict
from html import escape

from generate.markdown import code, table
from quintain_metadata.ledger.lifecycle import (
    COUNTED_STATES,
    MAX_ATTEMPTS,
    MAX_UNCOUNTED_ATTEMPTS,
    TRANSITIONS,
    CallState,
    LifecycleEvent,
)

#: The centre of each state's box.
PLACES = {
    CallState.NONE: (330, 60),
    CallState.RESERVED: (110, 250),
    CallState.RELEASED: (110, 440),
    CallState.RUNNING: (540, 250),
    CallState.REFUNDED: (540, 440),
    CallState.COMMITTED: (1000, 60),
    CallState.IN_DOUBT: (1000, 440),
}

_WIDTH, _HEIGHT, _BOX_WIDTH, _BOX_HEIGHT = 1110, 500, 130, 44

_STYLE = """
  text { font: 13px sans-serif; fill: #222; text-anchor: middle; dominant-baseline: central }
  .name { font-weight: bold; font-size: 15px }
  .label { font-size: 12px; paint-order: stroke; stroke: #fff; stroke-width: 4px }
  rect { fill: #fff; stroke: #555; stroke-width: 1.5 } .counted { fill: #ffe9b8 }
  path { fill: none; stroke: #555; stroke-width: 1.5; marker-end: url(#arrow) }
"""

Edge = tuple[CallState, CallState]


def edges() -> dict[Edge, list[LifecycleEvent]]:
    """The events that move a call from one state to another."""
    found: dict[Edge, list[LifecycleEvent]] = defaultdict(list)
    for (state, event), transition in TRANSITIONS.items():
        if transition.to is not state:
            found[state, transition.to].append(event)
    return dict(found)


def picture() -> str:
    """Return the picture, as SVG."""
    moves = edges()
    lines = [_line(edge, events, both=edge[::-1] in moves) for edge, events in moves.items()]
    boxes = [_box(state) for state in CallState]
    arrow = '<marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">\n'
        f"<title>The states of a call and the events between them</title>\n<style>{_STYLE}</style>\n"
        f'<defs>{arrow}<path d="M0,0 L8,4 L0,8 z" style="fill:#555;stroke:none;marker-end:none"/></marker></defs>\n'
        f'<rect x="0" y="0" width="{_WIDTH}" height="{_HEIGHT}" style="stroke:none"/>\n'
        + "".join(lines + boxes)
        + "</svg>\n"
    )


def page() -> str:
    """Return the page."""
    rows = [
        (code(state), str(event), code(move.to), f"{move.used:+d}" if move.used else "", str(move.effect))
        for (state, event), move in TRANSITIONS.items()
        if event is not LifecycleEvent.STALE
    ]
    counted = ", ".join(map(code, COUNTED_STATES))
    return (
        "# The states of a call\n\n"
        "[Reliability](../reliability.md) explains the words.\n\n"
        "A call is what a request id names within its session. The caller may reserve it; a worker that received its "
        "request asks the ledger to admit it, which charges it; then the worker asks the provider, and settles what "
        f"became of it. States with a coloured box count against the budget: {counted}. A call has at most "
        f"{MAX_ATTEMPTS} attempts: one that dies with its worker is followed by another. At most "
        f"{MAX_UNCOUNTED_ATTEMPTS} more do not count: those that died with a worker that ran other calls too.\n\n"
        "![The states of a call](call.svg)\n\n"
        "This is the table that the ledger applies; an event that is not in it changes nothing. *Charged* is what the "
        "event adds to the session's counter, and to those of all its ancestors.\n\n"
        + table(["state", "event", "next state", "charged", "the requester is told"], rows)
        + "An attempt that no longer holds the call and reports anything but a result changes nothing, in any state.\n"
    )


def _box(state: CallState) -> str:
    x, y = PLACES[state]
    kind = ' class="counted"' if state in COUNTED_STATES else ""
    left, top = x - _BOX_WIDTH // 2, y - _BOX_HEIGHT // 2
    name = "in doubt" if state is CallState.IN_DOUBT else str(state)
    rect = f'<rect{kind} x="{left}" y="{top}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="8"/>'
    return f'{rect}<text class="name" x="{x}" y="{y}">{escape(name)}</text>\n'


def _line(edge: Edge, events: list[LifecycleEvent], *, both: bool) -> str:
    """Return an arrow with its label; of two states with arrows in both ways, each has its own side."""
    (x1, y1), (x2, y2) = (PLACES[state] for state in edge)
    length = max(((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5, 1)
    across, along = (y1 - y2) / length, (x2 - x1) / length
    side = 22 if both else 0
    x1, x2, y1, y2 = (int(n + side * d) for n, d in ((x1, across), (x2, across), (y1, along), (y2, along)))
    start, end = _border(x1, y1, x2, y2), _border(x2, y2, x1, y1)
    share = 0.4
    middle = start[0] + (end[0] - start[0]) * share, start[1] + (end[1] - start[1]) * share
    words = [escape(str(event)) for event in events]
    spans = "".join(
        f'<tspan x="{middle[0]:.0f}" dy="{0 if number == 0 else 15}">{word}</tspan>'
        for number, word in enumerate(words)
    )
    top = middle[1] - 7.5 * (len(words) - 1)
    path = f'<path d="M{start[0]:.0f},{start[1]:.0f} L{end[0]:.0f},{end[1]:.0f}"/>'
    return f'{path}<text class="label" x="{middle[0]:.0f}" y="{top:.0f}">{spans}</text>\n'


def _border(x: float, y: float, towards_x: float, towards_y: float) -> tuple[float, float]:
    """The point where the line from a box's centre to another point leaves the box."""
    dx, dy = towards_x - x, towards_y - y
    scales = [half / abs(d) for half, d in ((_BOX_WIDTH / 2, dx), (_BOX_HEIGHT / 2, dy)) if d]
    scale = min(scales, default=0)
    return x + dx * scale, y + dy * scale
