"""`savegame doctor`: the findings of `present.checkup`, each with advice."""

from __future__ import annotations

from typing import Final

import typer

from savegame.cli import json_output
from savegame.cli.printing import is_narrow, one_line, print_json, say
from savegame.cli.vaults import AsJson, Namespace, Store, address, patient, store_name
from savegame.present.checkup import Finding, Level, examine

BULLETS: Final = {Level.OK: ("✓ ", "green"), Level.NOTE: ("! ", "bold yellow"), Level.PROBLEM: ("✗ ", "bold red")}


def doctor(store: Store = None, namespace: Namespace = "default", as_json: AsJson = False) -> None:
    """Check the environment of the vault, with advice.

    Checks the store, file system, permissions, clock and server settings. Exits with 1 if there is a problem.

    Example: savegame doctor --store agents.db
    """
    if not as_json:
        say((store_name(store), "bold"))
    found: list[Finding] = []
    for finding in examine(patient(address(store)), namespace):
        found.append(finding)
        if not as_json:
            _print_finding(finding)
    ok = all(finding.level != Level.PROBLEM for finding in found)
    if as_json:
        findings: list[json_output.FindingOutput] = [
            {"check": one.check, "level": one.level.value, "found": one.found, "advice": one.advice} for one in found
        ]
        output: json_output.DoctorOutput = {"store": store_name(store), "ok": ok, "findings": findings}
        print_json(output)
    if not ok:
        raise typer.Exit(1)


def _print_finding(finding: Finding) -> None:
    column = 4 if is_narrow() else 24
    say(
        BULLETS[finding.level],
        (f"{finding.check:{column - 2}}", "dim"),
        "  " * is_narrow(),
        one_line(finding.found),
        hang=column,
    )
    if finding.advice is not None:
        say(" " * column, (f"→ {one_line(finding.advice)}", "cyan"), hang=column + 2)
