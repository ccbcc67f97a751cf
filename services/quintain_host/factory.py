"""From ``module:factory`` to fresh instances. What goes wrong there reaches whoever started the host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from quintain.config.callables import load_callable
from quintain.errors import ConfigError
from quintain.target.codec import Codec
from quintain.target.vocabulary import vocabulary_of
from quintain_host.stage import Stage

#: Makes one fresh instance: a class, or a function without arguments.
Factory = Callable[[], Any]

#: What the Target interface asks of an instance.
_INTERFACE = (
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


def load_factory(path: str, folder: Path) -> Factory:
    """The factory of ``module:name``, looked for in this folder first. Raises `ConfigError`."""
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise ConfigError(f"{path!r} names no factory: write it as module:factory, such as bots:SupportBot")
    return load_callable(path, folder, kind="factory")


def require_target(instance: Any, path: str) -> None:
    """Raises `ConfigError` where what a factory made is no Target, naming what it lacks."""
    lacks = [name for name in _INTERFACE if not hasattr(type(instance), name)]
    if lacks:
        raise ConfigError(f"{path} made a {type(instance).__name__}, which is no Target: it lacks {', '.join(lacks)}")


async def probe(factory: Factory, path: str) -> None:
    """Make one instance and let go of it, so that what its constructor says reaches whoever starts the host.

    Raises `ConfigError`.
    """
    stage = Stage("probe")
    try:
        instance = await stage.do(factory)
        require_target(instance, path)
        await stage.do(lambda: Codec(vocabulary_of(type(instance))).describe(instance))
        await stage.play(instance.teardown())
    except ConfigError:
        raise
    except Exception as error:
        # A constructor may raise anything: its words are for whoever starts the host.
        raise ConfigError(f"{path} made no target: {type(error).__name__}: {error}") from error
    finally:
        await stage.close()
