"""Log, exit codes, heartbeats, flight recorder and pod facts -> diagnosis. Standard library only, pure."""

from harness.diagnosis.folder import Source, diagnose, diagnose_folder, diagnose_source
from harness.diagnosis.judging.case import Facts
from harness.diagnosis.reading.scan import Scanner

__all__ = ["Facts", "Scanner", "Source", "diagnose", "diagnose_folder", "diagnose_source"]
