"""Snakemake executor `slurm-adopt`: the maintained Slurm executor, which adopts the jobs of an earlier client.

The maintained executor names its jobs after a random id, so that a second client cannot find them and submits them
again. Here the name follows from the study's results folder, and each run is asked for before it is submitted.
"""

import hashlib
import re
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import snakemake_executor_plugin_slurm as slurm
from snakemake_executor_plugin_slurm.utils import get_job_wildcards
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

__all__ = ["Executor", "ExecutorSettings", "common_settings"]

ExecutorSettings = slurm.ExecutorSettings
common_settings = slurm.common_settings

ASK_AGAIN_S = 10.0
"""Age up to which an answer of squeue is used for the next submission: one call for a burst of them."""
ASK_TIMEOUT_S = 60.0


def job_name(results: str) -> str:
    """The name of all jobs of one study: `dtbench-STUDY-` and a digest of its results folder."""
    folder = Path(results).resolve()
    study = re.sub(r"[^A-Za-z0-9_-]", "_", folder.name)[:40]
    return f"dtbench-{study}-{hashlib.sha256(str(folder).encode()).hexdigest()[:10]}"


class Executor(slurm.Executor):  # type: ignore[misc]
    """Submits a run unless a job of it is alive; that one is followed as if this client had submitted it."""

    def __post_init__(self, test_mode: bool = False) -> None:
        """Take the deterministic name: the maintained executor submits and polls by it."""
        super().__post_init__(test_mode)
        prefix = self.workflow.executor_settings.jobname_prefix
        name = job_name(self.workflow.globals["RESULTS"])
        self.run_uuid = f"{prefix}_{name}" if prefix else name
        self._alive: dict[str, str] = {}
        self._asked_s = float("-inf")
        # What was alive before this client submitted anything.
        self._before: set[str] | None = None
        self._lock = threading.Lock()
        self.logger.info(f"Slurm jobs of this study: squeue --me --name {self.run_uuid}")

    def run_job(self, job: Any) -> None:
        """Adopt the live job of this run, or submit one."""
        try:
            found = self._find(job)
        except Exception as error:
            self._report_job_error_threadsafe(SubmittedJobInfo(job), msg=f"not submitted: {error}")
            return
        if found is None:
            super().run_job(job)
            return
        log = self.slurm_logdir / f"rule_{job.name}" / get_job_wildcards(job) / f"{found}.log"
        self.logger.info(f"Job {job.jobid} adopts SLURM jobid {found}, which an earlier client submitted (log: {log}).")
        self._report_job_submission_threadsafe(SubmittedJobInfo(job, external_jobid=found, aux={"slurm_logfile": log}))

    def run_array_jobs(self, jobs: list[Any]) -> None:
        """Submit an array, unless an earlier client's jobs are alive: the runs of an array cannot be told apart."""
        try:
            self._look()
            if self._before:
                raise WorkflowError(self._refusal(self._before))
        except Exception as error:
            for job in jobs:
                self._report_job_error_threadsafe(SubmittedJobInfo(job), msg=f"not submitted: {error}")
            return
        super().run_array_jobs(jobs)

    def _find(self, job: Any) -> str | None:
        alive = self._look()
        if arrays := {number for number in self._before or () if "_" in number}:
            raise WorkflowError(self._refusal(arrays))
        return alive.get(f"rule_{job.name}_wildcards_{get_job_wildcards(job)}")

    def _refusal(self, numbers: set[str]) -> str:
        return (
            f"jobs of an earlier client are alive ({', '.join(sorted(numbers))}), and the runs of a job array cannot "
            "be told apart; call again when they have ended, or cancel them with scancel"
        )

    def _look(self) -> dict[str, str]:
        with self._lock:
            if time.monotonic() - self._asked_s > ASK_AGAIN_S:
                self._alive, self._asked_s = self._ask(), time.monotonic()
            if self._before is None:
                self._before = set(self._alive.values())
            return self._alive

    def _ask(self) -> dict[str, str]:
        """Comment -> id of each job of the study that has not ended. Raises when squeue does not answer.

        The maintained executor writes rule and wildcards into the comment; the wildcards hold the hash of the spec.
        """
        command = ["squeue", "--noheader", "--me", f"--name={self.run_uuid}", "--format=%i|%k"]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=ASK_TIMEOUT_S, check=False)
        if answer.returncode != 0:
            raise WorkflowError(
                f"squeue could not say whether jobs of this study are alive ({answer.stderr.strip()}); try again later"
            )
        rows = (line.strip().partition("|") for line in answer.stdout.splitlines() if line.strip())
        return {comment: number for number, _, comment in rows}
