"""`dtbench site`: pages per model and GPU, every speed with the spec that repeats it, nothing from a network."""

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from dtbench import cli
from dtbench.results.runs import read_runs
from dtbench.site import Verdict, write_site
from dtbench.study.matrix import Matrix
from msgspec import structs

from harness.contract.errors import SpecError
from harness.contract.spec import parse_spec, read_spec
from tests.dtbench.conftest import GPU_STUDY, ROOT, make_record, run_of, write_record

Load = Callable[[str], Matrix]
GATE, PUBLISHED, TWO = (ROOT / "results" / name for name in ("gate-x1", "published", "h200-x2-tuned"))
HOLDS = Verdict(4, 0)


def made(out: Path, *folders: Path, verdict: Verdict = HOLDS) -> dict[str, str]:
    """The site's files with their text."""
    names = write_site(folders, out, ROOT, dict.fromkeys(folders, verdict))
    return {name: (out / name).read_text(encoding="utf-8") for name in names}


def test_there_is_one_page_per_model_and_gpu(tmp_path: Path) -> None:
    site = made(tmp_path, GATE, TWO, PUBLISHED)
    pages = {name for name in site if name.endswith(".html") and "/" not in name}
    assert pages == {"index.html", "qwen2-5-3b-h200.html", "qwen2-5-3b-a100-40gb.html", "qwen2-5-3b-l4.html"}
    assert all(f'href="{page}"' in site["index.html"] for page in pages - {"index.html"})


def test_the_newest_study_comes_first(tmp_path: Path) -> None:
    site = made(tmp_path, TWO, PUBLISHED, GATE)
    page, index = site["qwen2-5-3b-h200.html"], site["index.html"]
    assert re.findall("<h2>(.*?),", page) == ["gate-x1", "h200-x2-tuned"]
    assert [index.index(f"<td>{name}</td>") for name in ("gate-x1", "h200-x2-tuned", "published")] == sorted(
        index.index(f"<td>{name}</td>") for name in ("gate-x1", "h200-x2-tuned", "published")
    )


def test_every_speed_leads_to_its_spec(tmp_path: Path) -> None:
    page = made(tmp_path, GATE)["qwen2-5-3b-h200.html"]
    linked = re.findall(r'<td>([\w-]+)</td><td class="n"><a href="(specs/\w+\.json)">(\d+)</a>', page)
    speeds = {run.spec.identity.config: run.newest for run in read_runs(GATE)}
    assert {config for config, _, _ in linked} == set(speeds)
    for config, file, speed in linked:
        newest = speeds[config]
        assert newest and newest.record.measured and newest.record.measured.tokens_per_s
        assert round(newest.record.measured.tokens_per_s) == int(speed)
        assert read_spec(tmp_path / file) == newest.record.spec


def test_the_plan_holds_every_run(tmp_path: Path) -> None:
    site = made(tmp_path, TWO)
    specs = [parse_spec(plain) for plain in json.loads(site["studies/h200-x2-tuned.json"])["specs"]]
    assert {spec.run_hash() for spec in specs} == {run.spec.run_hash() for run in read_runs(TWO)}


def test_a_file_of_other_runs_is_left_out(tmp_path: Path, study: Load) -> None:
    assert "studies/gate-x1.yaml" in made(tmp_path / "own", GATE)
    spec = run_of(study(GPU_STUDY), "ddp")
    other = structs.replace(spec, identity=structs.replace(spec.identity, study="gate-x1"))
    write_record(tmp_path / "other", make_record(other))
    assert "studies/gate-x1.yaml" not in made(tmp_path / "site", tmp_path / "other")


def test_two_studies_of_one_name_stay_apart(tmp_path: Path, study: Load) -> None:
    for folder, config in (("a", "ddp"), ("b", "zero-3")):
        write_record(tmp_path / folder, make_record(run_of(study(GPU_STUDY), config)))
    site = made(tmp_path / "site", tmp_path / "a", tmp_path / "b")
    assert {"studies/study.json", "studies/study-2.json"} <= set(site)


def test_a_dead_config_tells_its_end(tmp_path: Path, study: Load) -> None:
    write_record(tmp_path / "a", make_record(run_of(study(GPU_STUDY), "ddp"), outcome="cuda_oom"))
    site = made(tmp_path / "site", tmp_path / "a")
    (page,) = (text for name, text in site.items() if name.startswith("qwen"))
    assert '<span class="bad">cuda_oom</span>' in page
    assert "It ended as cuda_oom." in page


def test_nothing_is_loaded_and_nothing_runs(tmp_path: Path, study: Load) -> None:
    spec = run_of(study(GPU_STUDY), "ddp")
    hostile = make_record(spec, outcome="cuda_oom")
    evil = dataclasses.replace(hostile.diagnosis, sentence="<img src=x onerror=alert(1)>")
    hostile = structs.replace(hostile, source="<script src=http://x/>", diagnosis=evil)
    write_record(tmp_path / "a", hostile)
    site = made(tmp_path / "site", tmp_path / "a", GATE)
    for name, text in site.items():
        if name.endswith(".html") and "/" not in name:
            assert "<script" not in text
            assert "<img" not in text
            assert not re.search(r'(?:src|href)="(?!specs/|studies/|[\w-]+\.html)', text), name
            assert "url(" not in text


def test_problems_of_the_check_are_shown(tmp_path: Path) -> None:
    site = made(tmp_path, GATE, verdict=Verdict(4, 3))
    assert "3 problems" in site["index.html"]
    assert "found 3 problems" in site["qwen2-5-3b-h200.html"]


def test_the_same_records_give_the_same_bytes(tmp_path: Path) -> None:
    assert made(tmp_path / "a", GATE, PUBLISHED) == made(tmp_path / "b", GATE, PUBLISHED)


def test_a_second_call_removes_only_its_own(tmp_path: Path) -> None:
    made(tmp_path, GATE, PUBLISHED)
    (tmp_path / "CNAME").write_text("mine\n")
    site = made(tmp_path, GATE)
    assert {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()} == {*site, "CNAME"}


def test_a_folder_of_others_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.html").write_text("mine\n")
    with pytest.raises(SpecError, match=r"found files and no site\.json; expected an empty folder or an earlier site"):
        made(tmp_path, GATE)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.html"]


def test_the_command_checks_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["site", str(GATE), "--out", str(tmp_path / "site")]) == 0
    assert "All of it holds." in capsys.readouterr().out
    assert "4 records hold" in (tmp_path / "site/index.html").read_text()
    assert cli.main(["site", str(tmp_path / "nowhere"), "--out", str(tmp_path / "b")]) == 64
    assert "expected one study's results" in capsys.readouterr().err
