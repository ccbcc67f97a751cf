"""The target host: leases fresh instances of one target to controllers on other machines, and runs them."""

from typing import TYPE_CHECKING

from quintain.lazy import lazy_exports

if TYPE_CHECKING:
    from quintain_host.counters import HostCounters
    from quintain_host.factory import InstanceFactory, factory_fingerprint, load_factory, probe_factory
    from quintain_host.host import Host, host_card
    from quintain_host.ipc import READY, IpcWriter
    from quintain_host.metrics import HostMetrics
    from quintain_host.processes import (
        PARENT_FD_OPTION,
        PROCESS_ID_OPTION,
        SUPERVISOR_OPTION,
        SlotProcesses,
        slot_environment,
        wait_parent_exit,
    )
    from quintain_host.slot import BOOT_SECONDS
    from quintain_host.supervisor import ProcessSupervisor, Supervision
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "quintain_host.counters": ("HostCounters",),
            "quintain_host.factory": ("InstanceFactory", "factory_fingerprint", "load_factory", "probe_factory"),
            "quintain_host.host": ("Host", "host_card"),
            "quintain_host.ipc": ("READY", "IpcWriter"),
            "quintain_host.metrics": ("HostMetrics",),
            "quintain_host.processes": (
                *("PARENT_FD_OPTION", "PROCESS_ID_OPTION", "SUPERVISOR_OPTION"),
                *("SlotProcesses", "slot_environment", "wait_parent_exit"),
            ),
            "quintain_host.slot": ("BOOT_SECONDS",),
            "quintain_host.supervisor": ("ProcessSupervisor", "Supervision"),
        },
    )

__all__ = [
    "BOOT_SECONDS",
    "PARENT_FD_OPTION",
    "PROCESS_ID_OPTION",
    "READY",
    "SUPERVISOR_OPTION",
    "Host",
    "HostCounters",
    "HostMetrics",
    "InstanceFactory",
    "IpcWriter",
    "ProcessSupervisor",
    "SlotProcesses",
    "Supervision",
    "factory_fingerprint",
    "host_card",
    "load_factory",
    "probe_factory",
    "slot_environment",
    "wait_parent_exit",
]
