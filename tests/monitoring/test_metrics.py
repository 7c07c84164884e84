"""Rules, dashboard and documents, held against the metrics of real nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.monitoring.promtool import needs_promtool, promtool
from tests.monitoring.real_nodes import metrics_of

ROOT = Path(__file__).parents[2]
PAGE, FILES = ROOT / "docs" / "monitoring.md", ROOT / "monitoring"
SOURCES = [PAGE, *sorted(FILES.glob("*.yml")), FILES / "dashboard.json"]
NAMED = re.compile(r"\b(?:replicator|process)_[a-z0-9_]+\b")
SELECTED = re.compile(r"\b(replicator_[a-z0-9_]+)\{([^{}]*)\}")
LABEL = re.compile(r"\b(\w+)(?:=~|=)")
HISTOGRAM_ENDS = ("_bucket", "_sum", "_count")
OF_PROMETHEUS = {"instance", "job", "le"}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return what two nodes answer at /metrics."""
    return metrics_of(tmp_path_factory.mktemp("nodes"))


@pytest.fixture(scope="module")
def series(texts: list[str]) -> dict[str, set[str]]:
    """Return the nodes' series: name, without the ends that histograms add -> labels."""
    found = dict[str, set[str]]()
    for text in texts:
        types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
        for name in types:
            found.setdefault(name, set())
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name = sample.name
                if types.get(family.name) == "histogram":
                    name = family.name
                found.setdefault(name, set()).update(sample.labels)
    return found


def base_of(name: str, series: dict[str, set[str]]) -> str:
    """Return the name of a series without the end that a histogram adds."""
    bases = [name.removesuffix(end) for end in HISTOGRAM_ENDS if name.endswith(end)]
    return next((base for base in bases if base in series), name)


@needs_promtool
def test_promtool_finds_nothing_to_say_about_a_nodes_metrics(texts: list[str]) -> None:
    for text in texts:
        promtool("check", "metrics", given=text)


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_each_series_that_is_named_exists(source: Path, series: dict[str, set[str]]) -> None:
    named = {base_of(name, series) for name in NAMED.findall(source.read_text("utf-8"))} - {"process_"}
    assert named
    assert named - series.keys() == set()


def selections(source: Path) -> Iterator[tuple[str, set[str]]]:
    """Yield each series that is selected by labels, and the labels."""
    text = source.read_text("utf-8").replace('\\"', '"')
    for name, chosen in SELECTED.findall(text):
        yield name, set(LABEL.findall(chosen))


@pytest.mark.parametrize("source", SOURCES[1:], ids=lambda path: path.name)
def test_each_label_that_is_selected_exists(source: Path, series: dict[str, set[str]]) -> None:
    """Of series without samples, which nothing has been counted for yet, the labels are not known here."""
    wrong = {
        name: unknown
        for name, labels in selections(source)
        if (known := series[base_of(name, series)]) and (unknown := labels - known - OF_PROMETHEUS)
    }
    assert wrong == {}


def test_each_series_of_a_node_is_documented(series: dict[str, set[str]]) -> None:
    documented = set(NAMED.findall(PAGE.read_text("utf-8")))
    assert {name for name in series if name.startswith("replicator_")} - documented == set()


def test_no_label_is_one_that_changes_with_the_state(series: dict[str, set[str]]) -> None:
    assert series["replicator_info"] == {"sid", "cluster", "version"}


def test_nothing_that_an_alert_sees_is_nan(texts: list[str]) -> None:
    seen = set(NAMED.findall((FILES / "alerts.yml").read_text("utf-8")))
    unknown = {
        sample.name
        for text in texts
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.value != sample.value
    }
    assert seen & unknown <= {"replicator_texts_lacking", "replicator_mailboxes_postponed"}, "counted a moment later"
