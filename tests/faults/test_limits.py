"""The scenes of a limited key at their full length, over real sockets: ``make limits`` prints their figures."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from support.command_line import CommandLine, command_line
from support.limited_provider import LimitedProvider, ProviderSettings
from support.limited_run import (
    SIXTY,
    TARGET,
    LimitFigures,
    assert_outlived,
    breaking_down,
    limited_provider,
    run_limited,
    write_limited_evaluation,
    write_targets,
)
from support.process_fleet import ProcessFleet, process_fleet
from support.shared_key import (
    CONFIG,
    LIMIT,
    SERVICE_SECONDS,
    Shares,
    Waits,
    call_many,
    measure_waits,
    open_session,
    publish_plainly,
    start_run,
    wait_until_moved,
)

pytestmark = [pytest.mark.very_long, pytest.mark.timeout(1500)]

#: With a judge ten minutes at 60 a minute; how many an outage hits, and how many each of four runs has.
CASES, OUTAGE_CASES, RUN_CASES = 300, 500, 200

#: How long each call of a slow provider takes.
LONG_SECONDS = 15.0

#: How many calls one session has beside another one's twenty; the weights of four runs.
MANY, WEIGHTS = 5_000, (10, 20, 30, 40)

#: How many calls of one plain client are in the backlog beside another one's twenty.
BACKLOG_CALLS = 50_000


@dataclass(frozen=True)
class Form:
    """How a provider limits a key, what is configured of it, and what a run must reach after the first minute."""

    settings: ProviderSettings
    quota: str = "{}"
    targets: int = 1
    #: How long the questions are.
    lengths: Sequence[int] = (8,)
    least_use: float = 0.9
    most_refused: float = 0.03


#: The calls, and the judgements of their answers, are of 40 to 2,100 tokens.
TOKENS, LENGTHS = replace(SIXTY, counts="tokens", per_minute=45_000, burst=45_000), (80, 800, 8_000)

FORMS = {
    "bucket": Form(SIXTY),
    "draining bucket": Form(replace(SIXTY, kind="draining bucket")),
    "Retry-After: 2": Form(replace(SIXTY, retry_after="2")),
    "headers": Form(replace(SIXTY, headers=True), most_refused=0.01),
    "configured": Form(SIXTY, quota="{requests_per_minute: 60}", most_refused=0.01),
    "two targets": Form(SIXTY, targets=2),
    "sliding window": Form(replace(SIXTY, kind="sliding window")),
    "fixed window": Form(replace(SIXTY, kind="fixed window")),
    # Requests of so different sizes have no rate of their own: 3 % is the mean of many runs.
    "tokens": Form(TOKENS, lengths=LENGTHS, most_refused=0.045),
    "tokens, headers": Form(replace(TOKENS, headers=True), lengths=LENGTHS, most_refused=0.01),
    "tokens, configured": Form(TOKENS, quota="{tokens_per_minute: 45000}", lengths=LENGTHS, most_refused=0.01),
}

Record = Callable[[str, LimitFigures | Waits | Shares | list[float]], None]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[CommandLine]:
    """A shell in an empty folder."""
    with command_line(tmp_path) as shell:
        yield shell


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Record:
    """Adds the figures of a scene to the summary of the tests."""
    summary = request.config.pluginmanager.getplugin("quintain-summary")
    return lambda name, figures: summary.add("limits", f"{name}: {figures}")


def assert_all_answered(figures: LimitFigures, rows: int) -> None:
    assert (figures.rows, figures.error_rows) == (rows, {}), f"{figures}\n{figures.result}"


def assert_used(figures: LimitFigures, form: Form) -> None:
    """Assert what was used of the limit after the first minute, and how many of the answers were 429."""
    later = figures.answered_later
    assert later[429] <= form.most_refused * later.total(), str(figures)
    assert figures.part_used(form.settings) >= form.least_use, str(figures)


@pytest.mark.xdist_group("rates")
async def test_every_row_has_its_answer_and_the_limit_is_used(broker_url: str, record: Record) -> None:
    """One fleet of three workers has all forms at once, each with a key, and a run, of its own: they mostly wait."""
    async with contextlib.AsyncExitStack() as stack:
        targets, quotas, runs = list[str](), list[str](), list[Coroutine[object, object, LimitFigures]]()
        fleet = stack.enter_context(process_fleet(broker_url, "", targets=[f"t{n}" for n in range(2 * len(FORMS))]))
        shell = stack.enter_context(command_line(fleet.folder, fleet.env))
        for number, form in enumerate(FORMS.values()):
            provider, url = await stack.enter_async_context(limited_provider(form.settings))
            names = [f"t{2 * number + n}" for n in range(form.targets)]
            targets += [TARGET.format(name=each, url=url).replace("}\n", f", quota: q{number}}}\n") for each in names]
            quotas.append(f"  q{number}: {form.quota}\n")
            write_limited_evaluation(
                fleet.folder, cases=CASES // form.targets, targets=names, name=f"run{number}", lengths=form.lengths
            )
            runs.append(run_limited(shell, provider, name=f"run{number}"))
        (fleet.folder / "quintain.yaml").write_text(f"quotas:\n{''.join(quotas)}targets:\n{''.join(targets)}")
        fleet.extra_env["KEY"] = "k"
        await asyncio.to_thread(fleet.start_services, "metadata", "worker", "worker", "worker")
        all_figures = dict(zip(FORMS, await asyncio.gather(*runs), strict=True))
    failures = list[AssertionError]()
    for name, figures in all_figures.items():
        record(f"{name}: {figures.part_used(FORMS[name].settings):.2f} used", figures)
        try:
            assert_all_answered(figures, CASES)
            assert_used(figures, FORMS[name])
        except AssertionError as failure:
            failure.add_note(name)
            failures.append(failure)
    if failures:
        raise ExceptionGroup("forms that miss their aim", failures)


@pytest.mark.xdist_group("outages")
@pytest.mark.parametrize(
    ("name", "after", "down", "times"), [("down for two minutes", 10, 120, 1), ("flapping", 30, 30, 4)]
)
async def test_an_outage_is_outlived(
    shell: CommandLine, record: Record, name: str, after: float, down: float, times: int
) -> None:
    async with limited_provider(replace(SIXTY, per_minute=600, burst=10)) as (provider, url):
        write_targets(shell.folder, url, "small")
        write_limited_evaluation(shell.folder, cases=OUTAGE_CASES)
        async with breaking_down(provider, after=after, down=down, times=times):
            figures = await run_limited(shell, provider)
    record(name, figures)
    assert_outlived(figures, OUTAGE_CASES, failures=times)


@contextlib.asynccontextmanager
async def fleet_on_one_key(
    broker_url: str, settings: ProviderSettings, *, workers: int = 1
) -> AsyncIterator[tuple[ProcessFleet, LimitedProvider]]:
    """A metadata service and workers behind a broker, and the provider of their one target."""
    async with limited_provider(settings) as (provider, url):
        with process_fleet(broker_url, CONFIG.format(url=url), targets=["small"]) as fleet:
            fleet.extra_env["KEY"] = "k"
            await asyncio.to_thread(fleet.start_services, "metadata", *["worker"] * workers)
            yield fleet, provider


@pytest.mark.xdist_group("fleets")
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("is_plain", [False, True], ids=["the SDK", "a plain client"])
async def test_twenty_calls_beside_five_thousand_wait_two_seconds(
    broker_url: str, is_plain: bool, workers: int, record: Record
) -> None:
    settings = ProviderSettings(kind="none", in_flight=LIMIT, seconds=SERVICE_SECONDS)
    async with fleet_on_one_key(broker_url, settings, workers=workers) as (fleet, _):
        large, few = await asyncio.gather(*(asyncio.to_thread(open_session, fleet, calls) for calls in (MANY, 100)))
        publishing: Coroutine[object, object, None] = call_many(broker_url, large.token, MANY, in_flight=256)
        if is_plain:
            publishing.close()
            publishing = asyncio.to_thread(publish_plainly, broker_url, large.token, MANY)
        task = asyncio.get_running_loop().create_task(publishing)
        # The limit is found in the first seconds, and the calls of the plain client are moved to the backlog.
        for name, pause in (("at once", 2), ("later", 15), ("later still", 10)):
            await asyncio.sleep(pause)
            waits = await measure_waits(broker_url, few.token, 20)
            client = "a plain client" if is_plain else "the SDK"
            record(f"beside {MANY:,} by {client}, workers: {workers}, {name}", waits)
        task.cancel()
        await asyncio.wait([task])
    assert waits.p95 <= 2


@pytest.mark.xdist_group("fleets")
async def test_twenty_calls_do_not_wait_for_fifty_thousand_in_the_backlog(broker_url: str, record: Record) -> None:
    settings = ProviderSettings(kind="none", in_flight=LIMIT, seconds=SERVICE_SECONDS)
    async with fleet_on_one_key(broker_url, settings) as (fleet, provider):
        large, few = [await asyncio.to_thread(open_session, fleet, calls) for calls in (BACKLOG_CALLS, 20)]
        await asyncio.to_thread(publish_plainly, broker_url, large.token, BACKLOG_CALLS)
        await asyncio.to_thread(wait_until_moved, broker_url, seconds=300)
        began = asyncio.get_running_loop().time()
        await asyncio.to_thread(publish_plainly, broker_url, few.token, 20, word="few")
        async with asyncio.timeout(60):
            while len(answered := [at for at, word in provider.answered_words if word == "few"]) < 20:
                await asyncio.sleep(0.1)
    waits = Waits(sorted(at - began - SERVICE_SECONDS for at in answered))
    record(f"two plain clients, {BACKLOG_CALLS:,} in the backlog", waits)
    assert waits.p95 <= 2


@pytest.mark.xdist_group("fleets")
async def test_four_runs_share_a_key_by_their_weights(broker_url: str, record: Record) -> None:
    async with fleet_on_one_key(broker_url, replace(SIXTY, per_minute=600, burst=10)) as (fleet, provider):
        runs = [await asyncio.to_thread(start_run, fleet, f"run{weight}", RUN_CASES, weight) for weight in WEIGHTS]
        for run in runs:
            code = await asyncio.to_thread(run.wait, seconds=300)
            assert code == 0, run.read_output()
    shares = Shares.of(provider.answered_words, {f"run{weight}": weight for weight in WEIGHTS}, per_minute=600)
    record("four runs", shares)
    assert shares.answered == 4 * RUN_CASES
    assert shares.part_of_the_time <= 1.15
    assert shares.worst <= 0.1


@pytest.mark.xdist_group("fleets")
async def test_a_limit_in_flight_that_nobody_names_is_found_and_followed(broker_url: str, record: Record) -> None:
    settings = ProviderSettings(kind="none", in_flight=40, seconds=SERVICE_SECONDS)
    async with fleet_on_one_key(broker_url, settings) as (fleet, provider):
        session = await asyncio.to_thread(open_session, fleet, 10 * MANY)
        calling = asyncio.get_running_loop().create_task(call_many(broker_url, session.token, 10 * MANY, in_flight=256))
        parts = list[float]()
        for limit, seconds in ((40, 60), (10, 180), (80, 180)):
            provider.settings = replace(provider.settings, in_flight=limit)
            await asyncio.sleep(seconds)
            parts.append(await mean_in_flight(provider, 30) / limit)
        record("in flight 40, 10, 80: mean", parts)
        calling.cancel()
        await asyncio.wait([calling])
    assert all(0.75 <= part <= 1.25 for part in parts), parts


@pytest.mark.xdist_group("fleets")
async def test_thousands_of_long_calls_are_in_flight_at_a_provider_that_refuses_none(
    broker_url: str, record: Record
) -> None:
    calls = 4_000
    async with limited_provider(ProviderSettings(kind="none", seconds=LONG_SECONDS)) as (provider, url):
        config = CONFIG.format(url=url).replace("}\n", f", max_concurrency: {calls}}}\n")
        with process_fleet(broker_url, config, targets=["small"]) as fleet:
            fleet.extra_env["KEY"] = "k"
            await asyncio.to_thread(fleet.start_services, "metadata", "worker", "worker")
            session = await asyncio.to_thread(open_session, fleet, calls)
            began = asyncio.get_running_loop().time()
            await call_many(broker_url, session.token, calls, in_flight=calls)
            seconds = asyncio.get_running_loop().time() - began
    most = max(provider.busy.values())
    record(f"{calls:,} calls of {LONG_SECONDS:.0f} s: seconds, most in flight", [seconds, most])
    assert {status for _, status in provider.answered} == {200}
    assert provider.answered.total() == calls
    # Without growth by calls that were not refused it stays at 256; how many seconds that takes is the machine's.
    assert most >= calls / 4


async def mean_in_flight(provider: LimitedProvider, seconds: float) -> float:
    """How many requests the provider works on, in the mean of so many seconds."""
    seen = list[int]()
    for _ in range(int(10 * seconds)):
        await asyncio.sleep(0.1)
        seen.append(provider.in_flight)
    return sum(seen) / len(seen)
