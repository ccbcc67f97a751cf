"""Loads the target factory ``module:name`` and checks one instance of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from quintain.config.callables import load_callable
from quintain.config.fingerprint import dependency_digests, fingerprint_of, module_digest
from quintain.errors import ConfigError
from quintain.target.codec import Codec
from quintain.target.type_registry import types_of_target
from quintain_host.instance_thread import InstanceThread

#: Creates one new instance of a target: a class, or a function without arguments.
InstanceFactory = Callable[[], Any]

#: The attributes that the Target interface requires of an instance.
_TARGET_INTERFACE = (
    "config_specs",
    "set_config",
    "query_specs",
    "query",
    "security_domain",
    "get_controllables",
    "get_observables",
    "run",
    "reset_ephemeral_state",
    "teardown",
)


def load_factory(path: str, folder: Path) -> InstanceFactory:
    """Import the factory that ``module:factory`` names; ``folder`` is searched first. Raises `ConfigError`."""
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise ConfigError(f"{path!r} names no factory: write it as module:factory, such as bots:SupportBot")
    return load_callable(path, folder, kind="factory")


def factory_fingerprint(path: str, folder: Path, depends_on: Iterable[str] = ()) -> str:
    """The fingerprint of a factory: of its name, and of the bytes of its module and of the files of ``depends_on``.

    It is to be read when the factory is imported. Raises `ConfigError` where a file cannot be read.
    """
    return fingerprint_of([path, module_digest(path, folder), dependency_digests(depends_on, folder)])


def require_target(instance: Any, path: str) -> None:
    """Raise `ConfigError`, listing the missing attributes, unless the instance has the Target interface."""
    missing = [name for name in _TARGET_INTERFACE if not hasattr(type(instance), name)]
    if missing:
        raise ConfigError(
            f"{path} made a {type(instance).__name__}, which is not a Target: it lacks {', '.join(missing)}"
        )


async def probe_factory(factory: InstanceFactory, path: str) -> None:
    """Create one instance, describe it and tear it down, so that errors of the factory show when the host starts.

    Raises `ConfigError`.
    """
    instance_thread = InstanceThread("probe")
    try:
        instance = await instance_thread.call(factory)
        require_target(instance, path)
        await instance_thread.call(lambda: Codec(types_of_target(type(instance))).describe(instance))
        await instance_thread.run(instance.teardown())
    except ConfigError:
        raise
    except Exception as error:
        # A constructor may raise anything; its message is shown to the user who starts the host.
        raise ConfigError(f"{path} made no target: {type(error).__name__}: {error}") from error
    finally:
        await instance_thread.close()
