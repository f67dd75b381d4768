"""Who waits in the sidecar when the pool is full, who is next, and who is told to come back.

Pure: no I/O, no clock of its own. `queue` orders, `gate` says which endpoints have room, `admission` joins both; the
edge passes the time, and wakes it when something ended.
"""
