"""The pytest plugin: fixtures for who uses an outbox, and the mark `crash_matrix` for who writes an adapter.

It stands beside `edgeoutbox` and not in it: pytest imports every installed plugin when it starts, also in projects that
never use this one, and importing `edgeoutbox` takes far longer than importing this file. `docs/testing.md` shows it.
"""

from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

try:  # a plugin itself: where it is installed, pytest has it imported anyway
    from pytest_asyncio import fixture as async_fixture
    from pytest_asyncio import plugin as async_plugin
except ImportError:
    async_fixture = pytest.fixture  # type: ignore[assignment]  # `outbox_loop` fails before it would run
    async_plugin = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from edgeoutbox import Adapter
    from edgeoutbox.testing import MovableClock, ScriptedAdapter
    from edgeoutbox.testing.crash import Programs
    from edgeoutbox.testing.crash.checking import Crash
    from edgeoutbox.testing.recording import RecordingOutbox

MARK = "crash_matrix"


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line(
        "markers",
        f"{MARK}(databases=None, every=False): run the test once for each failpoint, with the fixture `crash`; `every` "
        "adds the second copy of SQLite and a second seam (edgeoutbox, docs/testing.md)",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test of the mark many: one for each cell."""
    mark = metafunc.definition.get_closest_marker(MARK)
    if mark is None:
        return
    test = metafunc.definition.nodeid
    if "crash" not in metafunc.fixturenames:
        raise pytest.Collector.CollectError(f"{test}: a test marked {MARK} takes the fixture `crash`")
    from edgeoutbox.errors import ConfigurationError  # noqa: PLC0415 - imported by who uses it
    from edgeoutbox.testing.crash.checking import cells_of_mark  # noqa: PLC0415 - the same

    try:
        cells = cells_of_mark(*mark.args, **mark.kwargs)
    except ConfigurationError as error:
        raise pytest.Collector.CollectError(f"{test}: {error}") from None
    except TypeError:
        raise pytest.Collector.CollectError(f"{test}: {MARK} takes databases=[...] and every=True") from None
    metafunc.parametrize("crash", cells, ids=map(str, cells), indirect=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test of the mark that ended well and killed nobody."""
    outcome = yield
    crash: Crash | None = getattr(item, "funcargs", {}).get("crash") if item.get_closest_marker(MARK) else None
    if crash is not None and not crash.ran:
        pytest.fail("nobody was killed: the test did not `await crash(...)`", pytrace=False)
    return outcome


@pytest.fixture
def outbox_clock() -> "MovableClock":
    """The clock of `outbox`, its database and its executors; it stands still until the test moves it."""
    from edgeoutbox.testing import MovableClock  # noqa: PLC0415 - imported by who uses it

    return MovableClock()


@pytest.fixture
def scripted_adapter() -> "ScriptedAdapter":
    """An adapter of the kind `scripted` that does what the test tells it."""
    from edgeoutbox.testing import ScriptedAdapter  # noqa: PLC0415 - imported by who uses it

    return ScriptedAdapter()


@pytest.fixture
def outbox_adapters(scripted_adapter: "ScriptedAdapter") -> "list[Adapter[Any]]":
    """The adapters of `outbox`. Override it with your own; else it is the scripted one."""
    return [scripted_adapter]


@pytest.fixture
def outbox_loop(pytestconfig: pytest.Config) -> None:
    """Says what is missing for `outbox`."""
    if async_plugin is None or not pytestconfig.pluginmanager.is_registered(async_plugin):
        pytest.fail("the fixture `outbox` needs pytest-asyncio: install it, and do not turn it off", pytrace=False)


@async_fixture
async def outbox(
    outbox_loop: None,  # noqa: ARG001 - first
    tmp_path: Path,
    outbox_clock: "MovableClock",
    outbox_adapters: "list[Adapter[Any]]",
) -> "AsyncIterator[RecordingOutbox]":
    """An open outbox on a database of the test's own, `outbox.path`; it can `drain` and record."""
    from edgeoutbox.testing.recording import RecordingOutbox  # noqa: PLC0415 - imported by who uses it

    async with RecordingOutbox(tmp_path / "outbox.db", outbox_clock, outbox_adapters) as opened:
        outbox_clock.on_move(opened.wake)
        yield opened


@pytest.fixture(scope="session")
def crash_programs() -> "Iterator[Programs]":
    """The programs that are killed; each is started once in a session (of a worker)."""
    from edgeoutbox.testing.crash import Programs  # noqa: PLC0415 - imported by who uses it

    with Programs() as programs:
        yield programs


@pytest.fixture
def crash(request: pytest.FixtureRequest, crash_programs: "Programs", tmp_path: Path) -> "Crash":
    """One kill of the crash matrix: await it with your adapter's factory, its arguments, and your fake provider."""
    if not hasattr(request, "param"):
        pytest.fail(f"the fixture `crash` is for tests marked @pytest.mark.{MARK}", pytrace=False)
    from edgeoutbox.testing.crash.checking import Crash  # noqa: PLC0415 - imported by who uses it

    return Crash(request.param, crash_programs, tmp_path)
