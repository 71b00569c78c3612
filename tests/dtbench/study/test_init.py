"""`dtbench init` writes a study that can be started as it is."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from dtbench.cli import main
from dtbench.study.matrix import Matrix, load_matrix

ROOT = Path(__file__).resolve().parents[3]
SMALL = {
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
}


def written(folder: Path, *words: str) -> Matrix:
    path = folder / "study.yaml"
    assert main(["init", *words, "--out", str(path)]) == 0
    return load_matrix(str(path), ROOT)


def configs(matrix: Matrix) -> list[str]:
    return [choice.name for choice in matrix.study.configs]


def test_configs_that_fit_are_measured(tmp_path: Path) -> None:
    matrix = written(tmp_path, "qwen3-8b", "--gpu", "h100-80gb", "--gpus", "8")
    assert matrix.study.platforms == ("h100-x8",)
    assert {"zero-3", "fsdp2-reshard"} <= set(configs(matrix))
    assert not {"ddp", "zero-3-offload"} & set(configs(matrix))
    assert matrix.study.reference in configs(matrix)
    text = (tmp_path / "study.yaml").read_text()
    largest = [int(size) for size in re.findall(r"largest micro-batch (\d+)", text)]
    assert matrix.study.data.micro_batch == min([8, *largest])
    assert "# - ddp                   # does not fit:" in text
    assert "# - zero-3-offload        # fits too" in text


def test_a_small_card_gets_offload_and_checkpointing(tmp_path: Path) -> None:
    matrix = written(tmp_path, "llama-3.1-8b", "--gpu", "l4", "--sequence", "4096")
    assert configs(matrix) == ["zero-3-offload", "fsdp2-reshard-offload"]
    assert matrix.study.model.activation_checkpointing
    assert matrix.runs[0].platform.accelerator == "l4"


def test_a_family_without_sdpa_runs_eagerly(tmp_path: Path) -> None:
    matrix = written(tmp_path, "gpt-oss-20b", "--gpu", "h200", "--gpus", "8")
    assert {run.model.attention for run in matrix.runs} == {"eager"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("qwen3-8b",), "found no GPU on this machine.*--gpu h100-80gb"),
        (
            ("llama-3.3-70b", "--gpu", "l4", "--sequence", "8192"),
            r"no config of llama-3\.3-70b fits on 1 x l4.*whatever their number",
        ),
        (("qwen3-8b", "--gpu", "h100-80"), "--gpu: found 'h100-80'.*did you mean 'h100-80gb'"),
        (("qwen3-8", "--gpu", "h200"), r"did you mean 'qwen3-\d+b'.*config: path/to/config\.json"),
    ],
)
def test_what_cannot_be_written_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.setattr("dtbench.study.here.list_gpus", list)
    assert main(["init", *words, "--out", str(tmp_path / "s.yaml")]) == 64
    error = capsys.readouterr().err
    assert re.search(message, error), error
    assert not (tmp_path / "s.yaml").exists()


def test_an_existing_study_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.yaml").write_text("mine")
    assert main(["init", "tiny", "--out", str(tmp_path / "s.yaml")]) == 64
    assert "exists already" in capsys.readouterr().err
    assert (tmp_path / "s.yaml").read_text() == "mine"


def test_the_cards_of_this_machine_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = {"name": "NVIDIA L4", "uuid": "GPU-0", "total_bytes": 24 * 10**9, "nvlink": False}
    monkeypatch.setattr("dtbench.study.here.list_gpus", lambda: [card, card])
    matrix = written(tmp_path, "qwen2.5-0.5b")
    assert matrix.study.platforms == ("my-l4-x2",)
    assert (matrix.runs[0].platform.world_size, matrix.runs[0].platform.interconnect) == (2, "pcie")
    assert "2 x NVIDIA L4" in matrix.platforms["my-l4-x2"].note


def test_offload_must_fit_the_hosts_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    card = {"name": "NVIDIA L4", "uuid": "GPU-0", "total_bytes": 24 * 10**9, "nvlink": False}
    monkeypatch.setattr("dtbench.study.here.list_gpus", lambda: [card] * 4)
    found = {}
    for memory_gib in (400.0, 200.0):
        monkeypatch.setattr("dtbench.init.memory_gib", lambda memory=memory_gib: memory)
        (tmp_path / str(memory_gib)).mkdir()
        found[memory_gib] = configs(written(tmp_path / str(memory_gib), "llama-3.1-8b"))
    assert found == {400.0: ["zero-3-offload", "fsdp2-reshard-offload"], 200.0: ["fsdp2-reshard-offload"]}
    left_out = (
        "# - zero-3-offload        # does not fit host memory: 209 to 227 GiB predicted for all GPUs, 200 GiB found"
    )
    assert left_out in (tmp_path / "200.0/study.yaml").read_text()
    monkeypatch.setattr("dtbench.init.memory_gib", lambda: 60.0)
    assert main(["init", "llama-3.1-8b", "--out", str(tmp_path / "s.yaml")]) == 64
    assert re.search(r"fsdp2-reshard-offload: does not fit host memory: .* 60 GiB found", capsys.readouterr().err)


def test_a_shipped_platforms_host_memory_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # l4-x4 asks for 160 GiB; four cards of another kind say nothing of their host.
    assert main(["init", "qwen3-14b", "--gpu", "l4", "--gpus", "4", "--out", str(tmp_path / "s.yaml")]) == 64
    assert "160 GiB found" in capsys.readouterr().err
    assert "zero-3-offload" in configs(written(tmp_path, "qwen3-14b", "--gpu", "l4", "--gpus", "2"))


def runs_to_do(dry_run: str) -> int:
    """Count of the rule `run` in Snakemake's table of jobs."""
    found = re.search(r"^run\s+(\d+)$", dry_run, re.MULTILINE)
    assert found, dry_run[-2000:]
    return int(found[1])


def test_a_stranger_starts_it_from_an_empty_folder(tmp_path: Path) -> None:
    # As README says: an own config, `init`, `check`, `start`; here without GPUs, and the last as a dry run.
    (tmp_path / "my-model").mkdir()
    (tmp_path / "my-model/config.json").write_text(json.dumps(SMALL))
    empty = tmp_path / "work"
    empty.mkdir()
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'workflow/lib'}", "CUDA_VISIBLE_DEVICES": ""}

    def dtbench(*words: str) -> str:
        program = "import sys; from dtbench.cli import main; sys.exit(main())"
        done = subprocess.run(
            [sys.executable, "-c", program, *words],
            cwd=empty,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout + done.stderr

    dtbench("init", "../my-model")
    assert "18 cells, 54 runs" in dtbench("check", "study.yaml")
    assert runs_to_do(dtbench("start", "study.yaml", "--results", "results", "-n")) == 54
    # README's three lines, letter by letter.
    lines = re.findall(r"^    ((?:platforms|model|configs): .*)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(lines) == 3
    shutil.copytree(tmp_path / "my-model", empty / "my-model")
    (empty / "my-study.yaml").write_text("\n".join(lines))
    assert "6 cells, 18 runs" in dtbench("check", "my-study.yaml")
    # The study in a folder of its own, its model where the command is called.
    (empty / "studies").mkdir()
    shutil.copy(empty / "my-study.yaml", empty / "studies/my-study.yaml")
    assert runs_to_do(dtbench("start", "studies/my-study.yaml", "--results", "results", "-n")) == 18


def test_here_stays_on_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.yaml").write_text("platforms: [here]\nconfigs: [ddp]\nmodel: {name: tiny}\n")
    assert main(["start", str(tmp_path / "s.yaml"), "--profile", "slurm", "--results", str(tmp_path)]) == 64
    assert "found `here` with --profile slurm" in capsys.readouterr().err


def test_any_card_and_path_can_be_written(tmp_path: Path) -> None:
    folder = tmp_path / 'w x}"\\é: #'
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(SMALL))
    matrix = written(tmp_path, str(folder), "--gpu", "My: card", "--memory", "80")
    assert matrix.study.model.config == str(folder)
    (platform,) = {cell.spec.platform for cell in matrix.cells if cell.spec}
    assert (platform.name, platform.accelerator) == ("my-my-card-x1", "My: card")


@pytest.mark.parametrize("name", ["na me.yaml", "Ünï.yaml", "study"])
def test_a_file_name_must_name_a_study(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "tiny", "--gpu", "h200", "--out", str(tmp_path / name)]) == 64
    assert "--out: " in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
