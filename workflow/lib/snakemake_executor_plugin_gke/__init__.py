"""Snakemake executor `gke`: one Kubernetes Job per run, fire and forget, adopted by name.

This is Snakemake's side: hooks in, callbacks out. What happens to a Job is in fleet.py.
"""

import asyncio
import gc
import json
import signal
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor

from harness.contract.errors import SpecError
from harness.contract.spec import parse_spec

from .errors import Denied, Expired, RemoteError
from .fleet import Fleet
from .manifest import check_platform
from .settings import ExecutorSettings, check_settings, common_settings
from .submission import FRONTIER, RECORD, Submission
from .telling import inert

__all__ = ["Executor", "ExecutorSettings", "common_settings"]

DETACH_S = 1.0
"""How long a detaching client waits for a poll that is under way."""
CREATE_S = 30.0
"""How long a client that deletes its Jobs waits for the answers to those that it is making."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NAMED = 3
ASK_AGAIN_S, TICK_S = 5.0, 0.1


class Executor(RemoteExecutor):  # type: ignore[misc]
    """One Snakemake job is one Kubernetes Job, found again by its name."""

    def __post_init__(self) -> None:
        self.settings: ExecutorSettings = self.workflow.executor_settings
        self._fleet: Fleet | None = None
        self._stopped = threading.Event()
        self._infos: dict[str, SubmittedJobInfo] = {}
        """Unfinished jobs by Job name: the base class's list is empty while a poll is under way."""

    def run_jobs(self, jobs: list[Any]) -> None:
        """Submit, adopt or collect a batch: two LISTs in all, then one create for each missing Job."""
        check_settings(self.settings)  # not sooner: the report's local rules need none of them
        # Snakemake's own SIGTERM handler waits for every job to end, which here can be days.
        for name in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(name, signal.default_int_handler)
        immediate = self.workflow.remote_execution_settings.immediate_submit
        submissions = []
        for job in jobs:
            self.run_job_pre(job)
            submission = _submission(job, _params(job))
            self._infos[submission.name] = SubmittedJobInfo(job, external_jobid=submission.name)
            submissions.append(submission)
        try:
            ended = self._submit(submissions, immediate)
        except RemoteError as error:
            for submission in submissions:  # not submitted, so there is nothing to leave behind
                del self._infos[submission.name]
            raise WorkflowError(inert(str(error))) from None
        over = {s.name for s in ended}
        for submission in submissions:
            if submission.name not in over:
                self.report_job_submission(self._infos[submission.name])
        self._report(ended)

    def _submit(self, submissions: list[Submission], immediate: bool) -> list[Submission]:
        """Take attempts over; access that is missing may only be late, or come from another terminal."""
        patience_s, end_s = self.settings.credentials_patience, None
        while True:
            try:
                return self._ready().submit(submissions, must_succeed=immediate)
            except (Expired, Denied) as error:
                if end_s is None:
                    end_s = time.monotonic() + patience_s
                    self.logger.info(f"gke: {inert(str(error))}; asking again for {patience_s} s, Ctrl-C leaves")
                if time.monotonic() >= end_s:
                    raise
                time.sleep(min(ASK_AGAIN_S, patience_s))

    def run_job(self, job: Any) -> None:
        """Submit one job."""
        self.run_jobs([job])

    async def check_active_jobs(self, active_jobs: list[SubmittedJobInfo]) -> AsyncIterator[SubmittedJobInfo]:
        """One poll. Nothing but a definite end takes a job out of the list."""
        ended: list[Submission] = []
        if active_jobs and not self._stopped.is_set():
            try:
                ended = self._ready().poll([i.external_jobid for i in active_jobs])
            except Exception as error:  # whatever it is, a poll that failed says nothing about the Jobs
                self.logger.warning(f"gke: poll failed, every Job is kept: {type(error).__name__}: {inert(str(error))}")
        over = {s.name for s in ended}
        self._report(ended)
        for info in active_jobs:
            if info.external_jobid not in over:
                yield info

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:
        """Ctrl-C, TERM, HUP, or an error of the scheduler: leave the Jobs running unless told to delete them."""
        self._stopped.set()
        names = list(self._infos)
        if self._fleet is None or not names:
            return
        self.logger.debug(f"gke: calls: {json.dumps(self._fleet.calls())}")
        if self.settings.on_exit == "cancel":
            self._delete(names)
        else:
            self._fleet.halt(DETACH_S)
            self.logger.info(f"gke: {self._fleet.left(names)}")

    def _delete(self, names: list[str]) -> None:
        """Delete unfinished Jobs. Another signal is answered and does not end it; a third one does."""
        assert self._fleet is not None
        again, stop = threading.Event(), threading.Event()

        def answer(number: int, frame: object) -> None:
            if again.is_set():
                stop.set()
            again.set()
            self.logger.info("gke: still deleting Jobs; one more signal leaves the rest as they are")

        for name in SIGNALS:
            signal.signal(name, answer)
        self.logger.info(f"gke: deleting {len(names)} unfinished Jobs (--gke-on-exit cancel)")
        self._fleet.halt(CREATE_S)
        if left := self._fleet.cancel(names, stop):
            named = ", ".join(left[:NAMED]) + (f" and {len(left) - NAMED} more" if len(left) > NAMED else "")
            self.logger.info(f"gke: {len(left)} Jobs were not deleted: {named}; the same command adopts them")

    def shutdown(self) -> None:
        """End the poll thread without waiting for a call that hangs."""
        # The interpreter would walk a million objects of the client libraries before it exits.
        gc.freeze()
        self._stopped.set()
        self.wait = False
        self.wait_thread.join(DETACH_S)
        if not self.wait_thread.is_alive():
            super().shutdown()

    async def sleep(self) -> None:
        """Wait for the next poll, but end at once when the client detaches."""
        until = time.monotonic() + self.settings.poll_interval
        while time.monotonic() < until and not self._stopped.is_set():
            await asyncio.sleep(TICK_S)

    def _ready(self) -> Fleet:
        if self._fleet is None:
            # Lazy: Snakemake imports every plugin at every start, and these two are heavy.
            from .bucket import Bucket
            from .client import Cluster

            cluster = Cluster(self.settings.namespace, self.settings.context)
            self._fleet = Fleet(cluster, Bucket(self.settings.bucket), self.settings, self.logger.info)
        return self._fleet

    def _report(self, ended: list[Submission]) -> None:
        for end in ended:
            info = self._infos.pop(end.name)
            if end.error is None:
                self.report_job_success(info)
            else:
                self.report_job_error(info, msg=f"{end.error}\n")


def _params(job: Any) -> dict[str, Any]:
    if job.is_group():
        raise WorkflowError("executor gke: group jobs are not supported: one Job is one run")
    params: dict[str, Any] | None = json.loads(job.properties()).get("params")
    if params is None:
        raise WorkflowError(f"rule {job.name}: one of its params is not JSON, so Snakemake passes none of them")
    return params


def _submission(job: Any, params: dict[str, Any]) -> Submission:
    if "spec" not in params:
        raise WorkflowError(f"rule {job.name}: found params {sorted(params)}, but executor gke needs params.spec")
    options = tuple(params.get("options", ()))
    result = FRONTIER if options else RECORD
    records = [Path(str(o)) for o in job.output if Path(str(o)).name == result]
    if len(records) != 1:
        raise WorkflowError(f"rule {job.name}: expected one output named {result}, found {len(records)}")
    try:
        spec = parse_spec(params["spec"])
        check_platform(spec)
    except SpecError as error:
        raise WorkflowError(f"rule {job.name}: params.spec: {error}") from None
    return Submission(spec, records[0].parent, options)
