"""Snakemake executor `gke`: one Kubernetes Job per run, fire and forget, adopted by name."""

from .executor import Executor
from .settings import ExecutorSettings, common_settings

__all__ = ["Executor", "ExecutorSettings", "common_settings"]
