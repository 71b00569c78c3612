"""Log, exit codes, heartbeats, flight recorder and pod facts -> diagnosis. Standard library only, pure."""
