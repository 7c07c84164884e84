"""The alert rules and the dashboard, as files."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from replicator.cli.authority import Authority
from tests.end_to_end.helpers.pages import block
from tests.headings import anchors
from tests.monitoring.promtool import needs_promtool, promtool

ROOT = Path(__file__).parents[2]
PAGE, FILES = ROOT / "docs" / "monitoring.md", ROOT / "monitoring"
ALERTS = FILES / "alerts.yml"
PLAYED = [FILES / "alerts_test.yml", FILES / "alerts_long_test.yml"]
ROWS = [
    "Health and links",
    "Durability and lag",
    "Clients",
    "Conflicts and mastership",
    "Disk and background work",
]
WIDTH = 24  # of a dashboard, in Grafana's units
UNITS = {"m": " min", "h": " h", "d": " day"}
RULE = re.compile(r"^      - alert: (?P<name>\w+)\n(?P<body>(?:        .*\n)+)", re.MULTILINE)
KEYS = ("expr", "for", "labels", "summary", "description", "page")


def rules() -> dict[str, dict[str, str]]:
    """Return alert -> the text of its keys."""
    found = {}
    for rule in RULE.finditer(ALERTS.read_text("utf-8")):
        lines = re.findall(r"^ +(\w+): (.+)$", rule["body"], re.MULTILINE)
        found[rule["name"]] = {key: value for key, value in lines if key in KEYS}
    return found


@needs_promtool
def test_rules_do_what_they_should_when_something_goes_wrong_and_nothing_otherwise() -> None:
    promtool("check", "rules", ALERTS)
    promtool("test", "rules", *PLAYED)


def test_each_rule_is_played() -> None:
    texts = [file.read_text("utf-8") for file in PLAYED]
    played = {name for text in texts for name in re.findall(r"\balertname(?:=\"|: )(\w+)", text)}
    assert played == rules().keys()


def test_each_rule_says_what_it_means_and_leads_to_a_section_that_says_more() -> None:
    found = rules()
    assert len(found) == ALERTS.read_text("utf-8").count("- alert:") > 30
    for name, rule in found.items():
        assert rule.keys() >= {"expr", "labels", "summary", "description", "page"}, name
        assert rule["labels"] in {"{severity: critical}", "{severity: warning}"}, name
        assert len(rule["description"].split()) > 10, f"{name} does not say what to do"
        page, _, anchor = rule["page"].partition("#")
        assert ROOT / page == PAGE
        assert anchor in anchors(PAGE), f"{name} leads to a section that is not there: {anchor}"


def test_page_lists_all_alerts_with_the_time_after_which_they_fire() -> None:
    listed = dict(re.findall(r"^\| `(Replicator\w+)` \| ([^|]*)\|", PAGE.read_text("utf-8"), re.MULTILINE))
    expected = {
        name: f"{rule['for'][:-1]}{UNITS[rule['for'][-1]]} " if "for" in rule else "" for name, rule in rules().items()
    }
    assert listed == expected


def dashboard() -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads((FILES / "dashboard.json").read_text("utf-8"))
    return found


def panels() -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = dashboard()["panels"]
    return found


def test_dashboard_has_its_rows_and_places_no_panel_above_another() -> None:
    assert [panel["title"] for panel in panels() if panel["type"] == "row"] == ROWS
    assert len({panel["id"] for panel in panels()}) == len(panels()) > 30
    taken = set[tuple[int, int]]()
    for panel in panels():
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < WIDTH
        taken |= cells


def test_each_panel_says_what_it_shows_and_asks_the_chosen_data_source() -> None:
    for panel in panels():
        if panel["type"] == "row":
            continue
        assert panel["description"].endswith("."), panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"
        assert [target["refId"] for target in panel["targets"]] == [*"ABCDEF"[: len(panel["targets"])]]
        for target in panel["targets"]:
            assert target["datasource"] == panel["datasource"]
            assert target["legendFormat"]
            assert 'instance=~"$instance"' in target["expr"], f"{panel['title']} shows nodes of other clusters"


@needs_promtool
def test_prometheus_can_read_each_question_of_the_dashboard(tmp_path: Path) -> None:
    asked = [target["expr"] for panel in panels() for target in panel.get("targets", ())]
    assert asked
    lines = ["groups:", "  - name: dashboard", "    rules:"]
    for number, expr in enumerate(asked):
        text = expr.replace("$__rate_interval", "5m").replace("$instance", ".*")
        lines += [f"      - record: dashboard:{number}", f"        expr: {json.dumps(text)}"]
    file = tmp_path / "dashboard.yml"
    file.write_text("\n".join(lines) + "\n", "utf-8")
    promtool("check", "rules", file)


@needs_promtool
def test_prometheus_takes_the_configuration_of_the_page(tmp_path: Path) -> None:
    configuration = block("monitoring.md", "Setting up Prometheus and Grafana", "yaml")
    (tmp_path / "replicator").mkdir()
    shutil.copy(ALERTS, tmp_path / "replicator")
    (tmp_path / "replicator.token").touch()
    Authority.create(tmp_path / "ca", "tests")
    shutil.copy(tmp_path / "ca" / "ca.pem", tmp_path / "replicator-ca.pem")
    file = tmp_path / "prometheus.yml"
    file.write_text(configuration.replace("/etc/prometheus", str(tmp_path)), "utf-8")
    promtool("check", "config", "--lint-fatal", file)
