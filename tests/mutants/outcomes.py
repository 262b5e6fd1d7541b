"""What became of the tests of one run, read from the report that pytest wrote."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

_OUR_MISTAKE = re.compile(
    r"(NameError|UnboundLocalError|SyntaxError|IndentationError|ImportError|ModuleNotFoundError|AttributeError|TypeError"
    r"|Failed: Timeout)\b"
)
"""Failures that say that the mutant is no program, or hangs: it was not the test that saw it."""

_LONGEST_TOLD = 100


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Each case that ran: `passed`, or how it went otherwise. `trouble`: why there may be fewer than there should."""

    cases: Mapping[str, str]
    trouble: str | None = None

    def of(self, test: str) -> dict[str, str]:
        """The cases of a test, or the one case that is named."""
        wanted = _dotted(test)
        return {case: how for case, how in self.cases.items() if case == wanted or case.startswith(f"{wanted}[")}

    def failure_of(self, test: str) -> str | None:
        """The first of the test's cases that failed."""
        return next((case for case in self.of(test) if case in self.failures), None)

    @property
    def failures(self) -> dict[str, str]:
        """Every case that failed as a test should: in the test itself, with what it is about."""
        return {case: how for case, how in self.cases.items() if how.startswith("failed: ")}


def outcomes_of(report: Path, told: str) -> Outcomes:
    """Read a report; `told` is what pytest printed, for when there is none."""
    lines = [line for line in told.splitlines() if line.strip()] or ["it said nothing"]
    last = next((line for line in lines if line.startswith("ERROR")), lines[-1])
    try:
        root = ET.parse(report).getroot()  # noqa: S314 - a file of our own
    except (OSError, ET.ParseError):
        return Outcomes({}, f"pytest wrote no report: {last}")
    cases = {f"{case.get('classname')}::{case.get('name')}": _how(case) for case in root.iter("testcase")}
    return Outcomes(cases, None if cases else f"no test ran: {last}")


def _dotted(test: str) -> str:
    """A test's id as the report has it: `tests.room.test_file.TestClass::test_name[case]`."""
    place, bracket, case = test.partition("[")
    file, *classes, name = place.split("::")
    return f"{'.'.join([file.removesuffix('.py').replace('/', '.'), *classes])}::{name}{bracket}{case}"


def _how(case: ET.Element) -> str:
    for found in case:
        said = " ".join((found.get("message") or "").split())[:_LONGEST_TOLD]
        match found.tag:
            case "failure" if _OUR_MISTAKE.match(said):
                return f"broke: {said}"
            case "failure":
                return f"failed: {said}"
            case "error":
                return f"error: {said}"
            case "skipped":
                return f"skipped: {said}"
            case _:
                continue
    return "passed"
