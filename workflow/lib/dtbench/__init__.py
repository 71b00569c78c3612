"""The client side: from a study to runs, and from their records to the report. No torch, ever."""
