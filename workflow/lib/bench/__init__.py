"""The client side's library: matrix, store, statistics, findings, cost, report. No torch, ever."""
