"""What follows a run and decides nothing: logs, retention, warnings, callbacks.

A watcher is called after every moment with the time, the new entries and the state after them.
"""
