"""The gateway: HTTP at the edge. It translates requests into questions on the bus, and holds no provider key."""

from typing import TYPE_CHECKING

from quintain.lazy import lazy_exports

if TYPE_CHECKING:
    from quintain_gateway.address import Address
    from quintain_gateway.app import app_of
    from quintain_gateway.door import Door
    from quintain_gateway.limits import Limits
    from quintain_gateway.meter import Meter
    from quintain_gateway.server import serving
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "quintain_gateway.address": ("Address",),
            "quintain_gateway.app": ("app_of",),
            "quintain_gateway.door": ("Door",),
            "quintain_gateway.limits": ("Limits",),
            "quintain_gateway.meter": ("Meter",),
            "quintain_gateway.server": ("serving",),
        },
    )

__all__ = [
    "Address",
    "Door",
    "Limits",
    "Meter",
    "app_of",
    "serving",
]
