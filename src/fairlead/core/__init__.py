"""Pure decisions: no I/O, no threads, no clock of its own. The server and the simulator call the same code."""
