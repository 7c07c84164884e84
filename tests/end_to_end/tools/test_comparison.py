import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.clients.wire import MeasurementError
from benchmarks.peers.page import leader, others, section
from benchmarks.peers.pairs.processes import Daemon, cpu_s, with_descendants
from benchmarks.peers.rows import Measured, Row
from benchmarks.report.document import replace_section

RATE = Row("mails", "mails/s", more_is_better=True)
LAG = Row("lag", "ms")
DESCRIBED = {
    "memory_mib": 2048,
    "scale": "full",
    "cores": 2,
    "cpu": "some",
    "kernel": "6.1",
    "filesystem": "ext4",
    "python": "3.11",
    "load_at_start": 0.5,
}


def measured(*rounds: dict[str, tuple[float, float]]) -> Measured:
    """Return rounds of (mails a second, lag) by pair."""
    found = Measured(["we", "they"])
    for one in rounds:
        for pair, (rate, lag) in one.items():
            found.add(pair, {RATE: rate, LAG: lag})
            found.add_others(pair, 0.1)
    return found


def test_medians_and_ratios_are_of_all_rounds() -> None:
    found = measured(
        {"we": (100, 1), "they": (10, 4)}, {"we": (900, 2), "they": (40, 5)}, {"we": (80, 9), "they": (20, 6)}
    )
    assert found.median(RATE, "we") == 100
    assert found.median(RATE, "they") == 20
    assert found.ratio(RATE, "we", "they") == 5
    assert found.ratio(LAG, "we", "they") == 2 / 5
    assert found.spread(RATE, "we") == (80, 900)


def test_the_best_has_the_highest_rate_and_the_lowest_lag() -> None:
    found = measured({"we": (100, 9), "they": (10, 4)})
    assert found.best(RATE) == "we"
    assert found.best(LAG) == "they"


def test_a_pair_without_a_value_has_no_ratio_and_is_not_best() -> None:
    found = measured({"we": (100, 9)})
    assert found.ratio(RATE, "we", "they") is None
    assert found.best(LAG) == "we"


@pytest.mark.parametrize(
    ("ours", "theirs", "wanted"),
    [
        ((100, 5), (90, 4), {RATE: "we", LAG: "they"}),
        ((90, 4), (100, 5), {RATE: "they", LAG: "we"}),
        ((90, 4), (90, 4), {RATE: None, LAG: None}),
    ],
)
def test_the_leader_has_more_mails_and_less_lag(
    ours: tuple[float, float], theirs: tuple[float, float], wanted: dict[Row, str | None]
) -> None:
    found = measured({"we": ours, "they": theirs})
    assert {row: leader(found, row, "we", "they") for row in (RATE, LAG)} == wanted


def test_nobody_leads_where_rounds_overlap() -> None:
    found = measured({"we": (100, 5), "they": (90, 4)}, {"we": (80, 5), "they": (70, 9)})
    assert leader(found, RATE, "we", "they") is None
    assert leader(found, LAG, "we", "they") is None


def test_the_page_names_what_others_do_better() -> None:
    found = measured({"we": (100, 5), "they": (90, 4)})
    text = section(found, {"we": "1", "they": "2"}, DESCRIBED, 1)
    assert "**they is ahead of we** in: lag." in text
    assert "**we is ahead of they** in: mails." in text
    assert "| mails | 100 mails/s | 90 mails/s | 1.11 | we |" in text


def test_the_page_tells_when_other_work_spoils_the_figures() -> None:
    found = measured({"we": (100, 5), "they": (90, 4)})
    assert "other work used these cores of the machine: 0.1 beside we, 0.1 beside they." in others(found)
    assert "too much" not in others(found)
    found.add_others("they", 0.9)
    assert "0.1 beside we, 0.9 beside they. **That is too much" in others(found)


def test_a_section_is_replaced_and_nothing_else() -> None:
    page = "before\n<!-- measured: peers -->\nold\n<!-- end: peers -->\nafter\n"
    assert replace_section(page, "peers", "new") == (
        "before\n<!-- measured: peers -->\n\nnew\n\n<!-- end: peers -->\nafter\n"
    )
    with pytest.raises(MeasurementError, match="no section <!-- measured: others -->"):
        replace_section(page, "others", "new")


def test_processor_time_includes_children_that_have_ended() -> None:
    burn = f"{sys.executable} -c 'import time\nwhile time.process_time() < 1: pass'"
    command = ["sh", "-c", f"{burn}; echo done; exec sleep 1000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
        spent = cpu_s(with_descendants(process.pid))
        process.kill()
    assert spent > 0.9, "the kernel counts ticks of a hundredth of a second"


def test_a_daemon_ends_with_what_it_has_started(tmp_path: Path) -> None:
    daemon = Daemon(["sh", "-c", "sleep 1000 & echo started; wait"], tmp_path / "log")
    daemon.start()
    while not (tmp_path / "log").read_text():
        pass
    started = daemon.processes()
    assert len(started) == 2
    daemon.stop()
    assert not any(map(is_alive, started))
    assert not daemon.processes()


def is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
