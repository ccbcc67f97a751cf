"""An agent that calls models itself, under the budget of whoever called it: it asks for opinions, and counts them.

Host it with ``quintain serve host panel:Panel --name panel``. The session that it calls with comes through its
configuration, one for each call, and ends with the call; QUINTAIN_BROKER_URL says where the broker is.
"""

from __future__ import annotations

import quintain
from quintain.target import (
    SESSION_SLOT,
    ConfigSpec,
    Controllable,
    ControllableInjection,
    ControllablePreCallEvent,
    EventHandler,
    EventResponseHandler,
    Observable,
    ObservableEvent,
    ObservableValue,
    QuerySpec,
    SecurityDomain,
    SecurityDomainTag,
    Target,
)

USER = SecurityDomainTag("user")
AGENT = SecurityDomainTag("agent")

QUESTION = Controllable("question", USER, "What the panel is to judge")
OPINION = Observable("opinion", USER, "What one member says")


class Panel(Target):
    """Asks a model again and again, until it has as many opinions as it was told to get, or its budget is spent."""

    def __init__(self) -> None:
        self._session = ""
        self._members = 3
        self._verdict = ""

    @property
    def config_specs(self) -> list[ConfigSpec]:
        return [
            ConfigSpec(SESSION_SLOT, AGENT, "The session that the panel calls models with"),
            ConfigSpec("members", AGENT, "How many opinions are wanted, a number"),
        ]

    def set_config(self, name: str, value: str) -> None:
        if name == SESSION_SLOT:
            self._session = value
        elif name == "members":
            self._members = int(value)
        else:
            raise ValueError(f"The panel has no {name!r} to configure: it has {SESSION_SLOT!r} and 'members'")

    @property
    def query_specs(self) -> list[QuerySpec]:
        return [QuerySpec("verdict", "What came of it")]

    def query(self, name: str, **params: str) -> str:
        if name != "verdict":
            raise ValueError(f"The panel answers no query {name!r}: it answers 'verdict'")
        return self._verdict

    @property
    def security_domain(self) -> SecurityDomain:
        return SecurityDomain([USER, AGENT])

    def get_controllables(self) -> list[Controllable]:
        return [QUESTION]

    def get_observables(self) -> list[ObservableValue]:
        return [ObservableValue(OPINION)]

    async def run(self, emit: EventHandler, send_event: EventResponseHandler) -> None:
        response = await send_event(ControllablePreCallEvent(controllable=QUESTION, request="Is all well?"))
        question = response.value if isinstance(response, ControllableInjection) else "Is all well?"
        heard, refused = 0, ""
        async with quintain.connect(token=self._session) as models:
            while heard < self._members and not refused:
                try:
                    said = await models.invoke(question)
                except quintain.BudgetExhausted as spent:
                    refused = spent.code
                else:
                    heard += 1
                    emit(ObservableEvent(observable=OPINION, content=said.raw_text))
        self._verdict = f"{heard} of {self._members} opinions" + (f": {refused}" if refused else "")

    async def reset_ephemeral_state(self) -> None:
        self._verdict = ""

    async def teardown(self) -> None:
        """Nothing is held."""
