"""Log, exit codes, heartbeats, flight recorder and pod facts -> diagnosis. Standard library only, pure."""

from harness.diagnosis.case import Facts
from harness.diagnosis.folder import diagnose, diagnose_folder
from harness.diagnosis.scan import Scanner

__all__ = ["Facts", "Scanner", "diagnose", "diagnose_folder"]
