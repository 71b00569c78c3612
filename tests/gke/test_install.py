"""The plugin from an ordinary install: found by Snakemake, its template with it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_an_install_finds_plugin_and_template(tmp_path):
    uv = Path(sys.executable).with_name("uv")
    subprocess.run(
        [uv, "build", "-q", "--wheel", "--python", sys.executable, "-o", tmp_path / "dist", ROOT], check=True
    )
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    site = tmp_path / "site"
    install = [uv, "pip", "install", "-q", "--python", sys.executable, "--no-deps", "--target", site, wheel]
    subprocess.run(install, check=True)
    code = (
        "import snakemake_executor_plugin_gke as plugin\n"
        f"assert plugin.__file__.startswith({str(site)!r}), plugin.__file__\n"
        "from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry\n"
        "assert ExecutorPluginRegistry().is_installed('gke')\n"
        "from snakemake_executor_plugin_gke.manifest import render_manifest\n"
        "from tests.gke.specs import make_settings, make_spec\n"
        "assert render_manifest(make_spec(), make_settings())['kind'] == 'Job'\n"
    )
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    environment = os.environ | {"PYTHONPATH": f"{site}{os.pathsep}{tmp_path}"}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
