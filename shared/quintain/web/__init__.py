"""What the pages of `quintain view` and of the gateway share: frame, style, script, headers, and visible text.

Pages are rendered with Jinja2. Every value is escaped and made visible, unless it is markup; the values of forms are
marked as ``exact``, which keeps their invisible characters.
"""

from __future__ import annotations

import hmac
import json
import re
from functools import cache
from importlib import resources
from typing import Final

import jinja2
from markupsafe import escape
from starlette.requests import Request

STYLE_NAME, SCRIPT_NAME = "page.css", "page.js"

#: The media types of the static files, by name.
STATIC_TYPES: Final = {STYLE_NAME: "text/css", SCRIPT_NAME: "text/javascript"}

#: What a page may load: only what its server delivers, and images that are part of the page.
SERVED_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

HEADERS: Final = {
    "Content-Security-Policy": SERVED_POLICY,
    "X-Content-Type-Options": "nosniff",
    # Not "no-referrer": browsers would then send the origin of a form as "null".
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}

#: How many bytes the request with a token may have.
_MAX_ENTER_BYTES = 1_000

#: Controls, marks that change the direction of text, invisible characters, and halves of surrogate pairs.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff]"
)


@cache
def static_file(name: str) -> str:
    """The style sheet or the script."""
    return (resources.files("quintain.web") / "static" / name).read_text(encoding="utf-8")


def template_environment(package: str, *, root: str = "") -> jinja2.Environment:
    """The environment of a package's templates, which stand on the frame ``base.html``.

    ``root`` is the path below which the pages of this server stand, such as ``/fleet``.
    """
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(
            [jinja2.PackageLoader(package, "templates"), jinja2.PackageLoader("quintain.web", "templates")]
        ),
        autoescape=True,
        finalize=_finalize,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters["exact"] = escape
    environment.globals["root"] = root
    return environment


def _finalize(value: object) -> object:
    """What a template prints for a value: markup and numbers as they are, all else as visible text."""
    is_safe = hasattr(value, "__html__") or isinstance(value, int | float)
    return value if is_safe else visible(str(value))


def to_html(environment: jinja2.Environment, template: str, **values: object) -> str:
    """Render the template of this name as HTML."""
    # Half of a surrogate pair cannot be sent as UTF-8.
    return environment.get_template(template).render(**values).encode(errors="replace").decode()


async def entered_token(request: Request) -> str:
    """The token with which a page was opened, as its script sends it; empty if there is none."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MAX_ENTER_BYTES:
            return ""
    try:
        fields = json.loads(body)
    except ValueError:
        return ""
    token = fields.get("token") if isinstance(fields, dict) else None
    return token if isinstance(token, str) else ""


def is_same_text(given: str, expected: str) -> bool:
    """Whether two secrets are equal, in a time that does not depend on where they differ."""
    return hmac.compare_digest(given.encode(errors="replace"), expected.encode())


def visible(text: str) -> str:
    """The text with each control character and direction mark replaced by its code point, such as ``⟦U+202E⟧``."""
    if text.isascii() and text.isprintable():
        return text
    return _INVISIBLE.sub(lambda match: f"⟦U+{ord(match[0]):04X}⟧", text.replace("\r\n", "\n"))
