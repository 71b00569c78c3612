"""The HTML report in headless Chromium: it sorts, filters, leads to runs, asks nobody, and runs no foreign text."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from dtbench.report.document import write_report
from dtbench.study.matrix import Matrix

from tests.dtbench.conftest import GPU_STUDY, make_record, run_of, write_record
from tests.dtbench.report.browser import CHROMIUM, Page, page
from tests.dtbench.report.test_inert import HOSTILE

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: apt-get install chromium")

SPEEDS = {"ddp": 900.0, "fsdp2-reshard": 1000.0}
TABLE = "document.querySelectorAll('table.data')[0]"
CONFIGS = f"[...{TABLE}.tBodies[0].rows].filter(r => !r.hidden && r.dataset.platform).map(r => r.cells[0].textContent)"


@pytest.fixture
def opened(tmp_path: Path, study: Callable[[str], Matrix]) -> Iterator[Page]:
    matrix = study(GPU_STUDY)
    for run in matrix.runs:
        speed = SPEEDS.get(run.identity.config)
        if speed:
            write_record(tmp_path / "study", make_record(run, tokens_per_s=speed + run.identity.repeat))
    died = make_record(run_of(matrix, "zero-3"), outcome="python_exception", evidence=HOSTILE)
    write_record(tmp_path / "study", died)
    report = write_report(matrix, tmp_path / "study").with_suffix(".html")
    with page(tmp_path / "profile") as tab:
        tab.open(report.as_uri())
        yield tab


def test_the_page_is_quiet_and_asks_nobody(opened: Page) -> None:
    assert opened.errors == []
    assert [address.partition(":")[0] for address in opened.requests] == ["file"]
    assert opened.value("document.querySelectorAll('script').length") == 1


def test_foreign_script_never_runs(opened: Page) -> None:
    opened.value("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.ran = 1\">')")
    opened.value("document.body.append(Object.assign(document.createElement('script'), {text: 'window.ran = 2'}))")
    assert opened.value("window.ran") is None
    # The policy says what it refused.
    assert any("Content Security Policy" in error for error in opened.errors)


def test_hostile_words_are_shown_as_words(opened: Page) -> None:
    assert opened.value("document.body.textContent.includes('<script>alert(1)</script>')") is True
    assert opened.value("document.images.length") == 0


def test_a_click_sorts_a_table_both_ways(opened: Page) -> None:
    button = f"{TABLE}.tHead.rows[0].cells[1].querySelector('button')"
    opened.value(f"{button}.click()")
    assert opened.value(CONFIGS) == ["ddp", "fsdp2-reshard", "zero-3"]
    opened.value(f"{button}.click()")
    # Configs without a number stay last.
    assert opened.value(CONFIGS) == ["fsdp2-reshard", "ddp", "zero-3"]
    assert opened.value(f"{TABLE}.tHead.rows[0].cells[1].getAttribute('aria-sort')") == "descending"


def test_a_filter_hides_the_other_rows(opened: Page) -> None:
    opened.value(
        "const s = document.querySelector('#filter select[name=engine]'); s.value = 'ddp';"
        "s.dispatchEvent(new Event('change'))"
    )
    assert opened.value(CONFIGS) == ["ddp"]
    assert opened.value("document.querySelector('#filter [role=status]').textContent").startswith("1 of ")


def test_a_number_leads_to_its_runs(opened: Page) -> None:
    opened.value(f"{TABLE}.tBodies[0].rows[0].querySelector('td.n a').click()")
    assert opened.value("new Promise(done => setTimeout(() => done(location.hash), 0))") is not None
    opened.value("dispatchEvent(new HashChangeEvent('hashchange'))")
    fold = "document.getElementById(decodeURIComponent(location.hash.slice(1)))"
    assert opened.value(f"{fold}.open") is True
    assert opened.value(f"{fold}.querySelectorAll('.run').length") == 4


@pytest.mark.parametrize("width", [390, 820, 1400])
def test_no_width_makes_the_page_scroll_sideways(opened: Page, width: int) -> None:
    opened.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
    assert opened.value("document.documentElement.scrollWidth") <= width
