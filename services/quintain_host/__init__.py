"""The target host: leases out fresh instances of one target, and runs them for controllers on other machines."""

from typing import TYPE_CHECKING

from quintain.lazy import lazy_exports

if TYPE_CHECKING:
    from quintain_host.factory import Factory, load_factory, probe
    from quintain_host.host import Host, host_card
    from quintain_host.isolation import CHILD_OPTION, Children, parent_gone
    from quintain_host.meter import HostMeter
    from quintain_host.said import READY, Saying
    from quintain_host.tally import Tally
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "quintain_host.factory": ("Factory", "load_factory", "probe"),
            "quintain_host.host": ("Host", "host_card"),
            "quintain_host.isolation": ("CHILD_OPTION", "Children", "parent_gone"),
            "quintain_host.meter": ("HostMeter",),
            "quintain_host.said": ("READY", "Saying"),
            "quintain_host.tally": ("Tally",),
        },
    )

__all__ = [
    "CHILD_OPTION",
    "READY",
    "Children",
    "Factory",
    "Host",
    "HostMeter",
    "Saying",
    "Tally",
    "host_card",
    "load_factory",
    "parent_gone",
    "probe",
]
