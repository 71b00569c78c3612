"""Arrows go down only (design section 3): who may import whom, and which file alone imports a heavy dependency."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.contract.engines import ENGINES

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted(
    p
    for top in ("harness", "workflow/lib", "workflow/scripts")
    for p in (ROOT / top).rglob("*.py")
    if "__pycache__" not in p.parts
)

MAY_IMPORT = {
    "harness.contract": set(),
    "harness.process": set(),
    "harness.diagnosis": {"harness.contract"},
    "harness.search": {"harness.contract"},
    "harness.supervisor": {
        "harness.search",
        "harness.diagnosis",
        "harness.contract",
        "harness.process",
        "harness.measure.flops",
        "harness.measure.host",
        "harness.measure.nvml",
    },
    "harness.delivery": {"harness.supervisor", "harness.diagnosis", "harness.contract", "harness.measure.flops"},
    "harness.run": {"harness.delivery", "harness.supervisor", "harness.contract", "harness.process"},
    "harness.plans": {"harness.run", "harness.delivery", "harness.supervisor", "harness.search", "harness.contract"},
    "harness.measure": {"harness.contract"},
    "harness.engines": {"harness.measure", "harness.contract"},
    "harness.faults": {"harness.contract"},
    "harness.worker": {
        "harness.engines",
        "harness.measure",
        "harness.contract",
        "harness.faults",
        "harness.process",
    },
    "snakemake_executor_plugin_gke": {"harness.contract"},
    "dtbench": {
        "harness.diagnosis",
        "harness.contract",
        "harness.process",
        "harness.measure.flops",
        "harness.measure.ledger",
        "harness.measure.host",
        "harness.measure.nvml",
        "harness.measure.shapes",
    },
    "scripts": {
        "dtbench",
        "snakemake_executor_plugin_gke.manifest",
        "snakemake_executor_plugin_gke.settings",
        "harness.contract",
    },
}
"""Layer -> what of our own it may import, itself apart. The command line above them all may import any."""

CLIENT_AND_SUPERVISOR = {
    "dtbench",
    "scripts",
    "snakemake_executor_plugin_gke",
    "harness.supervisor",
    "harness.run",
    "harness.plans",
}
ONE_FILE = {
    "deepspeed": "harness/engines/",
    "torch.distributed.fsdp": "harness/engines/",
    "google.cloud.storage": "harness/delivery/",
    "pynvml": "harness/measure/",
}
"""Heavy dependency -> where the single file that imports it lies (within the harness)."""


def module_of(path: Path) -> str:
    relative = path.relative_to(ROOT).with_suffix("")
    parts = [p for p in relative.parts if p not in ("workflow", "lib")]
    return ".".join(p for p in parts if p != "__init__")


def imports_of(path: Path) -> Iterator[str]:
    module = module_of(path)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
                base = ".".join([*package[: len(package) - node.level + 1], base]).strip(".")
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def layer_of(module: str) -> str | None:
    inside = [layer for layer in MAY_IMPORT if module == layer or module.startswith(layer + ".")]
    return max(inside, key=len) if inside else None


def is_within(module: str, roots: set[str]) -> bool:
    return any(module == root or module.startswith(root + ".") for root in roots)


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    layer = layer_of(module_of(path))
    if layer is None:  # the command line: above every layer
        return
    allowed = MAY_IMPORT[layer] | {layer}
    for name in imports_of(path):
        target = layer_of(name)
        if target is not None:
            assert is_within(name, allowed) or any(root.startswith(name + ".") for root in allowed), (
                f"{layer} imports {name}"
            )


def imports_between_modules() -> dict[str, set[str]]:
    """Module of ours -> the modules of ours that it imports, also inside functions."""
    known = {module_of(path): path for path in SOURCES}
    found = {}
    for module, path in known.items():
        names = {name for name in imports_of(path) if name in known and name != module}
        # `from package import module` names the package too, but needs only the module.
        found[module] = {n for n in names if not any(other.startswith(n + ".") for other in names)}
    return found


def test_no_import_cycle() -> None:
    open_modules = imports_between_modules()
    while free := {module for module, imported in open_modules.items() if not imported & open_modules.keys()}:
        open_modules = {module: imported for module, imported in open_modules.items() if module not in free}
    assert not open_modules, f"these modules import each other: {sorted(open_modules)}"


@pytest.mark.parametrize(
    ("layer", "libraries"),
    [("harness.contract", {"msgspec"}), ("harness.diagnosis", {"zstandard", "ahocorasick_rs"})],
)
def test_contract_and_diagnosis_need_few_libraries(layer: str, libraries: set[str]) -> None:
    for path in SOURCES:
        if layer_of(module_of(path)) == layer:
            for name in imports_of(path):
                top = name.split(".")[0]
                assert top in sys.stdlib_module_names | {"harness"} | libraries, f"{path} imports {name}"


def test_diagnosis_runs_on_a_bare_python(tmp_path: Path) -> None:
    (tmp_path / "rank-0.log").write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    (tmp_path / "record.json").write_text("{}")
    script = "from harness.diagnosis.cli import main; import sys; sys.exit(main(sys.argv[1:]))"
    # -I and -S: no site-packages, and the import path is the checkout alone.
    bare = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {script}", str(tmp_path)]
    done = subprocess.run(bare, capture_output=True, text=True, check=False)
    assert "cuda_oom" in done.stdout, done.stderr


def test_client_and_supervisor_never_import_torch() -> None:
    for path in SOURCES:
        if layer_of(module_of(path)) in CLIENT_AND_SUPERVISOR:
            tops = {name.split(".")[0] for name in imports_of(path)}
            assert not tops & {"torch", "deepspeed", "transformers"}, path


@pytest.mark.parametrize(("dependency", "home"), ONE_FILE.items())
def test_one_file_alone_imports_each_heavy_dependency(dependency: str, home: str) -> None:
    importers = [
        str(p.relative_to(ROOT))
        for p in SOURCES
        if str(p.relative_to(ROOT)).startswith("harness")
        and any(is_within(name, {dependency}) for name in imports_of(p))
    ]
    assert len(importers) == 1, importers
    assert importers[0].startswith(home)


def test_engines_never_import_each_other() -> None:
    for name in ENGINES:
        others = {f"harness.engines.{other}" for other in ENGINES if other != name}
        for path in (ROOT / "harness/engines").glob(f"{name}*.py"):
            assert not any(is_within(found, others) for found in imports_of(path)), path


def test_no_engine_is_named_in_a_condition() -> None:
    for path in [*SOURCES, *sorted((ROOT / "workflow").rglob("*.smk")), ROOT / "Snakefile"]:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        for number, line in enumerate(text.splitlines(), 1):
            compares = any(f"{side} {quote}{engine}{quote}" in line
                           for side in ("==", "!=", "case")
                           for quote in ("'", '"')
                           for engine in ENGINES)  # fmt: skip
            assert not compares, f"{path}:{number}: {line.strip()}"
