"""What every run ends with: how many of each judge's cases ours passed."""

from collections import Counter

import pytest

OUTCOMES = ("passed", "failed", "error", "skipped")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "judge(name): counted in the conformance list of that name")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if mark := item.get_closest_marker("judge"):
            item.user_properties.append(("judge", mark.args[0]))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    passed, all_of_them = Counter(), Counter()
    for outcome in OUTCOMES:
        for report in terminalreporter.stats.get(outcome, ()):
            if judge := dict(getattr(report, "user_properties", ())).get("judge"):
                all_of_them[judge] += 1
                passed[judge] += outcome == "passed"
    if all_of_them:
        terminalreporter.section("conformance")
    for judge, number in all_of_them.items():
        terminalreporter.line(f"{passed[judge]} of {number} {judge}")
